"""The base of all shallow methods: features of a network, and codes that are fitted to them.

In: pixels, or features (N, C) that were computed before. Out: embeddings (N, D) for search. The
features are the pooled last stage of the backbone, as pretrained ("imagenet") or fine-tuned as a
classifier ("finetuned"), or the leading axes of the latter after whitening within the classes of
the training set ("discriminant"); centred by the mean of the training set, scaled to unit length.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from phpq.codes import Codebooks, FloatArray, check_embeddings, sign_codebooks
from phpq.errors import ConfigError, NotTrainedError, ShapeError
from phpq.model.general import whiten
from phpq.model.method import Learned, Method, MethodSetup, TrainingSet
from phpq.model.pooling import average_cells

Numbers = NDArray[Any]  # fits are computed in float64, buffers are float32

AXES = 64  # most discriminant axes, unless a code has more bits
SHRINK = 0.01  # of the covariance within classes towards a multiple of the identity
RANK_TOLERANCE = 1e-6  # share of the largest variance; smaller ones are rounding errors


class ShallowMethod(Method):
    """Features, and codes that `fit` finds without gradients.

    A subclass defines `fit`, which writes its persistent buffers, and `project`, which reads them.
    With cached features neither images nor the backbone are needed:

        method.fit_features(train, seed=0)
        codes = method.export().encode(method.encode_features(gallery).numpy())
    """

    fitted_last = True
    query_norm = "raw"
    mean: Tensor  # (F,) float32, of the training set's features
    discriminants: Tensor  # (C, F) of discriminant features; others are coded as they are
    fitted: Tensor  # scalar uint8: 1 after `fit`

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.backbone = setup.build_backbone(levels=1)
        self.feature_dim = self.backbone.channels[-1]
        if self.learns:
            self.classifier = nn.Linear(self.feature_dim, setup.num_classes)
        self.code_dim = self.feature_dim  # C, of what is coded
        self.reserve(mean=(self.feature_dim,))
        if setup.features == "discriminant":
            axes = max(min(AXES, setup.num_classes - 1), setup.quantizer.bits)
            self.code_dim = min(axes, self.feature_dim)
            self.reserve(discriminants=(self.code_dim, self.feature_dim))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.uint8))

    def reserve(self, **shapes: tuple[int, ...]) -> None:
        """Register persistent buffers of zeros, which `fit` fills by `store`."""
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    @property
    def learns(self) -> bool:
        """Whether the features are fine-tuned."""
        return self.setup.features != "imagenet"

    def fit(self, features: FloatArray, seed: int) -> None:
        """Fit the codes to centred features (N, C) float32 of unit length."""
        raise NotImplementedError

    def project(self, features: Tensor) -> Tensor:
        """Return the embeddings (N, D) of centred features (N, C) of unit length."""
        raise NotImplementedError

    def compress(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Average each level to one cell."""
        return average_cells(pyramid)

    def describe_features(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the features (B, F) float32 of pixels in [0, 1], neither centred nor scaled."""
        features = self._pooled(images)
        return (features + self._pooled(images.flip(-1))) / 2 if mirrored else features

    def _pooled(self, images: Tensor) -> Tensor:
        pyramid: list[Tensor] = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            return pyramid[-1].float().mean((2, 3))

    @torch.no_grad()
    def fit_features(self, features: Tensor, *, seed: int, labels: Tensor | None = None) -> None:
        """Fit mean and codes to features (N, F) float32 from `describe_features`, on any device.

        Discriminant ones need the labels (N,) int64 of the rows.
        """
        rows = check_embeddings("features", features.cpu().numpy(), self.feature_dim)
        if not len(rows):
            raise ShapeError("features has no rows; expected at least one. Give a training set.")
        self.store(mean=rows.mean(0, dtype=np.float64))
        if self.setup.features == "discriminant":
            if labels is None:
                raise ShapeError(
                    "labels is missing: discriminant features are fitted to classes. Give the "
                    "labels of the rows, or set method.features=finetuned."
                )
            axes = whiten(features.float(), labels, shrink=SHRINK)[1].T[: self.code_dim]
            self.discriminants[: len(axes)] = axes
        self.fit(self._normalised(features).cpu().numpy(), seed)
        self.store(fitted=np.ones(()))

    def encode_features(self, features: Tensor) -> Tensor:
        """Return the embeddings (N, D) float32 of features (N, F) from `describe_features`."""
        with torch.autocast(features.device.type, enabled=False):
            return self.project(self._normalised(features))

    def _normalised(self, features: Tensor) -> Tensor:
        centred = features.float().to(self.mean.device) - self.mean
        if self.setup.features == "discriminant":
            centred = centred @ self.discriminants.T
        return F.normalize(centred, dim=1)

    @torch.no_grad()
    def store(self, **fitted: Numbers) -> None:
        """Copy fitted values into persistent buffers of the same shapes."""
        for name, values in fitted.items():
            buffer = self.get_buffer(name)
            assert buffer.shape == values.shape, (name, buffer.shape, values.shape)
            buffer.copy_(torch.tensor(values))

    def complete(self, training: TrainingSet) -> None:
        """Fit the codes to the features of the training set, without augmentation."""
        mirrored = self.setup.mirrored
        training.message(f"fitting the codes of {self.setup.name}")
        features = training.apply(lambda images: self.describe_features(images, mirrored=mirrored))
        self.fit_features(features, seed=training.seed, labels=training.labels)

    def extract(self, images: Tensor) -> Tensor:
        """Return the features (B, F) float32."""
        return self.describe_features(images)

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Classify the features; there are no codes yet."""
        logits, smoothing = self.classifier(extracted), self.setup.loss.label_smoothing
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        books = self.setup.quantizer.num_codebooks
        codes = torch.zeros(len(labels), books, dtype=torch.uint8, device=labels.device)
        return Learned(loss, (), codes)

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the embeddings (B, D) float32 of pixels in [0, 1]."""
        return self.encode_features(self.describe_features(images, mirrored=mirrored))

    def codebooks(self) -> Codebooks:
        """Return the codebooks of the current buffers."""
        raise NotImplementedError

    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side; a `NotTrainedError` before the fit."""
        if not self.fitted.item():
            raise NotTrainedError(
                f"The codes of {self.setup.name!r} are not fitted: that is the last step "
                "of training. Continue the run with: phpq train --resume FOLDER"
            )
        return self.codebooks()


class ShallowHashing(ShallowMethod):
    """Shallow methods whose codes are the signs of `scores`; zero counts as positive."""

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.bits = setup.quantizer.bits
        self.embedding_dim = self.bits
        self._codebooks = sign_codebooks(self.bits)

    def check_rank(self, rank: int, of: str) -> None:
        """Raise a `ConfigError` if there are fewer directions than bits."""
        if self.bits > rank:
            raise ConfigError(
                f"{self.setup.name!r} with bits={self.bits} needs as many independent directions, "
                f"but the features of {of} have {rank}. Use fewer bits (quantizer.num_codebooks), "
                "a wider backbone or more training images."
            )

    def scores(self, features: Tensor) -> Tensor:
        """Return (N, bits) floats of centred features (N, C) of unit length."""
        raise NotImplementedError

    def project(self, features: Tensor) -> Tensor:
        """Return the signs (N, bits) as -1 and +1."""
        return torch.where(self.scores(features) >= 0, 1.0, -1.0)

    def codebooks(self) -> Codebooks:
        """Return the sign patterns."""
        return self._codebooks


class PrincipalAxes(NamedTuple):
    """The directions of largest variance."""

    mean: Numbers  # (C,) float64
    axes: Numbers  # (n, C) float64, orthonormal, largest variance first; zeros beyond the rank
    rank: int  # directions of nonzero variance, of all C


def principal_axes(features: Numbers, count: int) -> PrincipalAxes:
    """Find the `count` (at most C) principal axes of features (N, C).

    Signs are deterministic: the largest component of each axis is positive.
    """
    rows = features.astype(np.float64)
    mean = rows.mean(0)
    variances, vectors = np.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    variances, axes = variances[::-1], vectors.T[::-1][:count]
    rank = int((variances > RANK_TOLERANCE * max(variances[0], 0.0)).sum())
    largest = np.abs(axes).argmax(1)
    axes = axes * np.sign(axes[np.arange(len(axes)), largest])[:, None]
    return PrincipalAxes(mean, np.where(np.arange(len(axes))[:, None] < rank, axes, 0.0), rank)
