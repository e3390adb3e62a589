"""ITQ, iterative quantization (Gong, Lazebnik, CVPR 2011): principal axes, turned towards signs.

V = centred features on the first `bits` principal axes. From a random rotation R, alternate
B = sign(V R) and the R that brings V R closest to B (Procrustes by SVD), 50 times; b = sign(V R).
Not by faiss: where V' B = U S W', its `ITQMatrix` (1.15) takes U W for U W', and its error stops
falling after a few rounds.
"""

import numpy as np
from torch import Tensor

from phpq.codes import FloatArray
from phpq.methods._shallow import Numbers, ShallowHashing, principal_axes
from phpq.model.method import MethodSetup

ROUNDS = 50


class ITQ(ShallowHashing):
    """Signs of rotated principal components."""

    centre: Tensor  # of unit features
    projection: Tensor

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.check_rank(self.code_dim, of=repr(setup.model.backbone))
        self.reserve(centre=(self.code_dim,), projection=(self.bits, self.code_dim))

    def fit(self, features: FloatArray, seed: int) -> None:
        """Find axes and rotation."""
        found = principal_axes(features, self.bits)
        self.check_rank(found.rank, of=f"{len(features)} images")
        rotation = rotate_to_signs((features - found.mean) @ found.axes.T, seed=seed)
        self.store(centre=found.mean, projection=rotation.T @ found.axes)

    def scores(self, features: Tensor) -> Tensor:
        """Return V R (N, bits)."""
        return (features - self.centre) @ self.projection.T


def rotate_to_signs(values: Numbers, *, seed: int, rounds: int = ROUNDS) -> Numbers:
    """Find the rotation R (bits, bits) that brings V (N, bits), centred, close to signs.

    The seed draws the rotation to start from; |sign(V R) - V R| falls with every round.
    """
    bits = values.shape[1]
    start = np.random.default_rng(seed).standard_normal((bits, bits))
    rotation, _ = np.linalg.qr(start)
    for _ in range(rounds):
        signs = np.where(values @ rotation >= 0, 1.0, -1.0)
        left, _, right = np.linalg.svd(values.T @ signs)  # `right` is transposed already
        rotation = left @ right
    return rotation
