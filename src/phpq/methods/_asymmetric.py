"""Asymmetric hashing: a network encodes queries, the gallery's codes are free variables.

In: tanh outputs u of batches and the labels of the training set. Out: database codes V (N, bits) of
-1 and +1, fitted to the labels in alternation with the network, and the loss of u against all of V.

With S = 1 within a class, -r between classes (r = similar pairs / dissimilar pairs), both minimise

    L = sum_ij (<u_i, v_j> / bits - S_ij)^2 / sum_ij S_ij^2 + gamma mean (v - u)^2

which is the published loss divided by its value at u = 0, so that it is about 1 at any length and
size; a published weight of 200 is gamma = 0.2 at 32 bits and 30 images per class.
"""

from typing import cast

import torch
from torch import Tensor, nn

from phpq.codes import CodeArray, pack_signs
from phpq.methods._hashing import HashingMethod, similar_pairs
from phpq.model.method import EpochChange, MethodSetup, TrainingSet

DESCRIPTOR_LENGTH = 8.0  # norm of a centred descriptor, about


class Similarity:
    """S of all pairs of a training set, known from its labels (N,) int64 alone."""

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        sizes = torch.bincount(labels, minlength=num_classes).double()
        similar = float(sizes.square().sum())
        different = max(float(len(labels)) ** 2 - similar, 1.0)  # a single class has none
        self.labels, self.num_classes = labels, num_classes
        self.contrast = similar / different  # r, such that S sums to zero
        # Mean over i of sum_j S_ij^2.
        self.energy = (similar + self.contrast**2 * different) / len(labels)

    def rows(self, labels: Tensor) -> Tensor:
        """Return S (B, N) float32 of a batch's labels (B,) against the training set."""
        return (1 + self.contrast) * similar_pairs(labels, self.labels) - self.contrast

    def times(self, values: Tensor) -> Tensor:
        """Return S @ values (N, D) by sums over classes: S itself would hold N^2 numbers."""
        sums = values.new_zeros(self.num_classes, values.shape[1])
        sums.index_add_(0, self.labels, values)
        return (1 + self.contrast) * sums[self.labels] - self.contrast * values.sum(0)


@torch.no_grad()
def update_codes(codes: Tensor, outputs: Tensor, similarity: Similarity, *, gamma: float) -> None:
    """Minimise L over V in place, one bit of all images at a time; L never rises.

    `codes` is V (N, bits) float32 of -1 and +1, `outputs` the u (N, bits) of all training images.
    """
    bits = codes.shape[1]
    gram = outputs.T @ outputs
    gram.fill_diagonal_(0)  # the square of a bit is constant
    target = bits * similarity.times(outputs) + gamma * bits * similarity.energy * outputs
    for bit in range(bits):
        pull = target[:, bit] - codes @ gram[:, bit]
        codes[:, bit] = torch.where(pull >= 0, 1.0, -1.0)


class AsymmetricHashing(HashingMethod):
    """A hashing network whose gallery codes are learned from labels.

    The u of all images come from a buffer that training batches fill, not from an extra pass before
    each round: that would cost a third of an epoch to update values that are at most an epoch old.

    Descriptors are centred by a batch norm and scaled to one length. The best u are small (with
    many classes and few bits, about bits / classes), and features after a ReLU share a direction:
    uncentred, one step of Adam would move all u together by more than that, and V with them.
    """

    bounded = True
    centred = False  # S itself is centred: outputs of unit variance only overshoot it
    gamma: float  # weight of the distance between u and v; 0 leaves it out
    similarity: Similarity
    outputs: Tensor  # (N, bits) float32: the last u of every training image, 0 before its first
    database: Tensor  # V (N, bits) float32 of -1 and +1
    started = False

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.norm = nn.BatchNorm1d(self.descriptor_dim, affine=False)

    def standardise(self, descriptors: Tensor) -> Tensor:
        """Centre and scale (B, descriptor_dim) float32; about DESCRIPTOR_LENGTH long after it."""
        length: float = DESCRIPTOR_LENGTH / self.descriptor_dim**0.5
        return cast(Tensor, self.norm(descriptors)) * length

    def describe(self, pyramid: list[Tensor]) -> Tensor:
        """Pool the last stage and centre it."""
        return self.standardise(super().describe(pyramid))

    def start(self, training: TrainingSet) -> None:
        """Allocate u, and initialise V by one random pattern per class.

        Public implementations start from zeros, from which the network cannot learn, or from noise
        per image.
        """
        self.similarity = Similarity(training.labels, training.num_classes)
        device = training.labels.device
        self.outputs = torch.zeros(len(training.labels), self.bits, device=device)
        generator = torch.Generator().manual_seed(training.seed)
        size = (training.num_classes, self.bits)
        patterns = torch.randint(0, 2, size, generator=generator) * 2.0 - 1
        self.database = patterns.to(device)[training.labels]
        self.started = True

    def memory(self) -> dict[str, Tensor]:
        """Return u and V of all training images."""
        return {"outputs": self.outputs, "database": self.database}

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Fit V to the outputs of the last epoch, from the second on."""
        if epoch > 0:
            update_codes(self.database, self.outputs, self.similarity, gamma=self.gamma)
        return EpochChange()

    def learned_codes(self) -> CodeArray | None:
        """Return V packed, (N, bits / 8) uint8."""
        return pack_signs(self.database.cpu().numpy()) if self.started else None

    def similarity_loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Store the batch's u (B, bits), and return the first term of L, over the batch."""
        self.outputs.index_copy_(0, rows, outputs.detach())
        errors = outputs @ self.database.T / self.bits - self.similarity.rows(labels)
        return errors.square().sum(1).mean() / self.similarity.energy
