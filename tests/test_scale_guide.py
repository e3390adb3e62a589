"""The guide to scale says what the formulas give for the measurements, and the formulas hold."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from phpq.index.engine import part_layout

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "scale.md"
PAGE = ROOT / "docs" / "results" / "scale.md"
DATA = ROOT / "docs" / "results" / "scale.json"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import scale_model

    return scale_model


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import render

    return render


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return content


def test_every_table_of_the_model_is_shown(pages: ModuleType) -> None:
    text = GUIDE.read_text("utf-8") + PAGE.read_text("utf-8")
    named = set(re.findall(r"<!-- table: (scale\.\w+) -->", text))
    assert named == {name for name in pages.TABLES if name.startswith("scale.")}


def test_a_price_or_a_measurement_that_changes_changes_the_guide(pages: ModuleType) -> None:
    guide = GUIDE.read_text("utf-8")
    dearer, slower = stored(), stored()
    dearer["assumed"]["gpu_machine_hour"] *= 2
    for case in slower["cases"]:
        case["mean_ms"] *= 2
    assert pages.rewrite(guide, lambda _: stored()) == guide
    assert pages.rewrite(guide, lambda _: dearer) != guide
    assert pages.rewrite(guide, lambda _: slower) != guide


def test_what_was_measured_is_what_the_formulas_are_about(model: ModuleType) -> None:
    data = stored()
    rows = {case["rows"] for case in data["cases"]}
    assert {10**6, 10**7, 10**8} <= rows
    fitted = model.CostModel.fit(data["cases"], data["m"])
    for case in data["cases"]:
        exact = part_layout(case["rows"], case["distinct"], num_codebooks=case["m"]).memory_bytes
        assert case["memory_bytes"] == exact
        where = (case["rows"], case["rows_per_class"])
        # Where more rows took less time, the longer one counts.
        assert fitted.search_ms(*where) >= 0.999 * case["mean_ms"]
        assert fitted.distinct(*where) == pytest.approx(case["distinct"], rel=0.02)
        assert fitted.memory_bytes(*where) == pytest.approx(exact, rel=0.02)
        assert exact <= fitted.most_bytes(case["rows"])


def made_up(rows: int, path: int, ms: float) -> dict[str, Any]:
    classes = rows // path if path else 0
    return {
        "rows": rows,
        "rows_per_class": path,
        "classes": classes,
        "m": 8,
        "distinct": classes * math.isqrt(path) if path else rows,
        "mean_ms": ms,
        "build_s": rows / 1e6,
    }


def test_a_gallery_that_grows_straight_is_predicted(model: ModuleType) -> None:
    def ms(rows: int, path: int) -> float:
        return 0.1 + rows / 1e6 * (0.5 if path else 2.0)

    cases = [made_up(rows, path, ms(rows, path)) for rows in (10**6, 10**7) for path in (0, 100)]
    fitted = model.CostModel.fit(cases, 8, largest=10**7)
    for path in (0, 100):
        assert fitted.search_ms(10**9, path) == pytest.approx(ms(10**9, path))
        assert fitted.build_s(10**8, path) == pytest.approx(100)
    assert fitted.distinct(10**9, 100) == pytest.approx(10**8)
    # Between codes of classes and codes that never repeat; more rows per class stay as they are.
    between = fitted.search_ms(10**8, 10)
    assert fitted.search_ms(10**8, 100) < between < fitted.search_ms(10**8, 0)
    assert fitted.search_ms(10**8, 5000) == pytest.approx(fitted.search_ms(10**8, 100))
    # Later measurements do not change what is predicted without them.
    late = [*cases, made_up(10**8, 100, 1e4)]
    again = model.CostModel.fit(late, 8, largest=10**7)
    assert again.search_ms(10**8, 100) == fitted.search_ms(10**8, 100)


def test_shards_divide_rows_and_rows_a_class(model: ModuleType) -> None:
    cases = [made_up(rows, path, rows / 1e6) for rows in (10**6, 10**7) for path in (0, 10, 1000)]
    fitted = model.CostModel.fit(cases, 8)
    whole = model.spread(fitted, 10**8, 1000, 1)
    part = model.spread(fitted, 10**8, 1000, 10, top_k=50)
    assert (part.rows, part.rows_per_class, part.merged) == (10**7, 100, 500)
    assert part.memory_bytes < whole.memory_bytes < 10 * part.memory_bytes
    assert part.search_ms == pytest.approx(10)


def test_curves_go_through_their_points_and_on(model: ModuleType) -> None:
    growth = model.Growth(((1.0, 2.0), (3.0, 6.0), (5.0, 6.0)))
    assert [growth.at(x) for x in (0.0, 1.0, 2.0, 3.0, 4.0, 9.0)] == [0, 2, 4, 6, 6, 6]
    falling = model.Growth(((1.0, 5.0), (2.0, 1.0)))
    assert falling.at(10) == 5  # noise is not a promise
    steep = model.Growth(((2.0, 2.0), (4.0, 6.0)))
    assert [steep.at(x) for x in (0.0, 1.0, 2.0, 3.0, 8.0)] == [0, 1, 2, 4, 14]
    points = [(1.0, 2.0), (10.0, 20.0), (100.0, 20.0)]
    for x, y in [*points, (3.0, 6.0), (30.0, 20.0), (1000.0, 20.0), (0.1, 0.2)]:
        assert model.interpolate(points, x) == pytest.approx(y)
