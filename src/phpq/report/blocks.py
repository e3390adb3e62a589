"""The blocks that a page is made of, and the two templates that show them.

The HTML page carries its style and its pictures inside, asks the network for nothing, follows the
reader's light or dark setting, and fits a phone. The Markdown page has the same content and links
to its pictures.
"""

from __future__ import annotations

import base64
import itertools
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phpq._version import __version__
from phpq.errors import ConfigError, FormatError
from phpq.files import write_text

Cell = str | int | float | None
_MISSING = "\N{EN DASH}"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Headline:
    """One number that the reader should see first, as "MAP at 32 bits", "80.9", "per cent"."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; numbers are set to the right, floats with two decimals, None as a dash."""

    columns: tuple[str, ...]  # the first names the rows
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""  # a sentence above the table
    strong_row: int | None = None  # index of a row to emphasise

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"The table row {row!r} has {len(row)} cells; expected {len(self.columns)}, "
                    f"one for each of {self.columns!r}."
                )


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with a caption."""

    image: bytes  # a PNG
    alt: str  # what it shows, for those who do not see it
    caption: str = ""  # a sentence below it
    wide: bool = False  # wider than the text: on a small screen it scrolls and keeps its size
    file: str = ""  # its place beside a Markdown page, which leaves out figures without one

    @property
    def data_uri(self) -> str:
        """The picture as an address that holds it."""
        if not self.image.startswith(_PNG):
            raise FormatError(
                f"The figure {self.alt!r} starts with {self.image[:16]!r}; expected a PNG. "
                "Give the bytes of the picture file."
            )
        return f"data:image/png;base64,{base64.b64encode(self.image).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class Note:
    """Paragraphs of plain text, or the points of a list."""

    paragraphs: tuple[str, ...]
    as_list: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """(name, value) pairs, folded away until asked for."""

    title: str
    items: tuple[tuple[str, str], ...]


Block = Table | Figure | Note | Settings


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence below it (the lead, may be empty) and blocks in order."""

    title: str
    blocks: tuple[Block, ...]
    lead: str = ""

    @property
    def rows(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks as they are laid out: narrow figures that follow each other share a row."""
        rows: list[tuple[Block, ...]] = []
        for shared, run in itertools.groupby(
            self.blocks, lambda block: isinstance(block, Figure) and not block.wide
        ):
            together = tuple(run)
            rows += [together] if shared else [(block,) for block in together]
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class Report:
    """The whole page; `created` is when it was measured, and None is now."""

    title: str
    sections: tuple[Section, ...]
    summary: str = ""
    headlines: tuple[Headline, ...] = ()
    created: datetime | None = None


def render_html(report: Report) -> str:
    """Return the page as HTML; all text is escaped."""
    created = report.created or datetime.now(UTC)
    return _render(
        "page.html",
        report=report,
        version=__version__,
        created_iso=created.isoformat(timespec="seconds"),
        created_text=created.strftime("%d %B %Y, %H:%M %Z").strip().rstrip(","),
    )


def render_markdown(report: Report) -> str:
    """Return the page as Markdown, for documents in git."""
    text = _render("page.md", report=report)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def write_report(path: Path, report: Report) -> None:
    """Write the HTML page in one atomic step, into a folder that is made where need be."""
    text = render_html(report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(
            f"Cannot write the report {str(path)!r}: {error.strerror}. Choose another folder."
        ) from error


def _render(template: str, **content: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("phpq.report"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["cell"] = _cell
    environment.filters["markdown_cell"] = lambda value: _cell(value, "").replace("|", r"\|")
    environment.tests["numeric"] = _is_numeric
    return environment.get_template(template).render(content)


def _is_numeric(value: Cell) -> bool:
    if isinstance(value, str):  # a figure with a sign, a deviation or a mark beside it, or none
        figure = re.match(r"[+-]?\d", value) is not None and re.search(r"[a-z]", value) is None
        return figure or value == _MISSING
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Cell, thousands: str = ",") -> str:
    if value is None:
        return _MISSING
    if isinstance(value, str):
        return value
    return f"{value:{thousands}.2f}" if isinstance(value, float) else f"{value:{thousands}}"
