"""The page of an evaluation; its parts are tested with the report, its numbers with the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finished_runs import copy_run
from phpq import api
from phpq.data import SkippedImage
from phpq.evaluation.page import build_page, score_cells
from phpq.evaluation.run import Evaluation
from phpq.model import load
from phpq.report.blocks import Figure, Note, Report, Table, render_html
from tiny_runs import tiny_birds

PNG = b"\x89PNG\r\n\x1a\n"
CURVES = (Figure(PNG, "a"), Figure(PNG, "b"))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    run = copy_run(tmp_path_factory.mktemp("runs") / "run", evaluated=False)
    return api.evaluate(load(run), tiny_birds())


def titles(page: Report) -> list[str]:
    return [section.title for section in page.sections]


def test_sections_come_only_with_something_to_say(evaluation: Evaluation) -> None:
    page = build_page(evaluation, curves=CURVES, top10=PNG)
    assert page.title == "plumage: search with 12-bit codes"
    assert "8 queries against a gallery of 24 images" in page.summary
    assert "2 bytes per image" in page.summary
    assert "The run" not in titles(page)
    assert "Images left out" not in titles(page)
    assert len(page.headlines) == 4
    render_html(page)


def test_many_images_left_out_are_counted(evaluation: Evaluation) -> None:
    many = tuple(SkippedImage(f"{i}.png", f"Cannot read '{i}.png'.") for i in range(50))
    page = build_page(replace(evaluation, skipped=many, held_out=3), curves=CURVES, top10=PNG)
    section = next(part for part in page.sections if part.title == "Images left out")
    [note] = section.blocks
    assert isinstance(note, Note)
    assert len(note.paragraphs) == 21
    assert "and 30 more" in note.paragraphs[-1]
    assert "3 images per class held out of the training split" in page.summary


def test_names_of_users_are_escaped(evaluation: Evaluation) -> None:
    page = build_page(replace(evaluation, dataset="<script>x</script>"), curves=CURVES, top10=PNG)
    assert "<script>x" not in render_html(page)


def test_what_is_served_stands_beside_the_expected_precision(evaluation: Evaluation) -> None:
    codes = replace(evaluation.codes, precision_at_1_served=0.4321, precision_at_1_by_float=0.5678)
    page = build_page(replace(evaluation, codes=codes), curves=CURVES, top10=PNG)
    table = page.sections[0].blocks[0]
    assert isinstance(table, Table)
    assert table.columns[2:] == ("MAP", "P@1", "P@1 as served", "P@1 as added", "P@10")
    assert table.rows[0][4:6] == pytest.approx((56.78, 43.21))
    bare = score_cells(replace(codes, precision_at_1_by_float=None))
    assert bare["P@1 as served"] == bare["P@1 as added"] == pytest.approx(43.21)
    assert "P@1 as served is what a user sees" in table.caption
    assert list(score_cells(codes).values()) == [*table.rows[0][2:]]
