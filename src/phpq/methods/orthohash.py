"""OrthoHash (Hoe et al., NeurIPS 2021): cosine classification against fixed random sign centres.

One loss does everything: pulling a code towards its class's centre makes codes of a class equal and
spreads classes over the cube. L = CE(s (cos(u, c) - m 1_y)), batch norm on the code, no other term.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from phpq.config import option
from phpq.methods._hashing import HashingMethod
from phpq.model.method import MethodSetup

CENTRE_SEED = 7  # the centres are part of the method, not of the run


class OrthoHash(HashingMethod):
    """Codes that lie close to the random centre of their class."""

    centred = True  # part of the method
    scale: float = option(8.0, "above 0")  # s, inverse temperature of the cosines
    margin: float = option(0.2, "in [0, 2)")  # m, taken off the cosine of the right class
    centres: Tensor  # (classes, bits) float32 of -1 and +1

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        generator = torch.Generator().manual_seed(CENTRE_SEED)
        centres = torch.randint(0, 2, (setup.num_classes, self.bits), generator=generator) * 2.0 - 1
        self.register_buffer("centres", centres)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the margin cross-entropy of the cosines to all centres."""
        cosines = F.normalize(outputs) @ F.normalize(self.centres).T
        margins = self.margin * F.one_hot(labels, self.setup.num_classes)
        return (F.cross_entropy(self.scale * (cosines - margins), labels),)
