"""CSQ (Yuan et al., CVPR 2020): every bit is classified towards the fixed centre of its class.

L = BCE of (tanh(u) + 1) / 2 against the centre's bits, plus lambda (|tanh(u)| - 1)^2. Centres are
rows of a Hadamard matrix and their negatives where these suffice (a power of two bits, at most
2 bits classes), otherwise random codes with as many ones as zeros. The authors draw the latter
blindly; here each is the farthest from those before it, among 64 draws per class: 200 blind draws
of 16 bits hold near twins, whose classes no network could tell apart.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg import hadamard
from torch import Tensor

from phpq.codes import FloatArray
from phpq.config import option
from phpq.methods._hashing import HashingMethod, quantization_gap
from phpq.model.method import MethodSetup

CENTRE_SEED = 7  # the centres are part of the method, not of the run
DRAWS_PER_CENTRE = 64  # random codes among which the centres are chosen


class CSQ(HashingMethod):
    """Codes that match the centre of their class bit by bit."""

    terms = ("centre", "quantization")
    quantization: float = option(1e-4, "0 or more")  # lambda, weight of the mean (|tanh(u)| - 1)^2
    centres: Tensor  # (classes, bits) float32 of -1 and +1

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        centres = torch.from_numpy(hash_centres(setup.num_classes, self.bits))
        self.register_buffer("centres", centres, persistent=False)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Classify every bit; (tanh(u) + 1) / 2 is the sigmoid of 2 u, stable for large u."""
        wanted = (self.centres[labels] + 1) / 2
        centre = F.binary_cross_entropy_with_logits(2 * outputs, wanted)
        gap = quantization_gap(outputs.tanh())
        return centre + self.quantization * gap, centre, gap


def hash_centres(num_classes: int, bits: int) -> FloatArray:
    """Return centres (num_classes, bits) float32 of -1 and +1, far from each other; bits even."""
    if bits & (bits - 1) == 0 and num_classes <= 2 * bits:
        rows = hadamard(bits)
        return np.concatenate([rows, -rows])[:num_classes].astype(np.float32)
    generator = np.random.default_rng(CENTRE_SEED)
    balanced = np.repeat(np.array([-1.0, 1.0], np.float32), bits // 2)
    draws = generator.permuted(np.tile(balanced, (DRAWS_PER_CENTRE * num_classes, 1)), axis=1)
    chosen = [0]
    nearest = draws @ draws[0]  # bits - 2 * distance to the nearest centre
    crowd = np.ones(len(draws))  # how many centres are as near as that
    while len(chosen) < num_classes:
        chosen.append(int(np.argmin(num_classes * nearest + crowd)))  # crowd < num_classes
        products = draws @ draws[chosen[-1]]
        crowd = np.where(products > nearest, 1, crowd + (products == nearest))
        nearest = np.maximum(nearest, products)
    return draws[chosen]
