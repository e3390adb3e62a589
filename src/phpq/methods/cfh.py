"""CFH (IEEE Signal Processing Letters 27, 2020): class semantics find the region that is coded.

Our reconstruction; its text was not read. Quoted elsewhere: the correlation of semantic information
and visual features localises regions. Ours: each class c has an embedding E_c; with features F at
each place of the last stage,

    A = softmax over places of s cos(E_c, F),   b = tanh(FC([sum A F, mean F]))

where c is the label in training, and the class of the highest score in search, since there is no
label. E is also the classifier of mean F, which gives these scores. The loss of b is that of
`ClassifiedHashing`.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.config import option
from phpq.methods._hashing import ClassifiedHashing
from phpq.model.method import Learned, MethodSetup, pack_bits


class CFH(ClassifiedHashing):
    """Codes of the region that a class points at, and of the whole image."""

    views = 2  # region and image
    sees_places = True
    terms = ("classification", "triplet", "quantization", "semantics")
    focus: float = option(10.0, "0 or more")  # s, how sharply a class looks at what resembles it
    # Weight of learning the class embeddings.
    semantics_weight: float = option(1.0, "0 or more", name="semantics")

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.semantics = nn.Linear(self.backbone.channels[-1], setup.num_classes)

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
        return (self.focus * cosines).softmax(1)

    def code(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return b (B, bits) of F as classes (B,) look at it."""
        region = (features @ self.attention(features, classes)[:, :, None]).squeeze(2)
        return self.squash(self.hash(torch.cat([region, features.mean(2)], 1)))

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Learn the code of the labelled class, and which class that is."""
        outputs = self.code(extracted, labels)
        total, *parts = self.loss(outputs, labels, rows)
        scores, smoothing = self.class_scores(extracted), self.smoothing
        semantics = F.cross_entropy(scores, labels, label_smoothing=smoothing)
        total = total + self.semantics_weight * semantics
        return Learned(total, (*parts, semantics), pack_bits(outputs))

    def bit_values(self, images: Tensor) -> Tensor:
        """Return b (B, bits) as the likeliest class looks at the image."""
        features = self.extract(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.code(features, self.class_scores(features).argmax(1))
