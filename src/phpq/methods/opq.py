"""OPQ, optimized product quantization (Ge, He, Ke, Sun, CVPR 2013): PQ after a fitted rotation.

Alternates product quantization of R x and the R that brings the rows closest to their codewords
(`faiss.OPQMatrix`). The features are first reduced to `pca_dim` principal axes: with some thousand
training images a rotation of all of them overfits, and the rest is noise to L2 anyway. The search
is that of PQ.
"""

import numpy as np
from torch import Tensor

from phpq.codes import FloatArray
from phpq.config import option
from phpq.methods._shallow import Numbers, principal_axes
from phpq.methods.pq import PQ
from phpq.model.method import MethodSetup


class OPQ(PQ):
    """Nearest centroids of the blocks of a rotated feature."""

    # Principal axes that are kept, at most; rounded down to a multiple of M.
    pca_dim: float = option(128, "a whole number from 1")
    centre: Tensor  # of unit features
    rotation: Tensor

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        total = self.num_codebooks * self.sub_dim
        self.reserve(centre=(self.code_dim,), rotation=(total, self.code_dim))

    def choose_sub_dim(self) -> int:
        """Return the length of a block: as many axes as fit, but at least one per codebook."""
        return max(1, min(int(self.pca_dim), self.code_dim) // self.num_codebooks)

    def transform(self, features: Tensor) -> Tensor:
        """Reduce and rotate centred features (N, C) of unit length to (N, M sub_dim)."""
        return (features - self.centre) @ self.rotation.T

    def fit(self, features: FloatArray, seed: int) -> None:
        """Find axes, rotation and codewords."""
        total = self.num_codebooks * self.sub_dim
        found = principal_axes(features, min(total, self.code_dim))
        axes = np.zeros((total, self.code_dim))
        axes[: len(found.axes)] = found.axes
        rows = ((features - found.mean) @ axes.T).astype(np.float32)
        self.store(centre=found.mean, rotation=self._rotation(rows, seed) @ axes)
        super().fit(features, seed)

    def _rotation(self, rows: FloatArray, seed: int) -> Numbers:
        """Return the (total, total) matrix that suits product quantization of (N, total) rows."""
        import faiss

        total, size = rows.shape[1], self.codebook_size
        if len(rows) <= size:  # every row becomes a codeword: any rotation is perfect
            return np.eye(total)
        matrix = faiss.OPQMatrix(total, self.num_codebooks)
        matrix.max_train_points = len(rows)
        quantizer = faiss.ProductQuantizer(total, self.num_codebooks, size.bit_length() - 1)
        quantizer.cp.seed = seed
        quantizer.cp.min_points_per_centroid = 1  # no warning: small galleries are our case
        matrix.pq = quantizer
        matrix.train(rows)
        rotation: Numbers = faiss.vector_to_array(matrix.A).reshape(total, total)
        return rotation
