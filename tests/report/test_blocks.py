"""Pages: one file, escaped, self-contained, well-formed; and the same content as Markdown."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from phpq.errors import ConfigError, FormatError
from phpq.report import blocks
from phpq.report.blocks import (
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

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
EVIL = "<script>alert('1')</script> & \"quotes\""
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Outline(HTMLParser):
    """Checks that tags are closed in order, and collects them with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def full_report(text: str = "plain") -> Report:
    return Report(
        title=text,
        summary=text,
        headlines=(Headline(text, "76.2", text), Headline("MAP", "1")),
        sections=(
            Section("Results", (Table((text, "n"), ((text, 1234), (text, None)), text, 0),), text),
            Section(
                "Figures", (Figure(PNG, text, text), Figure(PNG, "b"), Figure(PNG, "c", wide=True))
            ),
            Section("Notes", (Note((text, text)), Note((text,), as_list=True))),
            Section("Settings", (Settings(text, ((text, text),)),)),
        ),
        created=datetime(2024, 5, 6, 7, 8, tzinfo=UTC),
    )


def test_every_text_is_escaped_and_every_tag_closed() -> None:
    page = render_html(full_report(EVIL))
    outline = Outline(page)
    assert outline.all("script") == []
    assert "alert('1')" not in page
    plain = Outline(render_html(full_report()))
    assert [tag for tag, _ in outline.tags] == [tag for tag, _ in plain.tags]


def test_the_page_asks_the_network_for_nothing() -> None:
    page = render_html(full_report())
    outline = Outline(page)
    assert outline.all("link") == []
    assert all(
        str(image["src"]).startswith("data:image/png;base64,") for image in outline.all("img")
    )
    assert not re.search(r"https?://|url\(|@import", page)
    policies = [m for m in outline.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert "default-src 'none'" in str(policies[0]["content"])


def test_the_page_can_be_read_without_eyes_and_on_a_phone() -> None:
    page = render_html(full_report())
    outline = Outline(page)
    assert outline.all("html") == [{"lang": "en"}]
    assert [image["alt"] for image in outline.all("img")] == ["plain", "b", "c"]
    assert any(meta.get("name") == "viewport" for meta in outline.all("meta"))
    assert "prefers-color-scheme: dark" in page
    assert {str(cell.get("scope")) for cell in outline.all("th")} == {"col", "row"}
    targets = {f"#{section['id']}" for section in outline.all("section")}
    assert {str(link["href"]) for link in outline.all("a")} == targets
    assert outline.all("time") == [{"datetime": "2024-05-06T07:08:00+00:00"}]


def test_numbers_are_formatted_and_set_to_the_right() -> None:
    table = Table(("name", "a", "b", "c"), (("x", 1234567, 1.005, None), ("y", -1, 2.0, "text")))
    page = render_html(Report("t", (Section("s", (table,)),)))
    assert '<td class="number">1,234,567</td>' in page
    assert re.search(r'<td class="number">1\.0[01]</td>', page)
    assert '<td class="number">\N{EN DASH}</td>' in page
    assert "<td>text</td>" in page
    assert 'class="strong"' not in page


def test_narrow_figures_share_a_row() -> None:
    narrow, wide = Figure(PNG, "n"), Figure(PNG, "w", wide=True)
    note = Note(("text",))
    section = Section("s", (narrow, narrow, wide, narrow, note, narrow))
    assert section.rows == ((narrow, narrow), (wide,), (narrow,), (note,), (narrow,))


def test_bad_blocks_are_refused() -> None:
    with pytest.raises(FormatError, match="The figure 'plot' starts with b'GIF89a'"):
        render_html(Report("t", (Section("s", (Figure(b"GIF89a", "plot"),)),)))
    with pytest.raises(ConfigError, match=r"row \('x',\) has 1 cells; expected 2"):
        Table(("a", "b"), (("x",),))


def test_markdown_has_all_blocks() -> None:
    report = Report(
        "Birds & <bees>",
        (
            Section(
                "Table",
                (
                    Table(
                        ("name", "MAP", "n"),
                        (("a|b", 1.234, 5678), ("c", None, 6)),
                        "Caption.",
                        1,
                    ),
                    Figure(PNG, alt="A curve", caption="Below.", file="figures/a.png"),
                    Figure(PNG, alt="No file"),
                    Note(("One.", "Two."), as_list=True),
                    Note(("One.", "Two.")),
                    Settings("Machine", (("cpu", "abacus"),)),
                ),
                lead="Lead.",
            ),
        ),
        summary="Summary.",
        headlines=(Headline("MAP", "80", "good"), Headline("bits", "16")),
    )
    assert render_markdown(report) == (
        "# Birds & <bees>\n\nSummary.\n\n- MAP: **80** (good)\n- bits: **16**\n\n"
        "## Table\n\nLead.\n\nCaption.\n\n"
        "| name | MAP | n |\n| --- | ---: | ---: |\n"
        "| a\\|b | 1.23 | 5678 |\n| **c** | **\N{EN DASH}** | **6** |\n\n"
        "![A curve](figures/a.png)\n\nBelow.\n\n"
        "- One.\n- Two.\n\nOne.\n\nTwo.\n\nMachine:\n\n- cpu: abacus\n"
    )
    bare = Report("Birds", (Section("None", ()),))
    assert render_markdown(bare) == "# Birds\n\n## None\n"


def test_writing_replaces_the_whole_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    write_report(path, full_report("first é 鳥"))
    write_report(path, full_report("second é 鳥"))
    text = path.read_text("utf-8")
    assert "second é 鳥" in text
    assert "first" not in text.split("<main>")[1]
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"Cannot write the report .*file.report\.html"):
        write_report(tmp_path / "file" / "report.html", full_report())


@pytest.mark.parametrize(
    ("cell", "numeric"),
    [
        ("79.22 \N{BLACK STAR}", True),
        ("+3.19", True),
        ("-1.0", True),
        ("\N{EN DASH}", True),
        ("\N{EN DASH} none", False),
        ("16 bits", False),
        ("GAP", False),
    ],
)
def test_figures_with_a_mark_stand_where_figures_stand(cell: str, numeric: bool) -> None:
    assert blocks._is_numeric(cell) == numeric
