"""Plots: what was measured is in the picture, and nothing global is touched."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.report.plots import plot_curves, plot_training

ROWS: list[dict[str, Any]] = [
    {"epoch": 1, "loss": 3.0, "distinct_codes": 9, "dead_codewords": 3, "entropy_bits": 2.0},
    {"epoch": 2, "loss": float("nan"), "map": None, "learning_rate": 1e-4},
    {"epoch": 3, "loss": 1.0, "map": 70.5, "classification": 0.5, "contrastive": 0.5},
]
CURVES = {f"method {n}": {1.0: n, 10.0: n / 2, 100.0: n / 4} for n in range(1, 25)}


def curves(points: Any = CURVES, *, strong: str = "method 3", **options: Any) -> bytes:
    return plot_curves(points, title="t", labels=("N", "P"), strong=strong, **options)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Collect what is plotted: label -> its points and its look, and the axis under "axes"."""
    from matplotlib.axes import Axes

    seen: dict[str, dict[str, Any]] = {}
    plot = Axes.plot

    def spy(self: Any, x: Any, y: Any, **options: Any) -> Any:
        seen[options["label"]] = options | {"points": list(zip(x, y, strict=True))}
        seen["axes"] = {"axes": self}
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    return seen


def test_pictures_are_pngs_of_a_readable_size() -> None:
    picture = curves()
    for data in (picture, plot_training(ROWS)):
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "PNG"
            assert image.width >= 800
            assert len(image.convert("RGB").getcolors(1 << 24)) > 20  # type: ignore[arg-type]
    assert "matplotlib.pyplot" not in sys.modules
    assert curves() == picture


def test_lines_are_told_apart_and_one_stands_out(drawn: dict[str, dict[str, Any]]) -> None:
    curves()
    lines = {name: look for name, look in drawn.items() if name != "axes"}
    assert lines["method 3"]["points"] == [(1.0, 3), (10.0, 1.5), (100.0, 0.75)]
    looks = {(one["color"], one["marker"], one["linestyle"]) for one in lines.values()}
    assert len(looks) == len(CURVES)
    thick = [name for name, one in lines.items() if one["linewidth"] > 2]
    assert thick == ["method 3"]


def test_the_axis_follows_what_is_on_it(drawn: dict[str, dict[str, Any]]) -> None:
    def axes(points: dict[float, float], **options: Any) -> Any:
        curves({"a": points}, **options)
        return drawn["axes"]["axes"]

    spread = axes({1: 5, 10: 4, 100: 3})
    assert spread.get_xscale() == "log"
    assert list(spread.get_xticks()) == [1, 10, 100]
    assert axes({1: 5, 5: 4}).get_xscale() == "linear"
    assert axes({0: 5, 100: 4}).get_xscale() == "linear"  # zero has no logarithm
    assert axes({3.2: 80}, x_axis="log").get_xscale() == "log"
    many = axes({n: n for n in range(101)}, x_axis="linear", y_range=(-2, 102))
    assert many.get_ylim() == (-2, 102)
    assert drawn["a"]["markevery"][1] == 12  # about eight marks


def test_missing_and_unfinished_values_are_left_out(drawn: dict[str, dict[str, Any]]) -> None:
    plot_training(ROWS)
    assert drawn["loss"]["points"] == [(1, 3.0), (3, 1.0)]
    assert drawn["map"]["points"] == [(3, 70.5)]
    assert drawn["learning_rate"]["points"] == [(2, 1e-4)]
    assert plot_training([{"epoch": 1, "loss": 1.0}])  # a first epoch, not evaluated yet


def test_nothing_to_plot_is_refused() -> None:
    with pytest.raises(ShapeError, match="nothing to plot"):
        plot_training([])
    with pytest.raises(ShapeError, match="nothing to plot"):
        curves({})
