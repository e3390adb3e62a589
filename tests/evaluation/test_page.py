"""The page of an evaluation; its parts are tested with the report, its numbers with the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from finished_runs import copy_run
from phpq import api
from phpq.data import SkippedImage
from phpq.evaluation.page import Pictures, build_page
from phpq.evaluation.report import Note, Report, render_report
from phpq.evaluation.run import Evaluation
from phpq.model import load
from tiny_runs import tiny_birds

PNG = b"\x89PNG\r\n\x1a\n"
PICTURES = Pictures(precision_at=PNG, precision_recall=PNG, top10=PNG)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    run = copy_run(tmp_path_factory.mktemp("runs") / "run", evaluated=False)
    return api.evaluate(load(run), tiny_birds())


def titles(page: Report) -> list[str]:
    return [section.title for section in page.sections]


def test_sections_come_only_with_something_to_say(evaluation: Evaluation) -> None:
    page = build_page(evaluation, PICTURES)
    assert page.title == "plumage: search with 12-bit codes"
    assert "8 queries against a gallery of 24 images" in page.summary
    assert "2 bytes an image" in page.summary
    assert "The run" not in titles(page)
    assert "Images left out" not in titles(page)
    assert len(page.headlines) == 4
    render_report(page)


def test_many_images_left_out_are_counted(evaluation: Evaluation) -> None:
    many = tuple(SkippedImage(f"{i}.png", f"Cannot read '{i}.png'.") for i in range(50))
    page = build_page(replace(evaluation, skipped=many, held_out=3), PICTURES)
    section = next(part for part in page.sections if part.title == "Images left out")
    [note] = section.blocks
    assert isinstance(note, Note)
    assert len(note.paragraphs) == 21
    assert "and 30 more" in note.paragraphs[-1]
    assert "3 images a class held out of the training split" in page.summary


def test_names_of_users_are_escaped(evaluation: Evaluation, tmp_path: Path) -> None:
    page = build_page(replace(evaluation, dataset="<script>x</script>"), PICTURES)
    assert "<script>x" not in render_report(page)
