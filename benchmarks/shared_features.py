"""A run whose early stages are frozen, measured without a GPU: all such runs share their features.

    model, backbone = shared_model(RUN, FOLDER)
    evaluate_model(model, dataset, frozen=backbone)

Learned, general and frozen embeddings of an image pass the same early stages. These are computed
once for the image and once for its mirror image, in bfloat16 where the processor has it, and kept
in FOLDER for other runs; what a run has learned goes on from there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.codes import FloatArray, Space, normalise_sub_vectors
from phpq.data.batches import Views
from phpq.evaluation.embedding import Embed
from phpq.model.checkpoint import read_card
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.general import PLAIN, GeneralEmbedding, build_trunk
from phpq.model.retrieval import TorchModel, load_torch

BATCH = 32  # images per forward pass


class SharedModel(TorchModel):
    """A model on the CPU that embeds by the features of its frozen part."""

    parts: tuple[FrozenPart, FrozenPart]  # of images, and of their mirror images
    kept: Path

    def _embed(
        self, pixels: NDArray[np.uint8], space: Space, batch_size: int
    ) -> NDArray[np.float32]:
        if space == "learned":
            return self.apply(self.network.embed, pixels)
        views = [self.apply(self.general.one_view, pixels, part) for part in self.parts]
        return normalise_sub_vectors(views[0] + views[1], 1)

    @torch.no_grad()
    def apply(
        self,
        function: Callable[[Tensor], Tensor],
        pixels: NDArray[np.uint8],
        part: FrozenPart | None = None,
    ) -> FloatArray:
        """Return the results (N, ...) of a function of features, float32."""
        part = part or self.parts[0]
        rows, found = self._features(pixels, part), list[Tensor]()
        for start in range(0, len(rows), BATCH):
            chunk = torch.tensor(rows[start : start + BATCH]).float()
            with torch.autocast("cpu", torch.bfloat16, enabled=part.half):
                found.append(function(chunk).float())
        return torch.cat(found).numpy()

    def _features(self, pixels: NDArray[np.uint8], part: FrozenPart) -> NDArray[np.float16]:
        """Return the features (N, F) of decoded squares, computed or read."""
        made_of = part.fingerprint.encode() + pixels.tobytes()
        file = self.kept / f"{hashlib.blake2b(made_of, digest_size=16).hexdigest()}.npy"
        if not file.is_file():
            views, parts = Views(self.card.config.data), list[Tensor]()
            for start in range(0, len(pixels), BATCH):
                squares = torch.tensor(pixels[start : start + BATCH])
                parts.append(part.features(views.encode(squares)))
            self.kept.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(f".{os.getpid()}.tmp")
            with partial.open("wb") as stream:
                np.save(stream, torch.cat(parts).numpy())
            partial.replace(file)
        rows: NDArray[np.float16] = np.load(file, mmap_mode="r")
        return rows


def shared_model(run: Path, kept: Path) -> tuple[SharedModel, Embed]:
    """Return a run that learned a part of its network, and its backbone of before as `Embed`."""
    card, cpu = read_card(run), torch.device("cpu")
    plain = load_torch(run, card, device="cpu")
    model = SharedModel(plain.network, card, device=cpu, epochs=plain.epochs, folder=run)
    part = freeze_network(model.network, card.config)
    model.parts, model.kept = (part, replace(part, mirrored=True)), kept
    before = GeneralEmbedding(build_trunk(card.config.model, load_weights=True), PLAIN).eval()
    for backbone in (model.network.backbone, model.general.backbone, before.backbone):
        backbone.feature_layouts = model.network.backbone.feature_layouts
        backbone.to(memory_format=torch.channels_last)
    return model, lambda pixels: model.apply(before.describe, pixels)
