"""How a run reports on itself: silently, or on a terminal with rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phpq.data import SkippedImage
from phpq.report.pictures import loss_terms

Advance = Callable[[int, int], None]


class Reporter:
    """Receives the events of a run and ignores them; subclasses override what they show."""

    def message(self, text: str) -> None:
        """Show a text."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance | None]:
        """Open a context that yields a callback (done, total), or None."""
        yield None

    def skipped(self, images: Sequence[SkippedImage]) -> None:
        """Name the images that were left out."""

    def start(self, *, done: int, epochs: int, steps: int) -> None:
        """Begin the epochs."""

    def step(self, epoch: int, number: int) -> None:
        """One step was issued."""

    def epoch(self, row: dict[str, Any]) -> None:
        """One epoch is over; `row` is what metrics.jsonl gets."""

    def finish(self) -> None:
        """The last epoch is over."""


class TerminalReporter(Reporter):
    """A live bar over the whole run and a line for every evaluated epoch, on stderr."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._latest = ""
        self._steps = 1
        self._collapse_reported = False

    def message(self, text: str) -> None:
        """Print one dim line."""
        self.console.print(text, style="dim", highlight=False, markup=False)

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        """Show a bar that goes when the task is done."""
        with self._progress() as bar:
            task = bar.add_task(escape(title), total=total, status="")
            yield lambda done, whole: bar.update(task, completed=done, total=whole)

    def skipped(self, images: Sequence[SkippedImage]) -> None:
        """Name up to ten images that were left out."""
        for image in images[:10]:
            text = image.reason if image.id in image.reason else f"{image.id}: {image.reason}"
            self.console.print(f"left out: {text}", style="yellow", markup=False, soft_wrap=True)
        if len(images) > 10:
            self.console.print(f"... and {len(images) - 10} more", style="yellow")

    def start(self, *, done: int, epochs: int, steps: int) -> None:
        """Open the bar of the run."""
        self._steps = steps
        self._bar = self._progress()
        self._bar.start()
        self._bar.add_task("training", total=epochs * steps, completed=done * steps, status="")

    def step(self, epoch: int, number: int) -> None:
        """Advance the bar."""
        assert self._bar is not None
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=epoch * self._steps + number + 1, status=self._latest)

    def epoch(self, row: dict[str, Any]) -> None:
        """Show losses, speed and the health of the codebooks; keep evaluated epochs on screen."""
        terms = ", ".join(f"{name} {row[name]:.3f}" for name in loss_terms(row))
        loss, speed = f"loss {row['loss']:.3f}", f"{row['images_per_second']:,.0f} img/s"
        health = f"{row['distinct_codes']:,} codes  {row['dead_codewords']:,} codewords unused"
        self._latest = f"{loss}  {speed}"
        if "map" in row:
            title = f"epoch {row['epoch']:>3}  MAP {row['map']:.2f}"
            whole = f"{title}  {loss}{terms and f' ({terms})'}  {speed}  {health}"
            short = f"{title}  {loss}  {speed}  {health}"
            fits = len(whole) <= self.console.width
            self.console.print(whole if fits else short, highlight=False)
        if row["collapsing"] and row["epoch"] > 2 and not self._collapse_reported:
            self._collapse_reported = True
            self.console.print(
                "The codebooks are collapsing: few codewords are in use. Centre the embeddings "
                "(model.embedding_norm=batch), start by k-means, or lower quantizer.alpha.",
                style="bold red",
            )

    def finish(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
            speed_estimate_period=300,  # a step without a GPU may take half a minute
            disable=not self.console.is_terminal,
        )
