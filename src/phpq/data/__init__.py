"""Labelled images from folders, tables, benchmarks or the drawing board, and their pixels."""

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = [
    "Dataset",
    "DecodedImages",
    "FileReader",
    "ImageReader",
    "LabelledImages",
    "SkippedImage",
    "data_home",
    "decode_all",
    "decode_square",
    "decode_squares",
    "hold_out",
    "hold_out_classes",
    "learned_part",
    "mark_mask",
    "new_kinds",
    "open_dataset",
    "plumage",
    "read_image",
    "to_square",
    "write_plumage",
]

if TYPE_CHECKING:
    from phpq.data.decode import (
        DecodedImages,
        FileReader,
        SkippedImage,
        decode_all,
        decode_square,
        decode_squares,
        read_image,
        to_square,
    )
    from phpq.data.images import (
        Dataset,
        ImageReader,
        LabelledImages,
        hold_out,
        hold_out_classes,
        learned_part,
        new_kinds,
    )
    from phpq.data.sources import data_home, open_dataset
    from phpq.data.synthetic.plumage import mark_mask, plumage, write_plumage
else:
    __getattr__ = exports(
        __name__,
        {
            "Dataset": "phpq.data.images",
            "DecodedImages": "phpq.data.decode",
            "FileReader": "phpq.data.decode",
            "ImageReader": "phpq.data.images",
            "LabelledImages": "phpq.data.images",
            "SkippedImage": "phpq.data.decode",
            "data_home": "phpq.data.sources",
            "decode_all": "phpq.data.decode",
            "decode_square": "phpq.data.decode",
            "decode_squares": "phpq.data.decode",
            "hold_out": "phpq.data.images",
            "hold_out_classes": "phpq.data.images",
            "learned_part": "phpq.data.images",
            "mark_mask": "phpq.data.synthetic.plumage",
            "new_kinds": "phpq.data.images",
            "open_dataset": "phpq.data.sources",
            "plumage": "phpq.data.synthetic.plumage",
            "read_image": "phpq.data.decode",
            "to_square": "phpq.data.decode",
            "write_plumage": "phpq.data.synthetic.plumage",
        },
    )
