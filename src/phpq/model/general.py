"""A second embedding of a trained model, for classes that it never learned.

    general = fit_general(network, config, training)     at the end of a run, in closed form
    general(images)                                      (B, E) float32 of unit length

The weights of its trunk are interpolated between the pretrained and the learned ones. Pooled
features are whitened by the covariance within the learned classes, so that variation inside a class
counts less than differences between classes. Beside them, shorter, stands what the head learned to
make of the same trunk. There is no gradient descent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.config import ModelConfig, RunConfig
from phpq.errors import DivergedError, NotTrainedError
from phpq.model.backbone import Backbone, build_backbone
from phpq.model.checkpoint import FINGERPRINT, GENERAL, fingerprint_of_state
from phpq.model.method import Method, TrainingSet
from phpq.model.network import Network, embedding_layers
from phpq.model.pooling import centre_weights, generalized_spatial_pooling
from phpq.model.weights import first_not_finite, load_matching, read_safetensors, write_safetensors

LARGEST_DIM = 4096
# Share of the mean variance that is added to each variance within classes: a small training set
# underestimates many of them, and those directions would outweigh all others. Results hardly change
# from 0.1 to 3: docs/decisions/0013.
WHITEN_SHRINK = 0.3
LEARNED_DIMS = 256  # leading axes of the learned embedding that are kept: nearly all of it
_WEIGHT = "learned"  # of the head, in the file's metadata
_BLOCK = 4096  # rows converted to float64 at once


class Pooling(NamedTuple):
    """How the maps of the trunk are pooled."""

    focus: float  # of the generalized mean: between the average and the maximum
    # Photos show their subject near the centre: places weigh less towards the border, by a Gaussian
    # of this deviation, in halves of a side.
    centre: float


PLAIN = Pooling(3.0, math.inf)  # all places alike; of models of before, whose files name none
CENTRED = Pooling(4.0, 0.65)  # how it was chosen: docs/decisions/0013


class LearnedHead(nn.Module):
    """What a network learned to make of a pyramid, on the leading axes of the training images."""

    axes: Tensor  # (D, A) float32

    def __init__(self, channels: Sequence[int], config: ModelConfig) -> None:
        super().__init__()
        self.pooling, self.transform, self.norm = embedding_layers(channels, config)
        dim = config.embedding_dim
        self.register_buffer("axes", torch.zeros(dim, min(dim, LEARNED_DIMS)))

    def embed(self, pyramid: list[Tensor]) -> Tensor:
        """Return embeddings (B, D) float32 of unit length."""
        with torch.autocast(pyramid[-1].device.type, enabled=False):
            return F.normalize(self.norm(self.transform(self.pooling(pyramid))), dim=1)

    def forward(self, pyramid: list[Tensor]) -> Tensor:
        """Return (B, A) float32."""
        return self.embed(pyramid) @ self.axes


class GeneralEmbedding(nn.Module):
    """Pixels to whitened features of a trunk, averaged with those of the mirror image.

    Beside them stand those of a learned head, `weight` times as long, if there is one.
    """

    mean: Tensor  # (F,) float32, of the training features
    projection: Tensor  # (F, E) float32

    def __init__(
        self,
        backbone: Backbone,
        pooling: Pooling = CENTRED,
        head: LearnedHead | None = None,
        weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone, self.pooling, self.head, self.weight = backbone, pooling, head, weight
        features = sum(backbone.channels[-2:])
        whitened = min(features, LARGEST_DIM)
        self.dim = whitened + (head.axes.shape[1] if head else 0)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("projection", torch.zeros(features, whitened))

    def describe(self, images: Tensor) -> Tensor:
        """Return the features (B, F) float32 of pixels (B, 3, H, W) in [0, 1], not yet whitened.

        Cached features (B, ...) of a frozen trunk hold them at their end.
        """
        return self._describe(images, self.backbone(images))

    def _describe(self, images: Tensor, pyramid: list[Tensor]) -> Tensor:
        if images.ndim == 2 and self.backbone.feature_layouts[images.shape[1]].has_deepest:
            return images[:, -len(self.mean) :].float()
        return describe_pyramid(pyramid, self.pooling, token=self.backbone.has_token)

    def describe_all(self, images: Tensor) -> Tensor:
        """Return the features and, if there is a head, what it makes of the images: (B, F + D)."""
        pyramid = self.backbone(images)
        features = self._describe(images, pyramid)
        return torch.cat([features, self.head.embed(pyramid)], 1) if self.head else features

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, E) float32 of unit length, of pixels (B, 3, H, W) in [0, 1]."""
        assert images.ndim == 4, "features have no mirror image: compute those of both views"
        return F.normalize(self.one_view(images) + self.one_view(images.flip(-1)), dim=1)

    def one_view(self, images: Tensor) -> Tensor:
        """Return (B, E) float32 of unit length, of images or features alone, without a mirror."""
        pyramid = self.backbone(images)
        features = self._describe(images, pyramid)
        with torch.autocast(images.device.type, enabled=False):  # small and sensitive
            whitened = F.normalize((features - self.mean) @ self.projection, dim=1)
            if self.head is None:
                return whitened
            return F.normalize(torch.cat([whitened, self.weight * self.head(pyramid)], 1), dim=1)


def describe_pyramid(
    pyramid: list[Tensor], pooling: Pooling = CENTRED, *, token: bool = False
) -> Tensor:
    """Return the features (B, F) float32 of the deepest levels, not yet whitened.

    Generalized means (GeM) of the last two levels, each of unit length. If the last level is a
    class token: the average of the patches, and the token, since both have negative values.
    """
    focus, centre = (1.0, math.inf) if token else pooling
    parts = []
    for level in reversed(pyramid[-2:]):
        height, width = level.shape[2:]
        weights = centre_weights(height, width, centre, device=level.device)
        parts.append(generalized_spatial_pooling(level, focus, weights=weights))
    return torch.cat([F.normalize(part, dim=1) for part in parts], 1)


@torch.no_grad()
def fit_general(network: Method, config: RunConfig, training: TrainingSet) -> GeneralEmbedding:
    """Fit the general embedding of a trained network, on the device of the labels.

    `network` is the one that is saved. All processes of a group must call this together.
    """
    training.message("fitting the general embedding")
    head = _copy_head(network, config.model)
    levels = config.model.levels if head else None
    trunk = _mixed_trunk(network.backbone, config.model, levels)
    general = GeneralEmbedding(trunk, head=head, weight=config.model.general_learned)
    general.to(training.labels.device).eval()
    rows, count = training.apply(general.describe_all), len(general.mean)
    mean, projection = whiten(rows[:, :count], training.labels)
    general.mean.copy_(mean)
    general.projection.copy_(projection)
    if head:
        axes = _principal_axes(rows[:, count:], head.axes.shape[1])
        head.axes.copy_(as_stored(axes))
    return general


def _copy_head(network: Method, config: ModelConfig) -> LearnedHead | None:
    """Return the head of a network, rounded as the file stores it; None without one."""
    if not (isinstance(network, Network) and config.general_learned):
        return None
    head, state = LearnedHead(network.backbone.channels, config), network.state_dict()
    names = (name for name in head.state_dict() if name != "axes")
    head.load_state_dict({name: as_stored(state[name]) for name in names}, strict=False)
    return head


def _principal_axes(rows: Tensor, count: int) -> Tensor:
    """Return the `count` leading principal axes (D, count) of rows (N, D), in float64."""
    rows = rows if rows.is_cuda else rows.cpu()  # some devices have no float64
    owners = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    total = _covariance(rows, rows.mean(0, keepdim=True, dtype=torch.float64), owners)
    axes: Tensor = torch.linalg.eigh(total).eigenvectors.flip(1)[:, :count]
    return axes


def frozen_features(config: ModelConfig, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the features (B, F) of the backbone before training, as `GeneralEmbedding.describe`.

    The baseline for classes that were never learned.
    """
    frozen = GeneralEmbedding(build_trunk(config, load_weights=True), PLAIN)
    return frozen.to(device).eval().describe


def _mixed_trunk(learned: Backbone, config: ModelConfig, levels: int | None = None) -> Backbone:
    """Return a backbone with `general_share` of the pretrained and the rest of learned weights."""
    share = 0.0 if config.weights == "none" else config.general_share
    trunk = build_trunk(config, load_weights=share > 0, levels=levels)
    trunk.feature_layouts = learned.feature_layouts
    state = trunk.state_dict()
    for name, value in learned.state_dict().items():
        value = value.cpu()
        if value.is_floating_point() and share:
            value = (1 - share) * value + share * state[name]
        state[name] = as_stored(value)
    trunk.load_state_dict(state)
    return trunk


def build_trunk(config: ModelConfig, *, load_weights: bool, levels: int | None = None) -> Backbone:
    """Return the backbone of a config with its deepest levels: two, unless `levels` is given."""
    levels = levels or min(2, config.levels)
    model = dataclasses.replace(config, levels=levels, rho=(1.0,) * levels, rho_mode="fixed")
    return build_backbone(model, load_weights=load_weights)


def as_stored(value: Tensor) -> Tensor:
    """Return a tensor of the trunk as the file stores it: matrices and kernels in float16."""
    return value.half() if value.is_floating_point() and value.ndim > 1 else value


def whiten(
    features: Tensor, labels: Tensor, *, shrink: float = WHITEN_SHRINK
) -> tuple[Tensor, Tensor]:
    """Return mean (F,) and projection (F, E) float32 that whiten features (N, F) within classes.

    The projection is the inverse root of the covariance within the classes of `labels` (N,) int64,
    followed by the E principal axes of the features under it. Classes of one image do not count;
    if there are no others, the covariance is that of all features.
    """
    if fault := first_not_finite({"features": features}):
        raise DivergedError(
            f"The general embedding cannot be fitted: {fault}. Train again with a lower "
            "training.learning_rate or with training.precision=float32."
        )
    device = features.device if features.is_cuda else torch.device("cpu")  # some have no float64
    rows, owners = features.to(device), labels.to(device)
    sizes = owners.bincount()
    sums = torch.zeros(len(sizes), rows.shape[1], dtype=torch.float64, device=device)
    for block in _blocks(len(rows)):
        sums.index_add_(0, owners[block], rows[block].double())
    mean = sums.sum(0) / len(rows)
    total = _covariance(rows, mean[None], torch.zeros_like(owners))
    within = total.clone()
    several = sizes[owners] > 1
    if several.any():
        centres = sums / sizes.clamp(min=1)[:, None]
        within = _covariance(rows[several], centres, owners[several])
    ridge = shrink * float(within.diagonal().mean()) or 1.0  # constant features stay as they are
    within.diagonal().add_(ridge)
    # A Cholesky root (within = L L^T), then principal axes: projection^T within projection is the
    # identity, projection^T total projection diagonal.
    root = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(root, total, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.T, upper=False)
    axes = torch.linalg.eigh((whitened + whitened.T) / 2).eigenvectors.flip(1)[:, :LARGEST_DIM]
    projection = torch.linalg.solve_triangular(root.T, axes, upper=True)
    return mean.float(), projection.float()


def _covariance(rows: Tensor, centres: Tensor, owners: Tensor) -> Tensor:
    """Return the (F, F) float64 covariance of rows (N, F) around centres[owners]."""
    width = rows.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64, device=rows.device)
    for block in _blocks(len(rows)):
        apart = rows[block].double() - centres[owners[block]]
        total += apart.T @ apart
    return total / len(rows)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def write_general(folder: Path, general: GeneralEmbedding) -> None:
    """Write the general embedding into a model folder."""
    state = general.state_dict()
    trunk = {
        name: as_stored(value)
        for name, value in state.items()
        if name.startswith(("backbone.", "head."))
    }
    facts = {"format": "phpq", FINGERPRINT: fingerprint_of_state(state)}
    facts |= {name: repr(value) for name, value in general.pooling._asdict().items()}
    if general.head:
        facts[_WEIGHT] = repr(general.weight)
    write_safetensors(folder / GENERAL, state | trunk, facts)


def read_general(folder: Path, config: ModelConfig) -> GeneralEmbedding:
    """Read the general embedding of a model folder, on the CPU."""
    path = folder / GENERAL
    if not path.is_file():
        raise NotTrainedError(
            f"{str(folder)!r} has no general embedding (no {GENERAL}): version 0.1.0 made none, or "
            "the run was stopped before its end. Add it, without training again, with: "
            f"phpq train --resume {folder}"
        )
    tensors, facts = read_safetensors(path)
    told = {name: float(facts[name]) for name in Pooling._fields if name in facts}
    pooling, weight = PLAIN._replace(**told), float(facts.get(_WEIGHT, 0))
    trunk = build_trunk(config, load_weights=False, levels=config.levels if weight else None)
    head = LearnedHead(trunk.channels, config) if weight else None
    general = GeneralEmbedding(trunk, pooling, head, weight)
    load_matching(general, tensors, path)
    return general.eval().requires_grad_(False)
