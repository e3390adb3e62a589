"""A model that computes with torch: pixels in, embeddings out, on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.codes import Space
from phpq.config import DataConfig
from phpq.data.batches import Views
from phpq.errors import ConfigError, NotTrainedError, unknown_name
from phpq.model.checkpoint import (
    GENERAL,
    ModelCard,
    copy_chances,
    fingerprint_of_state,
    read_network,
    write_card,
    write_weights,
)
from phpq.model.export import write_onnx
from phpq.model.frozen import FrozenPart
from phpq.model.general import GeneralEmbedding, read_general, write_general
from phpq.model.interface import Images, Model, squares_of
from phpq.model.method import Method

BATCH = 64  # images at once


class TorchModel(Model):
    """A network on one device; heat maps and exports need this kind of model."""

    def __init__(
        self,
        network: Method,
        card: ModelCard,
        *,
        device: torch.device,
        epochs: int,
        folder: Path | None = None,
        frozen: FrozenPart | None = None,
    ) -> None:
        """Put a network on a device.

        The `frozen` part of one that has just learned makes learned embeddings faster, and as it
        was evaluated.
        """
        super().__init__(card, network.export(), network.query_norm, epochs=epochs, folder=folder)
        self.network = network.to(device).eval()
        self.device, self.frozen = device, frozen

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
        """Return a function that embeds pixels in [0, 1], and the length of its embeddings."""
        if space == "general":
            return self.general, self.general.dim
        if space != "learned":
            raise unknown_name("space", space, ("learned", "general"))
        embed = embedding_function(self.network, self.card.config.data)
        if frozen := self.frozen:
            return lambda images: embed(frozen.features(images).float()), self.network.embedding_dim
        return embed, self.network.embedding_dim

    def _embed(
        self, pixels: NDArray[np.uint8], space: Space, batch_size: int
    ) -> NDArray[np.float32]:
        function, _ = self._embedder(space)
        data = self.card.config.data
        result = apply_to_pixels(function, pixels, data, device=self.device, batch_size=batch_size)
        return result.cpu().numpy()

    def save(self, folder: str | Path) -> Path:
        """Write the model, its general embedding and its ONNX files to a folder; returns it."""
        path = Path(folder)
        write_card(path, self.card)
        write_weights(path, self.network, epoch=self.epochs)
        if self.has_general:
            write_general(path, self.general)
        copy_chances(self.folder, path, self.fingerprint())
        write_onnx(self, path)
        return path

    def fingerprint(self) -> str:
        """Hash of the weights: equal models give equal codes."""
        return fingerprint_of_state(self.network.state_dict())

    def general_fingerprint(self) -> str:
        """Hash of the general embedding: equal ones give equal vectors."""
        return fingerprint_of_state(self.general.state_dict())


def load_torch(folder: Path, card: ModelCard, *, device: str = "auto") -> TorchModel:
    """Load the model of a folder; the device "auto" takes CUDA where there is one."""
    network, epochs = read_network(folder, card)
    return TorchModel(network, card, device=resolve_device(device), epochs=epochs, folder=folder)


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
    batch_size: int = BATCH,
    whole_batches: bool = False,
    views: Views | None = None,
) -> Tensor:
    """Apply a function to decoded squares as encoding sees them, a batch at a time.

    The function takes pixels (B, 3, H, W) in [0, 1] on the device and returns (B, ...); the squares
    are (N, 3, S, S) uint8, on any device, N at least 1. `whole_batches` pads the last batch with
    copies, which are not in the result (N, ...): on a GPU a new shape costs seconds, for cuDNN's
    search of algorithms and for compilation. Other `views` than those of the config may take
    something else than squares.
    """
    views = views or Views(config)
    parts = []
    for start in range(0, len(pixels), batch_size):
        chunk = pixels[start : start + batch_size]
        if not isinstance(chunk, Tensor):
            chunk = torch.tensor(chunk)  # a copy: a memory-mapped cache is read-only
        chunk = chunk.to(device)
        missing = batch_size - len(chunk) if whole_batches else 0
        if missing:
            chunk = torch.cat([chunk, chunk[-1:].expand(missing, *chunk.shape[1:])])
        parts.append(function(views.encode(chunk)))
    return torch.cat(parts)[: len(pixels)]


def apply_to_images(
    function: Callable[[Tensor], Tensor],
    images: Images,
    config: DataConfig,
    *,
    device: torch.device,
) -> Tensor:
    """Decode images batch by batch, and apply a function as `apply_to_pixels` does."""
    parts = [
        apply_to_pixels(function, squares, config, device=device)
        for squares in squares_of(images, config, BATCH)
    ]
    return torch.cat(parts)


def embedding_function(network: Method, config: DataConfig) -> Callable[[Tensor], Tensor]:
    """Return a function that embeds pixels in [0, 1]; sets the network to evaluation mode."""
    network.eval()
    return lambda images: network.embed(images, mirrored=config.eval_flip)
