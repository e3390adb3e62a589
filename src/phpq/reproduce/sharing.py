"""How the cells of a grid share one GPU: what each process may take of it."""

from __future__ import annotations

import os

# Of a GPU's multiprocessors, in per cent, summed over the processes. Eight that may take 30 each
# disturb each other less than eight that may take all: 20,000 images/s against 17,900 (DSH with
# ResNet-18, 224 pixels, batches of 64, on one H200: docs/results/grid.md).
SHARES = 240
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def gpu_share(processes: int) -> dict[str, str]:
    """Return what a worker's environment says about its share of a GPU under MPS.

    It bounds a process even when the others have ended; without MPS it has no effect. What the user
    has set stays.
    """
    if processes <= 1 or MPS_SHARE in os.environ:
        return {}
    return {MPS_SHARE: str(min(100, max(1, SHARES // processes)))}
