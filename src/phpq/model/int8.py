"""The encoder in 8-bit integers: an ONNX file of a third of the size, two to three times as fast.

Only convolutions, which take nearly all of the time, are quantized; pooling, embedding and codes
stay in float32. The range of each map is calibrated on some images.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phpq.data import LabelledImages, decode_all
from phpq.data.images import spread
from phpq.errors import ConfigError, missing_extra
from phpq.files import replacing
from phpq.model.export import export_onnx
from phpq.model.onnx_file import read_facts, seal

if TYPE_CHECKING:
    from phpq.model.retrieval import TorchModel

CALIBRATION_IMAGES = 64
_BATCH = 8


def export_int8(model: TorchModel, images: LabelledImages, path: str | Path) -> Path:
    """Write the encoder with int8 convolutions; returns the path, which must end in .onnx.

    Some of the images, spread evenly, calibrate the ranges. The codes are close to those of the
    model, but not the same: `benchmarks/laptop.py codes` measures what that costs.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:  # which needs the package onnx
        raise missing_extra(error, "Writing ONNX files") from error
    target = Path(path)
    if not len(images):
        raise ConfigError("There are no images to calibrate on. Give some with --images SOURCE.")
    chosen = images.subset(spread(len(images), CALIBRATION_IMAGES))
    pixels = decode_all(chosen, model.card.config.data).pixels
    with tempfile.TemporaryDirectory() as room, replacing(target) as temporary:
        whole = export_onnx(model, Path(room) / target.name)
        with _quiet():
            quantization.quantize_static(
                str(whole),
                str(temporary),
                _reader(pixels),
                op_types_to_quantize=["Conv"],
                per_channel=True,
                # Weights of 7 bits: older CPUs add two products in 16 bits, which would overflow.
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        _without_facts(temporary)
        seal(temporary, read_facts(whole) | {"precision": "int8"})
    return target


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the advice of the quantizer, which does not apply to our graph."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _reader(pixels: NDArray[np.uint8]) -> Any:
    """Return a reader of batches, as onnxruntime wants it."""
    from onnxruntime.quantization import CalibrationDataReader

    batches = iter([pixels[start : start + _BATCH] for start in range(0, len(pixels), _BATCH)])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
            batch = next(batches, None)
            return None if batch is None else {"pixels": batch}

    return Reader()


def _without_facts(path: Path) -> None:
    """Remove the metadata copied from the float file: `seal` writes them again."""
    import onnx

    content = onnx.load(str(path))
    del content.metadata_props[:]
    onnx.save(content, str(path))
