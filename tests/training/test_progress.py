"""What a run says of itself on a terminal: losses, health, and a collapse while it happens."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from phpq.data import SkippedImage
from phpq.training import Reporter, TerminalReporter


def make_row(epoch: int, *, collapsing: bool = False, **more: float) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "loss": 1.2345,
        "images_per_second": 1234.5,
        "distinct_codes": 77,
        "dead_codewords": 5,
        "entropy_bits": 6.0,
        "collapsing": collapsing,
    } | more


class Screen:
    def __init__(self) -> None:
        self.output = io.StringIO()
        self.reporter = TerminalReporter(Console(file=self.output, width=200))

    @property
    def text(self) -> str:
        return self.output.getvalue()


@pytest.fixture
def screen() -> Screen:
    return Screen()


def run(reporter: Reporter, rows: list[dict[str, Any]]) -> None:
    reporter.start(done=0, epochs=len(rows), steps=2)
    for number, row in enumerate(rows):
        for step in range(2):
            reporter.step(number, step)
        reporter.epoch(row)
    reporter.finish()


def test_an_evaluated_epoch_leaves_a_line_with_everything(screen: Screen) -> None:
    run(screen.reporter, [make_row(1), make_row(2, map=71.239)])
    for part in ("epoch   2", "MAP 71.24", "loss 1.23", "1,234 img/s", "77 codes", "5 codewords"):
        assert part in screen.text
    assert "epoch   1" not in screen.text


def test_a_collapse_is_shown_once_with_what_to_do(screen: Screen) -> None:
    run(screen.reporter, [make_row(epoch, collapsing=True) for epoch in range(1, 7)])
    assert screen.text.count("The codebooks are collapsing") == 1
    assert "model.embedding_norm=batch" in screen.text.replace("\n", " ")


def test_healthy_codebooks_and_the_first_epochs_give_no_alarm(screen: Screen) -> None:
    run(screen.reporter, [make_row(1, collapsing=True), make_row(2, collapsing=True), make_row(3)])
    assert "collapsing" not in screen.text


def test_the_terms_of_the_loss_are_shown_beside_it(screen: Screen) -> None:
    run(screen.reporter, [make_row(1, map=1.0, classification=0.25, embedding=0.5)])
    assert "(classification 0.250, embedding 0.500)" in screen.text.replace("\n", " ")


def test_a_line_fits_a_narrow_terminal() -> None:
    output = io.StringIO()
    row = make_row(100, map=99.0, classification=0.25, embedding=0.5)
    run(TerminalReporter(Console(file=output, width=80)), [row])
    assert [line for line in output.getvalue().splitlines() if len(line) > 80] == []
    assert output.getvalue().count("\n") == 1


def test_a_reason_that_names_its_image_names_it_once(screen: Screen) -> None:
    screen.reporter.skipped([SkippedImage("a/1.jpg", "Cannot read the image 'a/1.jpg': no.")])
    assert screen.text == "left out: Cannot read the image 'a/1.jpg': no.\n"


def test_skipped_images_are_named_up_to_ten(screen: Screen) -> None:
    images = [SkippedImage(f"bird{i}.jpg", "truncated [file]") for i in range(13)]
    screen.reporter.skipped(images)
    assert "left out: bird0.jpg: truncated [file]" in screen.text
    assert "bird9.jpg" in screen.text
    assert "bird10.jpg" not in screen.text
    assert "and 3 more" in screen.text


def test_nothing_skipped_says_nothing(screen: Screen) -> None:
    screen.reporter.skipped([])
    assert screen.text == ""


def test_tasks_and_messages_reach_the_screen(screen: Screen) -> None:
    # Names of folders may look like the terminal's markup.
    with screen.reporter.task("decoding birds[/bold]", 10) as advance:
        advance(10, 10)
    screen.reporter.message("resuming runs/[red]birds")
    assert "resuming runs/[red]birds" in screen.text


def test_finishing_twice_or_before_the_start_is_harmless(screen: Screen) -> None:
    screen.reporter.finish()
    run(screen.reporter, [make_row(1)])
    screen.reporter.finish()


def test_the_silent_form_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    run(reporter, [make_row(3, entropy=0.0, map=1.0)])
    reporter.message("x")
    reporter.skipped([SkippedImage("a", "b")])
    with reporter.task("x", 1) as advance:
        assert advance is None
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
