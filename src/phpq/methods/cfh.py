"""CFH (IEEE Signal Processing Letters 27, 2020): class semantics find the region that is coded.

Our reconstruction; its text was not read. Quoted elsewhere: the correlation of semantic information
and visual features localises regions. Ours: each class c has an embedding E_c; with features F at
each place of the last stage,

    A = softmax over places of s cos(E_c, F),   b = tanh(FC([sum A F, mean F]))

where c is the label while learning and, for want of one, the likeliest class in search. E is also
the classifier of mean F, so that there is a likeliest class. The loss of b is that of
`phpq.methods.classified`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.config import RunConfig
from phpq.methods.classified import ClassifiedHashing, CodeOptions
from phpq.model.method import Learned, check_option, pack_bits


@dataclass(frozen=True, slots=True)
class CFHOptions(CodeOptions):
    """Numbers of the method, besides those of its loss.

    Attributes:
        focus: s, how sharply a class looks at what resembles it.
        semantics: Weight of the classification by which classes learn their embeddings.
    """

    focus: float = 10.0
    semantics: float = 1.0

    method: ClassVar[str] = "cfh"

    def __post_init__(self) -> None:
        CodeOptions.__post_init__(self)
        for name in ("focus", "semantics"):
            value = getattr(self, name)
            check_option("cfh", f"{name}={value}", "0 or more", good=value >= 0)


class CFH(ClassifiedHashing):
    """Codes of the region that a class points at, and of the whole image."""

    terms = ("classification", "triplet", "quantization", "semantics")
    option_type = CFHOptions
    options: CFHOptions

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__(config, num_classes, load_weights=load_weights)
        self.semantics = nn.Linear(self.backbone.channels[-1], num_classes)

    @property
    def descriptor_dim(self) -> int:
        """Length of region and image together."""
        return 2 * self.backbone.channels[-1]

    def extract(self, images: Tensor) -> Tensor:
        """Return the features F of every place, (B, C, h * w) float32."""
        pyramid: list[Tensor] = self.backbone(images)
        return pyramid[-1].float().flatten(2)

    def class_scores(self, features: Tensor) -> Tensor:
        """Return (B, classes): how well the whole image fits each class."""
        return cast(Tensor, self.semantics(features.mean(2)))

    def attention(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return A (B, h * w), which sums to 1, of F as classes (B,) int64 look at it."""
        embeddings = F.normalize(self.semantics.weight[classes])
        cosines = (embeddings[:, None] @ F.normalize(features, dim=1)).squeeze(1)
        return (self.options.focus * cosines).softmax(1)

    def code(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return b (B, bits) of F as classes (B,) look at it."""
        region = (features @ self.attention(features, classes)[:, :, None]).squeeze(2)
        return self.squash(self.hash(torch.cat([region, features.mean(2)], 1)))

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Learn the code of the labelled class, and which class that is."""
        outputs = self.code(extracted, labels)
        total, *parts = self.loss(outputs, labels, rows)
        semantics = F.cross_entropy(
            self.class_scores(extracted), labels, label_smoothing=self.options.smoothing
        )
        total = total + self.options.semantics * semantics
        return Learned(total, (*parts, semantics), pack_bits(outputs))

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the signs (B, bits) of the code as the likeliest class looks at the image."""
        outputs = self._encode(images)
        if mirrored:
            outputs = outputs + self._encode(images.flip(-1))
        return torch.where(outputs >= 0, 1.0, -1.0)

    def _encode(self, images: Tensor) -> Tensor:
        features = self.extract(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.code(features, self.class_scores(features).argmax(1))
