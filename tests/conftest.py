"""What makes all tests cheaper and nothing less tested.

One thread for every numeric library: tiny tensors gain nothing from more, and busy cores make
their barriers a hundred times slower than the work itself.
"""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
from PIL import Image

os.environ["OMP_NUM_THREADS"] = "1"
# No test asserts a time: on a busy machine one example may take a second.
hypothesis.settings.register_profile("phpq", deadline=None)
hypothesis.settings.load_profile("phpq")

Draw = Callable[[Any], bytes]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking over all imported modules again and again."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let libraries clean up at exit as they do elsewhere."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def blank_figures() -> Iterator[Draw]:
    """Make figures that are put together as ever, and saved as white sheets of the same size.

    Laying out and drawing takes as long as all the rest of a tiny run. Yields what draws.
    """
    from phpq.report import pictures

    def blank(figure: Any) -> bytes:
        buffer = io.BytesIO()
        Image.new("L", figure.canvas.get_width_height(), 255).save(buffer, "PNG")
        return buffer.getvalue()

    draw = pictures._figure_png
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "_figure_png", blank)
        yield draw


@pytest.fixture
def drawn_figures(blank_figures: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the figures of a test as users see them."""
    monkeypatch.setattr("phpq.report.pictures._figure_png", blank_figures)
