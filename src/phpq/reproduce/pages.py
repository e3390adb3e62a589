"""Finished cells in; a JSON file, a Markdown page and an HTML page of every table and figure out.

table1-cub200.json  table1-cub200.md     of each target
table1-cub200.html                       of all that one command asked for
figures/*.png
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phpq.data import Dataset
from phpq.files import read_json, write_bytes, write_json, write_text
from phpq.report.blocks import Figure, Headline, Report, render_markdown, write_report
from phpq.reproduce.figures import (
    Made,
    alpha_figure,
    efficiency_figure,
    precision_figures,
    time_searches,
    top10_figure,
)
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.sections import table_section
from phpq.reproduce.store import Store
from phpq.reproduce.tables import Records, build_table

NOTES = "notes.json"  # words of people: {"dsh": "why it differs", "table1": "..."}


def write_pages(
    plan: GridPlan, records: Records, store: Store, *, dataset: Dataset | None, word: str
) -> tuple[dict[str, dict[str, Any]], tuple[Path, ...]]:
    """Write everything that is made of finished cells.

    Args:
        plan: What was asked for.
        records: Of the finished cells.
        store: Of the grid.
        dataset: With its images, for pictures; None if they are not here.
        word: The target as it was asked for: names the HTML page.

    Returns:
        Target -> the content of its JSON file; and the pages.
    """
    path = store.folder / NOTES
    notes = read_json(path, remedy="Correct or remove it.") if path.is_file() else {}
    made = {target: _make(target, plan, records, store, dataset, notes) for target in plan.targets}
    name, data, pages = plan.subject.name, {}, []
    (store.folder / "figures").mkdir(parents=True, exist_ok=True)
    for target, (content, section) in made.items():
        for block in section.blocks:
            if isinstance(block, Figure):
                write_bytes(store.folder / block.file, block.image)
        page = store.folder / f"{target}-{name}.md"
        report = Report(f"{name}: {section.title[0].lower()}{section.title[1:]}", (section,))
        write_text(page, render_markdown(report))
        pages.append(page)
        if content is not None:
            data[target] = content
            write_json(page.with_suffix(".json"), content)
    whole = Report(
        title=f"{name}: the paper's evaluation, ours beside theirs",
        sections=tuple(section for _, section in made.values()),
        summary="Every number of ours is from a run on the same data, with the same backbone and "
        "as many epochs; the last epoch counts. Methods differ by their recipes: deep ones other "
        "than PHPQ may spend a share of their epochs on fine-tuning the backbone, and have rates "
        "and batches of their own. Each record holds all settings.",
        headlines=_headlines(data.get("table1")),
    )
    html = store.folder / f"{word}-{name}.html"
    write_report(html, whole)
    return data, (html, *pages)


def _make(
    target: str,
    plan: GridPlan,
    records: Records,
    store: Store,
    dataset: Dataset | None,
    notes: Mapping[str, Any],
) -> Made:
    if target == "pn-curves":
        return precision_figures(plan, records)
    if target == "efficiency":
        return efficiency_figure(plan, time_searches(plan, records, store))
    if target == "top10":
        return top10_figure(plan, records, store, dataset)
    table = build_table(plan, target, records)
    section = table_section(table, {name: str(text) for name, text in notes.items()})
    if target == "alpha":
        section = replace(section, blocks=(*alpha_figure(plan, table), *section.blocks))
    return table, section


def _headlines(table: Mapping[str, Any] | None) -> tuple[Headline, ...]:
    lines = []
    for bits, standing in ({} if table is None else table["standing"]).items():
        if standing["phpq"] is not None:
            note = "the best row" if standing["phpq_is_best"] else f"best: {standing['best']}"
            lines.append(Headline(f"PHPQ, {bits} bits", f"{standing['phpq']:.2f}", note))
    return tuple(lines)
