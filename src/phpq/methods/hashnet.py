"""HashNet (Cao et al., ICCV 2017): weighted likelihood of pairs of ever sharper tanh codes.

y = tanh(beta W f), x_ij = a <y_i, y_j> with a = 10 / bits, L = log(1 + exp(x)) - s x. beta grows
from 1 to about 7, so that training ends close to signs: (1 + 50 p)^(1/2) at the share p of the run,
which is the authors' (1 + 0.005 it)^(1/2) over their 10,000 iterations, here set once an epoch.
Their weight of similar pairs (the number of classes) is the balance of both kinds of pairs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from phpq.config import RunConfig
from phpq.methods.hashing import (
    HashingMethod,
    balanced_mean,
    other_images,
    pair_likelihood,
    similar_pairs,
)
from phpq.model.method import EpochChange, TrainingSet, check_option, read_options


@dataclass(frozen=True, slots=True)
class HashNetOptions:
    """Numbers of the method.

    Attributes:
        scale: Inner product of equal codes: a = scale / bits.
        growth: beta^2 at the end of the run, less 1; 0 keeps tanh as it is.
        similar_share: Weight of the similar pairs' mean against that of the dissimilar ones.
    """

    scale: float = 10.0
    growth: float = 50.0
    similar_share: float = 0.5

    def __post_init__(self) -> None:
        check_option("hashnet", f"scale={self.scale}", "above 0", good=self.scale > 0)
        check_option("hashnet", f"growth={self.growth}", "0 or more", good=self.growth >= 0)
        share = self.similar_share
        check_option("hashnet", f"similar_share={share}", "in (0, 1)", good=0 < share < 1)


class HashNet(HashingMethod):
    """Codes learned by continuation: a tanh that turns into a sign."""

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__(config, num_classes, load_weights=load_weights)
        self.options = read_options(HashNetOptions, config.method)
        # Search takes signs, which do not depend on beta: it is not saved.
        self.register_buffer("beta", torch.ones(()), persistent=False)

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Sharpen the tanh; in place, since a captured step reads it."""
        progress = epoch / training.epochs
        cast(Tensor, self.beta).fill_((1 + self.options.growth * progress) ** 0.5)
        return EpochChange()

    def squash(self, outputs: Tensor) -> Tensor:
        """Apply the tanh of this epoch."""
        return (cast(Tensor, self.beta) * outputs).tanh()

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the pair loss over all pairs of the batch."""
        similar = similar_pairs(labels)
        products = self.options.scale / self.bits * (outputs @ outputs.T)
        pairs = pair_likelihood(products, similar)
        share = self.options.similar_share
        return (balanced_mean(pairs, similar, other_images(labels), similar_share=share),)
