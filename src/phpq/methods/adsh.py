"""ADSH (Jiang and Li, AAAI 2018): the network codes queries, database codes are solved bit by bit.

    L = sum_ij (<u_i, v_j> - bits S_ij)^2 + gamma sum_i |v_i - u_i|^2,   v in {-1, 1}

with u = tanh(W norm(f)), scaled and centred as `methods._asymmetric` says. The original runs 50
rounds of three epochs over 2,000 sampled images; here a round is one epoch over all images (CUB has
few), so that every method has the same budget. Adam instead of SGD. The gallery can be searched by
V ("learned") or, like any other method's, by codes of the network ("encoded").
"""

from torch import Tensor

from phpq.config import option
from phpq.methods._asymmetric import AsymmetricHashing


class ADSH(AsymmetricHashing):
    """Asymmetric deep supervised hashing."""

    terms = ("similarity", "quantization")
    gamma: float = option(0.2, "0 or more")  # weight of the mean squared distance of u from v

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the error of all similarities to the batch, and the distance to its codes."""
        similarity = self.similarity_loss(outputs, labels, rows)
        distance = (self.database[rows] - outputs).square().mean()
        return similarity + self.gamma * distance, similarity, distance
