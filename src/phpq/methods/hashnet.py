"""HashNet (Cao et al., ICCV 2017): weighted likelihood of pairs of ever sharper tanh codes.

y = tanh(beta W f), x_ij = a <y_i, y_j> with a = 10 / bits, L = log(1 + exp(x)) - s x. beta grows
from 1 to about 7, so that training ends close to signs: (1 + 50 p)^(1/2) at the share p of the run,
which is the authors' (1 + 0.005 it)^(1/2) over their 10,000 iterations, here set once per epoch.
Their weight of similar pairs (the number of classes) is the balance of both kinds of pairs here.
"""

import torch
from torch import Tensor

from phpq.config import option
from phpq.methods._hashing import (
    HashingMethod,
    balanced_mean,
    other_images,
    pair_likelihood,
    similar_pairs,
)
from phpq.model.method import EpochChange, MethodSetup, TrainingSet


class HashNet(HashingMethod):
    """Codes learned by continuation: a tanh that turns into a sign."""

    scale: float = option(10.0, "above 0")  # inner product of equal codes: a = scale / bits
    growth: float = option(50.0, "0 or more")  # beta^2 at the end of the run, less 1
    similar_share: float = option(0.5, "in (0, 1)")  # weight of the similar pairs' mean
    beta: Tensor  # scalar

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        # Search takes signs, which do not depend on beta: it is not saved.
        self.register_buffer("beta", torch.ones(()), persistent=False)

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Sharpen the tanh; in place, since a captured step reads it."""
        progress = epoch / training.epochs
        self.beta.fill_((1 + self.growth * progress) ** 0.5)
        return EpochChange()

    def squash(self, outputs: Tensor) -> Tensor:
        """Apply the tanh of this epoch."""
        return (self.beta * outputs).tanh()

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the pair loss over all pairs of the batch."""
        similar = similar_pairs(labels)
        products = self.scale / self.bits * (outputs @ outputs.T)
        pairs = pair_likelihood(products, similar)
        share = self.similar_share
        return (balanced_mean(pairs, similar, other_images(labels), similar_share=share),)
