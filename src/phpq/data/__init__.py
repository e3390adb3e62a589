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
    "Splits",
    "data_home",
    "decode_all",
    "decode_square",
    "decode_squares",
    "hold_out",
    "hold_out_classes",
    "learned_part",
    "mark_mask",
    "open_dataset",
    "plumage",
    "read_image",
    "to_square",
    "unseen_split",
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
        Splits,
        hold_out,
        hold_out_classes,
        learned_part,
        unseen_split,
    )
    from phpq.data.sources import data_home, open_dataset
    from phpq.data.synthetic.plumage import mark_mask, plumage, write_plumage
else:
    __getattr__ = exports(
        __name__,
        {
            "phpq.data.decode": "DecodedImages FileReader SkippedImage decode_all decode_square "
            "decode_squares read_image to_square",
            "phpq.data.images": "Dataset ImageReader LabelledImages Splits hold_out "
            "hold_out_classes learned_part unseen_split",
            "phpq.data.sources": "data_home open_dataset",
            "phpq.data.synthetic.plumage": "mark_mask plumage write_plumage",
        },
    )
