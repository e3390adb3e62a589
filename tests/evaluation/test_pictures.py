"""The top-10 picture: right and wrong are told apart by colour and by shape."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phpq.errors import ShapeError
from phpq.evaluation import HitRow, draw_hits, hit_rows
from phpq.index import SearchResult

GREEN, RED = (27, 138, 75), (198, 47, 59)
NAMES = ("Crow", "A_very_long_name_of_a_rather_small_bird_from_the_north", "Żółw łąkowy")


def picture(number: int) -> Image.Image:
    return Image.new(
        "L" if number % 2 else "RGBA", (40 + number, 90), 128 if number % 2 else "blue"
    )


def draw(rows: tuple[HitRow, ...], path: Path | None = None) -> Image.Image:
    data = draw_hits(rows, path, query_image=picture, gallery_image=picture, tile=64)
    assert path is None or path.read_bytes() == data
    return Image.open(io.BytesIO(data)).convert("RGB")


def count(image: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(image) == colour).all(axis=2).sum())


def test_hits_are_named_and_judged() -> None:
    result = SearchResult(
        ids=np.array([[2, 0, 1], [1, -1, -1]]), scores=np.zeros((2, 3), dtype=np.float32)
    )
    rows = hit_rows(
        result,
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
            result,
            [4],
            query_labels=np.zeros(5, dtype=np.int64),
            gallery_labels=np.zeros(3, dtype=np.int64),
            class_names=NAMES,
        )


def test_frames_follow_the_judgement(tmp_path: Path) -> None:
    names = (NAMES[0], NAMES[1], NAMES[2])
    right = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, True, True)),), tmp_path / "a.png")
    wrong = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (False, False, False)),))
    mixed = draw((HitRow(0, NAMES[0], (1, 2, 3), names, (True, False, True)),))
    assert count(right, RED) == count(wrong, GREEN) == 0
    assert count(mixed, GREEN) == pytest.approx(2 / 3 * count(right, GREEN), rel=0.01)
    assert count(mixed, RED) == pytest.approx(1 / 3 * count(wrong, RED), rel=0.01)


def test_tick_and_cross_differ_without_colour() -> None:
    from phpq.evaluation.pictures import _badge

    tick = np.asarray(_badge(20, "black", right=True))
    cross = np.asarray(_badge(20, "black", right=False))
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
    from phpq.evaluation.pictures import _font, _wrap

    font = _font(13)
    for name in (*NAMES, "Supercalifragilisticexpialidocious", "", "two words"):
        lines = _wrap(name.replace("_", " "), width=64, font=font)
        assert len(lines) <= 2
        assert all(font.getlength(line) <= 64 for line in lines)
    assert _wrap("two words", width=400, font=font) == ["two words"]
    assert _wrap("Supercalifragilisticexpialidocious", width=64, font=font)[0].endswith("…")
