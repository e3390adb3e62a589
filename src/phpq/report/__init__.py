"""Pages of one look: tables, figures and notes in, an HTML file or a Markdown text out.

`evaluate`, `demo` and `reproduce` say what their pages show; how it looks is decided here alone.
"""

from phpq.report.blocks import (
    Block,
    Cell,
    Figure,
    Headline,
    Note,
    Report,
    Section,
    Settings,
    Table,
    render_html,
    render_markdown,
    write_report,
)

__all__ = [
    "Block",
    "Cell",
    "Figure",
    "Headline",
    "Note",
    "Report",
    "Section",
    "Settings",
    "Table",
    "render_html",
    "render_markdown",
    "write_report",
]
