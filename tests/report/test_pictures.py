"""The top-10 picture: right and wrong are told apart by colour and by shape."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.report.pictures import (
    HitRow,
    _font,
    _wrap,
    draw_grid,
    draw_hits,
    hit_rows,
    plot_curves,
    plot_training,
    spread_queries,
)

pytestmark = pytest.mark.usefixtures("drawn_figures")

GREEN, RED = (27, 138, 75), (198, 47, 59)
NAMES = ("Crow", "A_very_long_name_of_a_rather_small_bird_from_the_north", "Żółw łąkowy")


def picture(number: int) -> Image.Image:
    return Image.new(
        "L" if number % 2 else "RGBA", (40 + number, 90), 128 if number % 2 else "blue"
    )


def draw(rows: tuple[HitRow, ...]) -> Image.Image:
    data = draw_hits(rows, query_image=picture, gallery_image=picture, tile=64)
    return Image.open(io.BytesIO(data)).convert("RGB")


def count(image: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(image) == colour).all(axis=2).sum())


def test_hits_are_named_and_judged() -> None:
    ids = np.array([[2, 0, 1], [1, -1, -1]])
    rows = hit_rows(
        ids,
        [4, 0],
        query_labels=np.array([1, 0, 0, 0, 2]),
        gallery_labels=np.array([0, 1, 2]),
        class_names=NAMES,
    )
    assert rows[0] == HitRow(
        4, NAMES[2], (2, 0, 1), (NAMES[2], NAMES[0], NAMES[1]), (True, False, False)
    )
    assert rows[1].hits == (1,)
    assert rows[1].right == (True,)
    with pytest.raises(ShapeError, match="1 queries but 2 rows of hits"):
        hit_rows(
            ids,
            [4],
            query_labels=np.zeros(5, dtype=np.int64),
            gallery_labels=np.zeros(3, dtype=np.int64),
            class_names=NAMES,
        )


def test_frames_follow_the_judgement() -> None:
    names = (NAMES[0], NAMES[1], NAMES[2])
    right = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, True, True)),))
    wrong = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (False, False, False)),))
    mixed = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, False, True)),))
    assert count(right, RED) == count(wrong, GREEN) == 0
    assert count(mixed, GREEN) == pytest.approx(2 / 3 * count(right, GREEN), rel=0.01)
    assert count(mixed, RED) == pytest.approx(1 / 3 * count(wrong, RED), rel=0.01)


def test_tick_and_cross_differ_without_colour() -> None:
    def badge(right: bool) -> Any:
        picture = draw((HitRow(0, "Crow", (1,), ("Crow",), (right,)),)).convert("1")
        row = np.asarray(picture)[37:101]  # of the image, below the numbers
        return row[:16, -16 - 16 : -16]

    tick, cross = badge(True), badge(False)
    assert tick.any()
    assert (tick != cross).mean() > 0.1


def test_rows_may_have_fewer_hits_than_others() -> None:
    full = HitRow(0, "Crow", (1, 2), ("Crow", "Crow"), (True, True))
    short = HitRow(1, "Crow", (), (), ())
    one, two = draw((full,)), draw((full, short))
    assert two.width == one.width
    assert two.height > one.height
    with pytest.raises(ShapeError, match="no queries to draw"):
        draw(())


def test_long_names_fit_their_tile() -> None:
    font = _font(13)
    for name in (*NAMES, "Supercalifragilisticexpialidocious", "", "two words"):
        lines = _wrap(name.replace("_", " "), width=64, font=font)
        assert len(lines) <= 2
        assert all(font.getlength(line) <= 64 for line in lines)
    assert _wrap("two words", width=400, font=font) == ["two words"]
    assert _wrap("Supercalifragilisticexpialidocious", width=64, font=font)[-1].endswith("…")


def test_queries_are_spread_over_the_classes() -> None:
    labels = np.array([4, 4, 7, 9, 9, 7, 30])
    assert spread_queries(labels, 8) == [0, 2, 3, 6]  # the first of each class
    assert spread_queries(labels, 2) == [0, 6]
    assert spread_queries(labels, 1) == [0]


def test_a_grid_is_row_by_row() -> None:
    tiles = [[Image.new("RGB", (8, 8), c) for c in row] for row in (("red", "blue"), ("lime",))]
    picture = Image.open(io.BytesIO(draw_grid(tiles, gap=2)))
    assert picture.size == (18, 18)
    corners = [picture.getpixel(at) for at in ((0, 0), (10, 0), (0, 10), (10, 10))]
    assert corners == [(255, 0, 0), (0, 0, 255), (0, 255, 0), (255, 255, 255)]


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
