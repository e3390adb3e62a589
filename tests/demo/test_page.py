"""What the page says follows from the figures, whoever wins."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from phpq.demo import QUICK, DemoResult
from phpq.demo import page as demo_page
from phpq.demo.page import build_page, draw_family
from phpq.evaluation.history import EpochScore, EpochScores
from phpq.evaluation.metrics import CodeHealth, RetrievalScores
from phpq.evaluation.run import Evaluation
from phpq.evaluation.timing import SearchTiming
from phpq.report.blocks import Figure, Table, render_html


def scores(method: str, value: float, bits: int) -> RetrievalScores:
    health = CodeHealth(24, 7, (3, 3), (1.5, 2.5), 0.25)
    return RetrievalScores(
        method=method,
        map=value,
        map_range=(value, value),
        map_at_r=value,
        recall_at={1: value},
        precision_at={1: value, 10: value / 2},
        precision_at_1_served=value / 3,
        pr_curve={0.0: value, 1.0: value},
        queries=8,
        excluded=0,
        gallery=24,
        bits=bits,
        health=None if method in ("float", "soft") else health,
    )


def evaluation(bits: int, learned: float, fitted: float, ratio: float) -> Evaluation:
    last = EpochScore(2, 100 * learned)
    return Evaluation(
        dataset="plumage",
        source="plumage:species=4",
        held_out=0,
        bits=bits,
        settings={"training": {"epochs": 2}},
        epochs_trained=2,
        fingerprint="abc",
        codes=scores("codes", learned, bits),
        float_search=scores("float", 0.6, 32 * 256),
        pq=scores("pq", fitted, bits),
        soft=scores("soft", 0.65, 32 * 256),
        timing=SearchTiming(0.001, 0.001 * ratio, 1000, 24, 7, 10, 5, 1),
        epochs=EpochScores(last, last, 1),
        skipped=(),
    )


def measured(
    learned: float, fitted: float, *, quick: bool = False, ratio: float = 3.0
) -> DemoResult:
    return DemoResult(
        folder=Path("my demo"),
        recipe=QUICK,
        quick=quick,
        seed=0,
        source="plumage:species=4",
        class_names=QUICK.draw(0).class_names,
        seconds=99.6,
        evaluations={bits: evaluation(bits, learned, fitted, ratio) for bits in (16, 32)},
    )


def page(result: DemoResult) -> str:
    picture = draw_family(QUICK.draw(0))
    report = build_page(result, family=picture, hits=picture, training={16: picture, 32: picture})
    return render_html(replace(report, created=datetime(2030, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    ("learned", "fitted", "expected"),
    [(0.9, 0.85, "5.0 points of MAP above"), (0.8, 0.85, "5.0 points of MAP below")],
)
def test_the_comparison_is_what_was_measured(learned: float, fitted: float, expected: str) -> None:
    assert expected in page(measured(learned, fitted))


def test_a_quick_run_is_called_one() -> None:
    assert "A QUICK RUN" in page(measured(0.9, 0.8, quick=True))
    assert "A QUICK RUN" not in page(measured(0.9, 0.8))


def test_slower_codes_are_not_hidden() -> None:
    assert "too small a gallery" in page(measured(0.9, 0.8, ratio=0.5))
    assert "too small a gallery" not in page(measured(0.9, 0.8))


def test_each_length_stands_beside_the_float_search_that_it_was_timed_with() -> None:
    result = measured(0.9, 0.8)
    slow = replace(result.evaluations[16], timing=SearchTiming(0.02, 0.05, 1000, 24, 7, 10, 5, 1))
    result = replace(result, evaluations={**result.evaluations, 16: slow})
    report = build_page(result, family=b"", hits=b"", training={})
    (speed,) = (section for section in report.sections if section.title == "Speed")
    (table,) = (block for block in speed.blocks if isinstance(block, Table))
    expected = [("PHPQ, 32 bits", 1.0, 3.0, 3.0), ("PHPQ, 16 bits", 20.0, 50.0, 2.5)]
    for row, wanted in zip(table.rows, expected, strict=True):
        assert row == (wanted[0], *(pytest.approx(value) for value in wanted[1:]))


def test_every_way_to_search_is_in_the_tables() -> None:
    text = page(measured(0.9, 0.8))
    for name in ("PHPQ", "post-hoc PQ"):
        assert all(f"{name}, {bits} bits" in text for bits in (16, 32))
    assert all(f"float search, {bits}-bit model" in text for bits in (16, 32))
    assert "phpq search &#39;my demo/runs/32&#39;" in text  # quoted for the shell
    assert "P@1 as served" in text
    assert '<td class="number">30.00</td>' in text


def test_the_family_is_one_species_per_row() -> None:
    birds = QUICK.draw(0)
    picture = Image.open(io.BytesIO(draw_family(birds)))
    step = QUICK.size + 6
    assert picture.size == (QUICK.images * step - 6, QUICK.species * step - 6)
    third = picture.crop((0, 2 * step, QUICK.size, 2 * step + QUICK.size))
    assert third.tobytes() == birds.train.read(2 * QUICK.images).tobytes()


def test_one_curve_of_float_search_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def draw(ways: dict[str, RetrievalScores]) -> tuple[Figure, ...]:
        seen.extend(ways)
        return ()

    monkeypatch.setattr(demo_page, "score_figures", draw)
    build_page(measured(0.9, 0.8), family=b"", hits=b"", training={})
    learned, fitted = (
        [f"{name}, {bits} bits" for bits in (32, 16)] for name in ("PHPQ", "post-hoc PQ")
    )
    assert seen == [*learned, *fitted, "float search, 32-bit model"]
