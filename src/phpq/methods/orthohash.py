"""OrthoHash (Hoe et al., NeurIPS 2021): cosine classification against fixed random sign centres.

One loss does everything: pulling a code towards its class's centre makes codes of a class equal and
spreads classes over the cube. L = CE(s (cos(u, c) - m 1_y)), batch norm on the code, no other term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from phpq.config import RunConfig
from phpq.methods.hashing import HashingMethod
from phpq.model.method import check_option, read_options

CENTRE_SEED = 7  # the centres are part of the method, not of the run


@dataclass(frozen=True, slots=True)
class OrthoHashOptions:
    """Numbers of the method.

    Attributes:
        scale: s, inverse temperature of the cosines.
        margin: m, taken off the cosine of the right class.
    """

    scale: float = 8.0
    margin: float = 0.2

    def __post_init__(self) -> None:
        check_option("orthohash", f"scale={self.scale}", "above 0", good=self.scale > 0)
        check_option("orthohash", f"margin={self.margin}", "in [0, 2)", good=0 <= self.margin < 2)


class OrthoHash(HashingMethod):
    """Codes that lie close to the random centre of their class."""

    centred = True  # part of the method

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__(config, num_classes, load_weights=load_weights)
        self.options = read_options(OrthoHashOptions, config.method)
        generator = torch.Generator().manual_seed(CENTRE_SEED)
        centres = torch.randint(0, 2, (num_classes, self.bits), generator=generator) * 2.0 - 1
        self.register_buffer("centres", centres)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the margin cross-entropy of the cosines to all centres."""
        cosines = F.normalize(outputs) @ F.normalize(cast(Tensor, self.centres)).T
        margins = self.options.margin * F.one_hot(labels, self.num_classes)
        return (F.cross_entropy(self.options.scale * (cosines - margins), labels),)
