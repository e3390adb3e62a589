"""Plots: what was measured is in the picture, and nothing global is touched."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phpq.errors import ConfigError, ShapeError
from phpq.evaluation import (
    LabelledEmbeddings,
    RetrievalScores,
    evaluate_float,
    plot_precision_at,
    plot_precision_recall,
    plot_training,
)


@pytest.fixture(scope="module")
def scores() -> dict[str, RetrievalScores]:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    result = {}
    for name, noise in (("clean & <plain>", 1.0), ("noisy", 4.0)):
        vectors = np.eye(3)[labels] + noise * rng.standard_normal((60, 3))
        data = LabelledEmbeddings(vectors.astype(np.float32), labels)
        result[name] = evaluate_float(data, data, sub_vectors=1)
    return result


ROWS: list[dict[str, Any]] = [
    {"epoch": 1, "loss": 3.0, "distinct_codes": 9, "dead_codewords": 3, "entropy_bits": 2.0},
    {"epoch": 2, "loss": float("nan"), "map": None, "learning_rate": 1e-4},
    {"epoch": 3, "loss": 1.0, "map": 70.5, "classification": 0.5, "contrastive": 0.5},
]


def test_pictures_are_pngs_of_a_readable_size(scores: dict[str, RetrievalScores]) -> None:
    for data in (plot_precision_at(scores), plot_precision_recall(scores), plot_training(ROWS)):
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "PNG"
            assert image.width >= 800
            assert len(image.convert("RGB").getcolors(1 << 24)) > 20  # type: ignore[arg-type]
    assert "matplotlib.pyplot" not in sys.modules


def test_the_path_decides_the_format(scores: dict[str, RetrievalScores], tmp_path: Path) -> None:
    data = plot_precision_recall(scores, tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_bytes() == data
    assert b"<svg" in data
    assert plot_precision_at(scores, image_format="svg").startswith(b"<?xml")
    with pytest.raises(ConfigError, match=r"Cannot draw a 'gif' picture\. Use one of: png, svg"):
        plot_precision_at(scores, tmp_path / "curve.gif")


def test_missing_and_unfinished_values_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, list[tuple[float, float]]] = {}
    plot = Axes.plot

    def spy(self: Any, x: Any, y: Any, **options: Any) -> Any:
        drawn[options["label"]] = list(zip(x, y, strict=True))
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    plot_training(ROWS)
    assert drawn["loss"] == [(1, 3.0), (3, 1.0)]
    assert drawn["map"] == [(3, 70.5)]
    assert drawn["learning_rate"] == [(2, 1e-4)]
    assert plot_training([{"epoch": 1, "loss": 1.0}])  # a first epoch, not evaluated yet


def test_nothing_to_plot_is_refused() -> None:
    with pytest.raises(ShapeError, match="nothing to plot"):
        plot_training([])
    with pytest.raises(ShapeError, match="nothing to plot"):
        plot_precision_at({})
