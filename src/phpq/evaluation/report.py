"""One self-contained `report.html`: headline figures, tables, figures and notes in, a file out.

The page carries its style and its pictures inside, asks the network for nothing, follows the
reader's light or dark setting, and fits a phone. Every command that reports uses these blocks.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from phpq.errors import ConfigError, FormatError

Cell = str | int | float | None
_MISSING = "\N{EN DASH}"

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"<?xml", "image/svg+xml"),
    (b"<svg", "image/svg+xml"),
)


@dataclass(frozen=True, slots=True)
class Headline:
    """One number that the reader should see first.

    Attributes:
        label: What it is, as in "MAP at 32 bits".
        value: The number as it should be printed.
        note: A few words beside it; may be empty.
    """

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column names the rows.

    Attributes:
        columns: Headings.
        rows: A tuple of cells each; numbers are set to the right, floats with two decimals,
            None as a dash.
        caption: A sentence above the table; may be empty.
        strong_row: Index of a row to emphasise.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    strong_row: int | None = None

    kind = "table"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"The table row {row!r} has {len(row)} cells; expected {len(self.columns)}, "
                    f"one for each of {self.columns!r}."
                )


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with a caption.

    Attributes:
        image: The bytes of a PNG, JPEG or SVG.
        alt: What it shows, for those who do not see it.
        caption: A sentence below it.
        wide: Wider than the text: on a small screen it scrolls sideways and keeps its size.
    """

    image: bytes
    alt: str
    caption: str = ""
    wide: bool = False

    kind = "figure"

    @property
    def data_uri(self) -> str:
        """The picture as an address that holds it."""
        start = self.image.lstrip()[:16]
        for signature, media_type in _SIGNATURES:
            if start.startswith(signature):
                return f"data:{media_type};base64,{base64.b64encode(self.image).decode('ascii')}"
        raise FormatError(
            f"The figure {self.alt!r} starts with {start!r}; expected a PNG, JPEG or SVG. "
            "Give the bytes of the picture file."
        )


@dataclass(frozen=True, slots=True)
class Note:
    """Paragraphs of plain text.

    Attributes:
        paragraphs: Shown one below the other.
        as_list: Show them as a list instead.
    """

    paragraphs: tuple[str, ...]
    as_list: bool = False

    kind = "note"


@dataclass(frozen=True, slots=True)
class Settings:
    """Names and values, folded away until asked for.

    Attributes:
        title: What they are settings of.
        items: (name, value) pairs.
    """

    title: str
    items: tuple[tuple[str, str], ...]

    kind = "settings"


Block = Table | Figure | Note | Settings


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it.

    Attributes:
        title: The heading.
        blocks: In order.
        lead: A sentence below the heading; may be empty.
    """

    title: str
    blocks: tuple[Block, ...]
    lead: str = ""

    @property
    def rows(self) -> tuple[tuple[Block, ...], ...]:
        """The blocks as they are laid out: narrow figures that follow each other share a row."""
        rows: list[tuple[Block, ...]] = []
        for block in self.blocks:
            if rows and _shares_row(rows[-1][-1]) and _shares_row(block):
                rows[-1] = (*rows[-1], block)
            else:
                rows.append((block,))
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class Report:
    """The whole page.

    Attributes:
        title: Of the page and of the browser's tab.
        sections: In order.
        summary: A sentence or two below the title.
        headlines: Numbers at the top.
        created: When it was measured; None is now.
    """

    title: str
    sections: tuple[Section, ...]
    summary: str = ""
    headlines: tuple[Headline, ...] = ()
    created: datetime | None = None


def render_report(report: Report) -> str:
    """Return the page as HTML; all text is escaped."""
    import jinja2

    from phpq._version import __version__

    source = resources.files("phpq.evaluation").joinpath("templates", "report.html.j2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = _cell
    environment.tests["numeric"] = _is_numeric
    created = report.created or datetime.now(UTC)
    return environment.from_string(source.read_text("utf-8")).render(
        report=report,
        version=__version__,
        created_iso=created.isoformat(timespec="seconds"),
        created_text=created.strftime("%d %B %Y, %H:%M %Z").strip().rstrip(","),
    )


def write_report(path: Path, report: Report) -> None:
    """Write the page; a reader sees the old file or the new one, never half of it.

    Args:
        path: The .html file; its folder is made where it does not exist.
        report: What it shows.
    """
    text = render_report(report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=path.parent)
        partial = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            partial.chmod(0o644)  # mkstemp makes it private; a report is for others too
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot write the report {str(path)!r}: {error.strerror}. Choose another folder."
        ) from error


def _shares_row(block: Block) -> bool:
    return isinstance(block, Figure) and not block.wide


def _is_numeric(value: Cell) -> bool:
    if isinstance(value, str):  # a figure with a sign, a deviation or a mark beside it, or none
        figure = re.match(r"[+-]?\d", value) is not None and re.search(r"[a-z]", value) is None
        return figure or value == _MISSING
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Cell) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else value
