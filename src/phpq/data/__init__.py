"""Labelled images from folders, tables, benchmarks or the drawing board, and their pixels."""

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
from phpq.data.download import download
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
    "download",
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
