"""DTH (Lai et al., CVPR 2015, also DNNH): triplets of tanh codes.

L = mean over the violating triplets of a batch of max(0, |a-p|^2 - |a-n|^2 + m), divided by the
bits. The original cuts the features in one slice per bit and thresholds sigmoids; this is the form
used with ResNet-18 (one linear layer, tanh, all triplets of the batch), whose margins 8 at 16 bits
and 20 at 64 are m = 4 + bits / 4: opposite bits are 4 apart, so one bit and a sixteenth of them.
Its recipe here lowers the margin by half a bit.
"""

from torch import Tensor

from phpq.config import option
from phpq.methods._hashing import HashingMethod, batch_triplet_loss


class DTH(HashingMethod):
    """Codes that are closer to their class than to others by a margin."""

    margin_base: float = option(4.0, "0 or more")  # part of the margin that every length has
    margin_share: float = option(0.25, "0 or more")  # part that grows with the bits
    bounded = True

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the triplet loss per bit."""
        margin = self.margin_base + self.margin_share * self.bits
        return (batch_triplet_loss(outputs, labels, margin) / self.bits,)
