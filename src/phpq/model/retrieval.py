"""The object a user holds: images in, embeddings and codes out, save and load.

As in `phpq.load("runs/birds").encode(["a.jpg", "b.jpg"])`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from phpq.codes import Codebooks, QueryNorm, Space
from phpq.config import CONFIG_FILE, DataConfig
from phpq.data import LabelledImages, decode_square
from phpq.data.batches import Views
from phpq.data.decode import read_ahead
from phpq.errors import ConfigError, FormatError, NotTrainedError, ShapeError, unknown_name
from phpq.model.checkpoint import ModelCard, read_card, read_network, write_card, write_weights
from phpq.model.general import GENERAL, GeneralEmbedding, read_general, write_general
from phpq.model.method import Method

# What a user may hand over: files, opened images, a labelled set, or decoded uint8 squares.
Images = str | Path | Image.Image | Sequence[str | Path | Image.Image] | LabelledImages


class Model:
    """A trained model, of PHPQ or of another method, on one device.

    `folder` is where its general embedding is read from, once that is asked for.
    """

    def __init__(
        self,
        network: Method,
        card: ModelCard,
        *,
        device: torch.device,
        epochs: int,
        folder: Path | None = None,
    ) -> None:
        self.network = network.to(device).eval()
        self.card, self.device, self.epochs, self.folder = card, device, epochs, folder
        self.codebooks: Codebooks = network.export()

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return self.card.config.quantizer.bits

    @property
    def query_norm(self) -> QueryNorm:
        """How queries are scored against its codes, see `Codebooks.lookup_tables`."""
        return self.network.query_norm

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that it learned."""
        return self.card.class_names

    @cached_property
    def general(self) -> GeneralEmbedding:
        """The general embedding on the model's device; a NotTrainedError where there is none."""
        if self.folder is None:
            raise NotTrainedError(
                "This model is in no folder, and has no general embedding. Load one that "
                "`phpq train` has written."
            )
        return read_general(self.folder, self.card.config.model).to(self.device)

    @property
    def has_general(self) -> bool:
        """Whether there is a general embedding."""
        stored = self.folder is not None and (self.folder / GENERAL).is_file()
        return "general" in vars(self) or stored

    def embedding_dim(self, space: Space = "learned") -> int:
        """Return the length of an embedding: D, or E of the general one."""
        return self._embedder(space)[1]

    def _embedder(self, space: Space) -> tuple[Callable[[Tensor], Tensor], int]:
        """Return what embeds pixels in [0, 1], and how long its embeddings are."""
        if space == "general":
            return self.general, self.general.dim
        if space != "learned":
            raise unknown_name("space", space, ("learned", "general"))
        function = embedding_function(self.network, self.card.config.data)
        return function, self.network.embedding_dim

    def embed(
        self, images: Images, *, batch_size: int = 64, space: Space = "learned"
    ) -> NDArray[np.float32]:
        """Embed one image or many: (N, D) float32; sub-vectors are not normalised.

        In the space "general": (N, E), of unit length. An image that cannot be read raises
        BadImageError. `batch_size` bounds the memory and never changes the result.
        """
        data = self.card.config.data
        function, dim = self._embedder(space)
        if not _sources(images)[1]:
            return np.empty((0, dim), np.float32)
        result = apply_to_images(function, images, data, device=self.device, batch_size=batch_size)
        return result.cpu().numpy()

    def encode(self, images: Images, *, batch_size: int = 64) -> NDArray[np.uint8]:
        """Encode images: (N, M) uint8, one codeword index per codebook."""
        return self.codebooks.encode(self.embed(images, batch_size=batch_size))

    def embed_pixels(
        self,
        pixels: NDArray[np.uint8] | Tensor,
        *,
        batch_size: int = 64,
        space: Space = "learned",
    ) -> NDArray[np.float32]:
        """Embed decoded squares (N, 3, S, S) uint8: (N, D) float32, or (N, E) "general" ones."""
        if pixels.dtype not in (np.uint8, torch.uint8) or pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ShapeError(
                f"pixels of shape {tuple(pixels.shape)} and type {pixels.dtype}: "
                "give (N, 3, S, S) uint8."
            )
        function, dim = self._embedder(space)
        if not len(pixels):
            return np.empty((0, dim), np.float32)
        data = self.card.config.data
        result = apply_to_pixels(function, pixels, data, device=self.device, batch_size=batch_size)
        return result.cpu().numpy()

    def save(self, folder: str | Path) -> Path:
        """Write the model, and its general embedding if it has one, to a folder; returns it."""
        path = Path(folder)
        write_card(path, self.card)
        write_weights(path, self.network, epoch=self.epochs)
        if self.has_general:
            write_general(path, self.general)
        return path

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Upload the model to the Hugging Face hub; returns its address there."""
        from huggingface_hub import HfApi

        api = HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return str(api.upload_folder(repo_id=repository, folder_path=folder))

    def fingerprint(self) -> str:
        """Hash of the weights: equal models give equal codes."""
        return _fingerprint(self.network)

    def general_fingerprint(self) -> str:
        """Hash of the general embedding: equal ones give equal vectors."""
        return _fingerprint(self.general)


def _fingerprint(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load(source: str | Path, *, device: str = "auto") -> Model:
    """Load a model from a folder that `phpq train` or `Model.save` wrote, or a hub's "owner/name".

    The device "auto" takes CUDA where there is one.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _from_hub(str(source))
    card = read_card(folder)
    network, epochs = read_network(folder, card)
    return Model(network, card, device=resolve_device(device), epochs=epochs, folder=folder)


def resolve_device(name: str) -> torch.device:
    """Turn "auto", "cpu", "cuda", "cuda:1" or "mps" into a device that is there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"Device {name!r} cannot be used: {reason}. Use 'auto', 'cpu' or a device that is here."
        ) from error
    return device


@torch.no_grad()
def apply_to_pixels(
    function: Callable[[Tensor], Tensor],
    pixels: NDArray[np.uint8] | Tensor,
    config: DataConfig,
    *,
    device: torch.device,
    batch_size: int = 64,
    whole_batches: bool = False,
) -> Tensor:
    """Run a function over decoded squares as encoding sees them, a batch at a time.

    The function takes pixels (B, 3, H, W) in [0, 1] on the device and returns (B, ...); the squares
    are (N, 3, S, S) uint8, anywhere, N at least 1. `whole_batches` fills the last one up with
    copies, which are left out of the result (N, ...): on a GPU every other shape costs seconds,
    since cuDNN looks for algorithms and a compiler compiles.
    """
    views = Views(config)
    parts = []
    for start in range(0, len(pixels), batch_size):
        chunk = pixels[start : start + batch_size]
        if not isinstance(chunk, Tensor):
            chunk = torch.tensor(chunk)  # a copy: a memory-mapped cache is read-only
        chunk = chunk.to(device)
        missing = batch_size - len(chunk) if whole_batches else 0
        if missing:
            chunk = torch.cat([chunk, chunk[-1:].expand(missing, -1, -1, -1)])
        parts.append(function(views.encode(chunk)))
    return torch.cat(parts)[: len(pixels)]


def apply_to_images(
    function: Callable[[Tensor], Tensor],
    images: Images,
    config: DataConfig,
    *,
    device: torch.device,
    batch_size: int = 64,
) -> Tensor:
    """Decode images and do as `apply_to_pixels`, in flat memory; at least one image."""
    parts = [
        apply_to_pixels(function, squares, config, device=device, batch_size=batch_size)
        for squares in _squares(images, config, batch_size)
    ]
    return torch.cat(parts)


def embedding_function(network: Method, config: DataConfig) -> Callable[[Tensor], Tensor]:
    """Return how a network, from now on in evaluation mode, embeds pixels in [0, 1]."""
    network.eval()
    return lambda images: network.embed(images, mirrored=config.eval_flip)


def _squares(images: Images, config: DataConfig, batch_size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield batches of (B, 3, S, S) squares, decoded ahead of the network."""
    source, count = _sources(images)

    def decode(row: int) -> NDArray[np.uint8]:
        return decode_square(source(row), config)

    with closing(read_ahead(range(count), decode, ahead=2 * batch_size)) as squares:
        while batch := list(islice(squares, batch_size)):
            yield np.stack(batch)


def _sources(images: Images) -> tuple[Callable[[int], Path | Image.Image], int]:
    """Return what gives each image as `decode_square` takes it, and how many there are."""
    if isinstance(images, LabelledImages):
        return (lambda row: images.path(row) or images.read(row)), len(images)
    items = [images] if isinstance(images, str | Path | Image.Image) else images
    files = [Path(item) if isinstance(item, str) else item for item in items]
    return files.__getitem__, len(files)


def _from_hub(name: str) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/")):
        raise FormatError(
            f"There is no folder {name!r}. Give a folder that `phpq train` wrote, or a hub id "
            "of the form owner/name."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG_FILE, "*.safetensors"]))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise FormatError(
            f"{name!r} is neither a folder nor a model that could be fetched from the hub "
            f"({type(error).__name__})."
        ) from error
