"""LSH (Datar et al., SCG 2004; Charikar, STOC 2002): the sides of random hyperplanes.

b = sign(W x), W (bits, C) of normal random numbers, x centred: nothing is learned but the mean. The
paper's citation is the p-stable scheme floor((a.x + b) / w); the comparisons of this field, ours
too, use signs. These are random projections: `faiss.IndexLSH` draws a random rotation, which allows
no more bits than dimensions. Results depend on the draw: average over several seeds.
"""

import numpy as np
from torch import Tensor

from phpq.codes import FloatArray
from phpq.methods._shallow import ShallowHashing
from phpq.model.method import MethodSetup


class LSH(ShallowHashing):
    """Signs of random projections."""

    projection: Tensor

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.reserve(projection=(self.bits, self.code_dim))

    def fit(self, features: FloatArray, seed: int) -> None:
        """Draw the hyperplanes, which do not depend on the features."""
        generator = np.random.default_rng(seed)
        self.store(projection=generator.standard_normal((self.bits, self.code_dim)))

    def scores(self, features: Tensor) -> Tensor:
        """Return W x."""
        return features @ self.projection.T
