"""The blocks of a report in, a Markdown page with the same content out, for documents in git."""

from __future__ import annotations

from collections.abc import Mapping

from phpq.evaluation.report import Block, Figure, Note, Report, Table

_DASH = "\N{EN DASH}"


def render_markdown(report: Report, pictures: Mapping[str, str]) -> str:
    """Write a report as Markdown.

    Args:
        report: As for `render_report`.
        pictures: Alternative text of a figure -> where its file is, as a link; a figure without a
            file is left out.
    """
    parts = [f"# {report.title}", report.summary]
    parts += [_headline_list(report)] if report.headlines else []
    for section in report.sections:
        parts += [f"## {section.title}", section.lead]
        parts += [_block(block, pictures) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline_list(report: Report) -> str:
    return "\n".join(
        f"- {line.label}: **{line.value}**" + (f" ({line.note})" if line.note else "")
        for line in report.headlines
    )


def _block(block: Block, pictures: Mapping[str, str]) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        place = pictures.get(block.alt)
        text = f"![{block.alt}]({place})" if place else ""
        return "\n\n".join(part for part in (text, block.caption if place else "") if part)
    if isinstance(block, Note):
        return (
            "\n".join(f"- {line}" for line in block.paragraphs)
            if block.as_list
            else "\n\n".join(block.paragraphs)
        )
    lines = "\n".join(f"- {name}: {value}" for name, value in block.items)
    return f"{block.title}:\n\n{lines}"


def _table(table: Table) -> str:
    aligned = ["---"] + ["---:"] * (len(table.columns) - 1)
    lines = [_line(table.columns), _line(aligned)]
    for number, row in enumerate(table.rows):
        cells = [_cell(value) for value in row]
        if number == table.strong_row:
            cells = [f"**{cell}**" for cell in cells]
        lines.append(_line(cells))
    text = "\n".join(lines)
    return f"{table.caption}\n\n{text}" if table.caption else text


def _line(cells: object) -> str:
    assert isinstance(cells, list | tuple)
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return _DASH
    return f"{value:.2f}" if isinstance(value, float) else str(value)
