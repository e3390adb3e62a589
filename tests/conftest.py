"""One thread for every numeric library: tiny tensors gain nothing from more, and busy cores make
their barriers a hundred times slower than the work itself.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
