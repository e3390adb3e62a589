"""PQ, product quantization (Jegou, Douze, Schmid, TPAMI 2011): k-means in each of M blocks.

Search orders by sum_m |q_m - c_m|^2 between a float query and coded rows. That is an inner product:
(q_m, 1).(c, -|c|^2 / 2) = (|q_m|^2 - |q_m - c|^2) / 2, largest for the nearest codeword, so that
embeddings carry a one, and codewords an offset, at the end of each block. Where M does not divide
the features, zeros are appended. faiss finds the codewords.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from phpq.codes import Codebooks, FloatArray
from phpq.index import fit_pq
from phpq.methods._shallow import ShallowMethod
from phpq.model.method import MethodSetup


class PQ(ShallowMethod):
    """Nearest centroids of the blocks of a feature."""

    codewords: Tensor  # (M, K, sub_dim) float32

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.num_codebooks = setup.quantizer.num_codebooks
        self.codebook_size = setup.quantizer.codebook_size
        self.sub_dim = self.choose_sub_dim()
        self.embedding_dim = self.num_codebooks * (self.sub_dim + 1)
        self.reserve(codewords=(self.num_codebooks, self.codebook_size, self.sub_dim))

    def choose_sub_dim(self) -> int:
        """Return the length of a block, before the one is appended."""
        return -(-self.code_dim // self.num_codebooks)

    def transform(self, features: Tensor) -> Tensor:
        """Bring centred features (N, C) of unit length to (N, M sub_dim)."""
        return F.pad(features, (0, self.num_codebooks * self.sub_dim - self.code_dim))

    def fit(self, features: FloatArray, seed: int) -> None:
        """Find the codewords of the transformed features."""
        rows = self.transform(torch.from_numpy(features).to(self.mean.device)).cpu().numpy()
        books, size = self.num_codebooks, self.codebook_size
        words, _ = fit_pq(np.ascontiguousarray(rows), books, codebook_size=size, seed=seed)
        self.store(codewords=words)

    def project(self, features: Tensor) -> Tensor:
        """Return the blocks (N, M (sub_dim + 1)), each with a one at its end."""
        blocks = self.transform(features).view(-1, self.num_codebooks, self.sub_dim)
        return F.pad(blocks, (0, 1), value=1.0).flatten(1)

    def codebooks(self) -> Codebooks:
        """Return the codewords (M, K, sub_dim + 1), each with its offset at the end."""
        words = self.codewords.double().cpu().numpy()
        offsets = -np.square(words).sum(2, keepdims=True) / 2
        return Codebooks(np.concatenate([words, offsets], 2).astype(np.float32), unit=False)
