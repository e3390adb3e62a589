from __future__ import annotations

from phpq.evaluation.report import Figure, Headline, Note, Report, Section, Settings, Table
from phpq.reproduce.markdown import render_markdown

PNG = b"\x89PNG\r\n\x1a\n"


def test_all_blocks() -> None:
    report = Report(
        "Birds",
        (
            Section(
                "Table",
                (
                    Table(
                        ("name", "MAP", "n"),
                        (("a|b", 1.234, 5), ("c", None, 6)),
                        "Caption.",
                        1,
                    ),
                    Figure(PNG, alt="A curve", caption="Below."),
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
    assert render_markdown(report, {"A curve": "figures/a.png"}) == (
        "# Birds\n\nSummary.\n\n- MAP: **80** (good)\n- bits: **16**\n\n## Table\n\nLead.\n\n"
        "Caption.\n\n"
        "| name | MAP | n |\n| --- | ---: | ---: |\n"
        "| a\\|b | 1.23 | 5 |\n| **c** | **\N{EN DASH}** | **6** |\n\n"
        "![A curve](figures/a.png)\n\nBelow.\n\n"
        "- One.\n- Two.\n\nOne.\n\nTwo.\n\nMachine:\n\n- cpu: abacus\n"
    )
