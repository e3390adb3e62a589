"""The base of all deep hashing methods: a backbone, one linear layer, and the signs of its outputs.

In: pixels. Out: u (B, bits) floats while training, their signs for search. A method adds its loss.
"""

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.codes import Codebooks, sign_codebooks
from phpq.config import option
from phpq.model.method import Learned, Method, MethodSetup, pack_bits
from phpq.model.network import squared_distances
from phpq.model.pooling import average_cells

HEAD_DEVIATION = 0.01  # of the normal distribution that the hash layer starts from (HashNet)
MARGIN_BASE, MARGIN_SHARE = 4.0, 0.25  # of triplets: 8 at 16 bits, 20 at 64, as in DTH


class HashLayer(nn.Linear):
    """A linear layer whose outputs are centred and scaled over the batch, bit by bit.

    Pooled ReLU features share one large direction: uncentred, all images would get the same sign in
    most bits, and keep it. PHPQ centres its embeddings for the same reason, by the same setting
    (`model.embedding_norm`).
    """

    def __init__(self, inputs: int, bits: int, *, centred: bool) -> None:
        super().__init__(inputs, bits)
        nn.init.normal_(self.weight, std=HEAD_DEVIATION)
        nn.init.zeros_(self.bias)
        self.norm: nn.Module = nn.BatchNorm1d(bits) if centred else nn.Identity()

    def forward(self, descriptors: Tensor) -> Tensor:
        """Return (B, bits) of (B, inputs)."""
        return cast(Tensor, self.norm(super().forward(descriptors)))


class HashingMethod(Method):
    """Global average pooling of the last stage, then a linear hash layer.

    A subclass gives `loss`; it may override `squash` (the activation while training), `describe`
    together with `levels`, `views` or `descriptor_dim`, and `outputs_of`.
    """

    query_norm = "raw"
    levels = 1  # deepest stages that the backbone returns
    views = 1  # pooled last stages that are concatenated in a descriptor
    bounded = False  # whether u is a tanh
    sees_places = False  # whether more of a level matters than its average
    # Whether outputs are centred over the batch; None: as `model.embedding_norm` says.
    centred: ClassVar[bool | None] = None

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.bits = setup.quantizer.bits
        self.embedding_dim = self.bits
        self._codebooks = sign_codebooks(self.bits)
        self.backbone = setup.build_backbone(self.levels)
        centred = self.centred
        if centred is None:
            centred = setup.model.embedding_norm == "batch"
        self.hash = HashLayer(self.descriptor_dim, self.bits, centred=centred)

    @property
    def descriptor_dim(self) -> int:
        """Length of what `describe` returns."""
        return self.views * self.backbone.channels[-1]

    def describe(self, pyramid: list[Tensor]) -> Tensor:
        """Pool the feature maps, shallow first, into (B, descriptor_dim) float32."""
        return pyramid[-1].float().mean((2, 3))

    def squash(self, outputs: Tensor) -> Tensor:
        """Apply the activation of the hash layer to (B, bits)."""
        return outputs.tanh() if self.bounded else outputs

    def outputs_of(self, pyramid: list[Tensor]) -> Tensor:
        """Return u (B, bits) float32 of the feature maps, shallow first."""
        return self.squash(self.hash(self.describe(pyramid)))

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the loss and its parts (one for each of `terms`) of u (B, bits) float32."""
        raise NotImplementedError

    def compress(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Average each level to one cell, unless places matter."""
        return pyramid if self.sees_places else average_cells(pyramid)

    def extract(self, images: Tensor) -> Tensor:
        """Return u (B, bits) float32."""
        pyramid = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.outputs_of(pyramid)

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Return the method's loss and the signs of the batch."""
        total, *parts = self.loss(extracted, labels, rows)
        return Learned(total, tuple(parts), pack_bits(extracted))

    def bit_values(self, images: Tensor) -> Tensor:
        """Return the floats (B, bits) whose signs are the code of pixels in [0, 1]."""
        return self.extract(images)

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the signs (B, bits) as -1 and +1; zero counts as positive."""
        outputs = self.bit_values(images)
        if mirrored:
            outputs = outputs + self.bit_values(images.flip(-1))
        return torch.where(outputs >= 0, 1.0, -1.0)

    def export(self) -> Codebooks:
        """Return the sign patterns."""
        return self._codebooks


class ClassifiedHashing(HashingMethod):
    """The base of FPH, SRLH and CFH: tanh codes, learned by a classifier and triplets.

        L = CE(W s + c, y) + w_t mean max(0, |a-p|^2 - |a-n|^2 + m) / bits + w_q mean (|b| - 1)^2

    where s lies between b and its signs, by the option `signs`. W is unconstrained, so that 16 bits
    can separate 200 classes; outputs are centred by the hash layer, so that no bit saturates before
    it has learned. A subclass defines the descriptor.
    """

    bounded = True
    terms: ClassVar[tuple[str, ...]] = ("classification", "triplet", "quantization")
    classification: float = option(1.0, "0 or more")  # weight of the cross-entropy of the code
    smoothing: float = option(0.1, "in [0, 1)")  # share of its target spread over all classes
    triplet: float = option(1.0, "0 or more")  # w_t, weight of the triplets
    quantization: float = option(0.1, "0 or more")  # w_q, weight of the distance from signs
    signs: float = option(0.0, "in [0, 1]")  # share of signs, not tanh values, in its input

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.classifier = nn.Linear(self.bits, setup.num_classes)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of b (B, bits) and its three terms."""
        logits = self.classifier(towards_signs(outputs, self.signs))
        classification = F.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        margin = MARGIN_BASE + MARGIN_SHARE * self.bits
        triplet = batch_triplet_loss(outputs, labels, margin) / self.bits
        gap = quantization_gap(outputs)
        total = self.classification * classification + self.triplet * triplet
        return total + self.quantization * gap, classification, triplet, gap


def towards_signs(outputs: Tensor, share: float) -> Tensor:
    """Move u (B, bits) by a share towards its signs, with a straight-through gradient."""
    signs = torch.where(outputs >= 0, 1.0, -1.0)
    return outputs + share * (signs - outputs).detach()


def similar_pairs(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Return (B, N) float32: 1 where two images have the same class."""
    return (labels[:, None] == (labels if others is None else others)[None, :]).float()


def balanced_mean(
    values: Tensor, similar: Tensor, counted: Tensor | None = None, *, similar_share: float = 0.5
) -> Tensor:
    """Average (B, N) pair losses with a fixed weight of similar pairs, by default a half.

    With 200 classes one pair in 200 is similar: a plain mean would neglect it. `similar` and
    `counted` are (B, N) of 0 and 1; pairs that are not counted have no weight.
    """
    counted = torch.ones_like(values) if counted is None else counted
    positive, negative = similar * counted, (1 - similar) * counted
    alike = (values * positive).sum() / positive.sum().clamp(min=1)
    unlike = (values * negative).sum() / negative.sum().clamp(min=1)
    return similar_share * alike + (1 - similar_share) * unlike


def other_images(labels: Tensor) -> Tensor:
    """Return (B, B) float32: 0 on the diagonal, the pairs of an image with itself, else 1."""
    return 1 - torch.eye(len(labels), device=labels.device)


def triplet_mask(labels: Tensor) -> Tensor:
    """Return (B, P, N) float32: 1 where P is another image of B's class, and N of another class."""
    similar = similar_pairs(labels)
    return (similar * other_images(labels))[:, :, None] * (1 - similar)[:, None, :]


def pair_likelihood(products: Tensor, similar: Tensor) -> Tensor:
    """Return log(1 + exp(x)) - s x of (B, N) products x and similarities s of 0 and 1.

    Computed as a softplus of x or of -x: a difference of large numbers would lose digits.
    """
    return F.softplus((1 - 2 * similar) * products)


def quantization_gap(outputs: Tensor) -> Tensor:
    """Return the mean of (|u| - 1)^2: how far outputs are from signs."""
    return (outputs.abs() - 1).square().mean()


def batch_triplet_loss(outputs: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Average max(0, |a-p|^2 - |a-n|^2 + margin) over the violating triplets of (B, bits)."""
    distances = squared_distances(outputs)
    hinge = F.relu(distances[:, :, None] - distances[:, None, :] + margin)  # (B, P, N)
    wanted = triplet_mask(labels) * (hinge > 0)
    return (hinge * wanted).sum() / wanted.sum().clamp(min=1)
