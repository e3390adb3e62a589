"""The model that a user holds: images in, embeddings and codes out, save and load.

As in `phpq.load("runs/birds").encode(["a.jpg", "b.jpg"])`. It runs on torch (`retrieval.py`) or on
onnxruntime (`onnx_model.py`), which needs no torch; `load` chooses.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import Codebooks, QueryNorm, Space
from phpq.config import DataConfig
from phpq.data import LabelledImages, decode_square
from phpq.data.decode import read_ahead
from phpq.errors import ConfigError, ShapeError, missing_extra, unknown_name
from phpq.model.checkpoint import ModelCard, read_card

if TYPE_CHECKING:
    from phpq.model.retrieval import TorchModel

# What a user may encode: files, opened images, or a labelled set.
Images = str | Path | Image.Image | Sequence[str | Path | Image.Image] | LabelledImages
# "int8" is onnxruntime with 8-bit convolutions, see `phpq export --int8`.
RUNTIMES = ("auto", "torch", "onnx", "int8")

ENCODER = "encoder.onnx"
INT8 = "encoder.int8.onnx"
ONNX_FILES: dict[Space, str] = {"learned": ENCODER, "general": "general.onnx"}


class Model(ABC):
    """A trained model, of PHPQ or of another method.

    `folder` is where it was read from; its general embedding is read from there when first used.
    """

    def __init__(
        self,
        card: ModelCard,
        codebooks: Codebooks,
        query_norm: QueryNorm,
        *,
        epochs: int,
        folder: Path | None = None,
    ) -> None:
        self.card, self.codebooks, self.epochs, self.folder = card, codebooks, epochs, folder
        self.query_norm = query_norm  # how queries are scored, see `Codebooks.lookup_tables`

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return self.card.config.quantizer.bits

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that it learned."""
        return self.card.class_names

    @property
    @abstractmethod
    def has_general(self) -> bool:
        """Whether there is a general embedding."""

    @abstractmethod
    def embedding_dim(self, space: Space = "learned") -> int:
        """Return the length of an embedding: D, or E of the general one.

        A NotTrainedError says how to add a general embedding that is not there.
        """

    @abstractmethod
    def _embed(
        self, pixels: NDArray[np.uint8], space: Space, batch_size: int
    ) -> NDArray[np.float32]:
        """Embed at least one square (N, 3, S, S)."""

    def embed(
        self, images: Images, *, batch_size: int = 64, space: Space = "learned"
    ) -> NDArray[np.float32]:
        """Embed one image or many: (N, D) float32; sub-vectors are not normalised.

        In the space "general": (N, E), of unit length. An image that cannot be read raises
        BadImageError. `batch_size` bounds the memory and never changes the result.
        """
        parts = [np.empty((0, self.embedding_dim(space)), np.float32)]
        for squares in squares_of(images, self.card.config.data, batch_size):
            parts.append(self._embed(squares, space, batch_size))
        return np.concatenate(parts)

    def encode(self, images: Images, *, batch_size: int = 64) -> NDArray[np.uint8]:
        """Encode images: (N, M) uint8, one codeword index per codebook."""
        return self.codebooks.encode(self.embed(images, batch_size=batch_size))

    def embed_pixels(
        self, pixels: NDArray[np.uint8], *, batch_size: int = 64, space: Space = "learned"
    ) -> NDArray[np.float32]:
        """Embed decoded squares (N, 3, S, S) uint8: (N, D) float32, or (N, E) "general" ones."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ShapeError(
                f"pixels of shape {tuple(pixels.shape)} and type {pixels.dtype}: "
                "give (N, 3, S, S) uint8."
            )
        if not len(pixels):
            return np.empty((0, self.embedding_dim(space)), np.float32)
        return self._embed(pixels, space, batch_size)

    @abstractmethod
    def save(self, folder: str | Path) -> Path:
        """Write the model, and its general embedding if it has one, to a folder; returns it."""

    def push_to_hub(self, repository: str, *, private: bool = False, licence: str = "") -> str:
        """Upload the model and its card to the Hugging Face hub; returns its address there.

        `licence` is an identifier of the hub, as in "apache-2.0". Results of the run that the model
        was loaded from, if it was evaluated, are on the card.
        """
        from phpq.model.sharing import push

        return push(self, repository, private=private, licence=licence)

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the weights: equal models give equal codes."""

    @abstractmethod
    def general_fingerprint(self) -> str:
        """Hash of the general embedding: equal ones give equal vectors."""


@overload
def load(source: str | Path, *, device: str = ..., runtime: Literal["torch"]) -> TorchModel: ...
@overload
def load(source: str | Path, *, device: str = ..., runtime: str = ...) -> Model: ...
def load(source: str | Path, *, device: str = "auto", runtime: str = "auto") -> Model:
    """Load a model from a folder that `phpq train` or `Model.save` wrote, or a hub's "owner/name".

    The device "auto" takes CUDA where there is one. The runtime "auto" takes torch there, and on a
    CPU onnxruntime, which starts and runs faster, if the folder holds `encoder.onnx`.
    """
    if runtime not in RUNTIMES:
        raise unknown_name("runtime", runtime, RUNTIMES)
    folder = Path(source)
    if not folder.is_dir():
        from phpq.model.sharing import fetch

        folder = fetch(str(source))
    card = read_card(folder)
    if runtime == "auto":
        runtime = _choose_runtime(folder, device)
    if runtime == "torch":
        try:
            from phpq.model.retrieval import load_torch
        except ModuleNotFoundError as error:
            advice = f"Or, where that is installed, write {ENCODER}: phpq export {source}"
            raise missing_extra(error, f"Loading {str(source)!r} with torch", advice) from error
        return load_torch(folder, card, device=device)
    if device not in ("auto", "cpu"):
        raise ConfigError(
            f"The device {device!r} is for torch; onnxruntime runs on the CPU here. "
            "Use runtime 'torch', or device 'cpu'."
        )
    from phpq.model.onnx_model import OnnxModel

    return OnnxModel(folder, card, file=INT8 if runtime == "int8" else ENCODER)


def _choose_runtime(folder: Path, device: str) -> str:
    """Choose the runtime, as `load` describes it."""
    exported = (folder / ENCODER).is_file()
    if find_spec("torch") is None:
        return "onnx" if exported else "torch"  # whose error says what to install
    on_cpu = device == "cpu" or (device == "auto" and not sees_gpu())
    return "onnx" if exported and on_cpu else "torch"


def sees_gpu() -> bool:
    """Tell whether there seems to be a CUDA device, without the seconds of importing torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def squares_of(images: Images, config: DataConfig, batch_size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield batches of (B, 3, S, S) squares, decoded ahead of the network."""
    source, count = _sources(images)

    def decode(row: int) -> NDArray[np.uint8]:
        return decode_square(source(row), config)

    with closing(read_ahead(range(count), decode, ahead=2 * batch_size)) as squares:
        while batch := list(islice(squares, batch_size)):
            yield np.stack(batch)


def _sources(images: Images) -> tuple[Callable[[int], Path | Image.Image], int]:
    """Return a function that opens image i for `decode_square`, and the number of images."""
    if isinstance(images, LabelledImages):
        return (lambda row: images.path(row) or images.read(row)), len(images)
    items = [images] if isinstance(images, str | Path | Image.Image) else images
    files = [Path(item) if isinstance(item, str) else item for item in items]
    return files.__getitem__, len(files)
