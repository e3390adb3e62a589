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
from phpq.report.blocks import (
    Block,
    Figure,
    Headline,
    Note,
    Report,
    Section,
    Table,
    render_markdown,
    write_report,
)
from phpq.report.plots import plot_curves
from phpq.reproduce.efficiency import time_searches
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import SPEED_UP
from phpq.reproduce.rows import RECONSTRUCTED, TABLES
from phpq.reproduce.sections import TITLES, table_section
from phpq.reproduce.store import Store
from phpq.reproduce.tables import Records, build_table
from phpq.reproduce.top10 import draw_top10

NOTES = "notes.json"  # words of people: {"dsh": "why it differs", "table1": "..."}

Made = tuple[dict[str, Any] | None, Section]  # the content of a JSON file, and what a page shows


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
    made: dict[str, Made] = {}
    path = store.folder / NOTES
    notes = read_json(path, remedy="Correct or remove it.") if path.is_file() else {}
    for target in plan.targets:
        if target in TABLES:
            table = build_table(plan, target, records)
            section = table_section(table, {name: str(text) for name, text in notes.items()})
            if target == "alpha":
                section = replace(section, blocks=(*_alpha_figure(plan, table), *section.blocks))
            made[target] = (table, section)
        elif target == "pn-curves":
            made[target] = _curves(plan, records)
        elif target == "efficiency":
            made[target] = _efficiency(plan, time_searches(plan, records, store))
        else:
            made[target] = _top10(plan, records, store, dataset)
    data = {target: content for target, (content, _) in made.items() if content is not None}
    sections = {target: section for target, (_, section) in made.items()}
    return data, _write(data, sections, plan, store, word)


def _write(
    data: Mapping[str, dict[str, Any]],
    sections: Mapping[str, Section],
    plan: GridPlan,
    store: Store,
    word: str,
) -> tuple[Path, ...]:
    name, pages = plan.subject.name, []
    (store.folder / "figures").mkdir(parents=True, exist_ok=True)
    for target, section in sections.items():
        for block in section.blocks:
            if isinstance(block, Figure):
                write_bytes(store.folder / block.file, block.image)
        page = store.folder / f"{target}-{name}.md"
        report = Report(f"{name}: {section.title[0].lower()}{section.title[1:]}", (section,))
        write_text(page, render_markdown(report))
        pages.append(page)
        if target in data:
            write_json(page.with_suffix(".json"), data[target])
    whole = Report(
        title=f"{name}: the paper's evaluation, ours beside theirs",
        sections=tuple(sections.values()),
        summary="Every number of ours is from a run on the same data, with the same backbone and "
        "as many epochs; the last epoch counts. Methods differ by their recipes: deep ones other "
        "than PHPQ may spend a share of their epochs on fine-tuning the backbone, and have rates "
        "and batches of their own. Each record holds all settings.",
        headlines=_headlines(data.get("table1")),
    )
    html = store.folder / f"{word}-{name}.html"
    write_report(html, whole)
    return (html, *pages)


def _headlines(table: Mapping[str, Any] | None) -> tuple[Headline, ...]:
    lines = []
    for bits, standing in ({} if table is None else table["standing"]).items():
        if standing["phpq"] is not None:
            note = "the best row" if standing["phpq_is_best"] else f"best: {standing['best']}"
            lines.append(Headline(f"PHPQ, {bits} bits", f"{standing['phpq']:.2f}", note))
    return tuple(lines)


def _figure(plan: GridPlan, name: str, image: bytes, alt: str) -> Figure:
    return Figure(image, alt=alt, wide=True, file=f"figures/{name}-{plan.subject.name}.png")


def _figure_section(plan: GridPlan, target: str, blocks: list[Any]) -> Section:
    lead = f"Seed {plan.seeds[0]}, last epoch. {RECONSTRUCTED}: our reconstruction."
    return Section(TITLES[target], tuple(blocks), lead=lead)


def _alpha_figure(plan: GridPlan, table: Mapping[str, Any]) -> list[Figure]:
    bits = max(plan.bits)
    curves: dict[str, dict[float, float]] = {}
    for row in table["rows"]:
        cell = row["cells"][str(bits)]
        alpha = float(row["name"].split("-")[1])
        if cell["mean"] is not None:
            curves.setdefault(f"ours, {row['group']}", {})[alpha] = cell["mean"]
        if cell["paper"] is not None:
            curves.setdefault("paper, partial attention", {})[alpha] = cell["paper"]
    if not curves:
        return []
    image = plot_curves(
        curves,
        title=f"MAP against alpha, {bits} bits",
        labels=("alpha", "MAP, %"),
        strong="ours, partial attention",
        wide=True,
    )
    alt = f"MAP against alpha with partial and with full attention, {bits} bits"
    return [_figure(plan, "alpha", image, alt)]


def _curves(plan: GridPlan, records: Records) -> Made:
    blocks, data = [], {}
    for bits in plan.bits:
        curves = {}
        for row in plan.rows["pn-curves"]:
            key = plan.places["pn-curves", row.name, bits, plan.seeds[0]]
            if key in records:
                record = records[key]
                values = record.get("precision_at_learned") or record["precision_at"]
                curves[row.figure_title] = {float(n): value for n, value in values.items()}
        if not curves:
            continue
        data[str(bits)] = {
            title: {f"{n:g}": round(value, 2) for n, value in points.items()}
            for title, points in curves.items()
        }
        labels = ("N", "precision, %")
        image = plot_curves(curves, title=f"{bits} bits", labels=labels, strong="PHPQ", wide=True)
        alt = f"Precision of the first N hits against N, {bits} bits"
        blocks.append(_figure(plan, f"pn-curves-{bits}", image, alt))
    content = {
        "figure": "pn-curves",
        "dataset": plan.subject.facts(),
        "seed": plan.seeds[0],
        "precision_at": data,
    }
    return content, _figure_section(plan, "pn-curves", blocks)


def _efficiency(plan: GridPlan, timed: dict[str, Any]) -> Made:
    bits, rows = max(plan.bits), timed["rows"]
    blocks: list[Block] = []
    # A method that has a Hamming search is drawn by that alone.
    hamming = {row["name"] for row in rows if row["engine"].startswith("hamming")}
    points = {
        row["title"]: {row["ms"]: row["map"]}
        for row in rows
        if row["bits"] == bits and (row["engine"] != "index" or row["name"] not in hamming)
    }
    if points:
        image = plot_curves(
            points,
            title=f"Time of 1,000 queries against MAP, {bits} bits",
            labels=("milliseconds for 1,000 queries", "MAP, %"),
            strong="PHPQ",
            x_axis="log",
            wide=True,
        )
        alt = f"Milliseconds for 1,000 queries against MAP, {bits} bits"
        blocks.append(_figure(plan, "efficiency", image, alt))
    blocks.append(
        Table(
            ("method", "search", "bits", "MAP", "ms for 1,000 queries"),
            tuple((r["title"], r["engine"], r["bits"], r["map"], r["ms"]) for r in rows),
            caption=f"Top {timed['top_k']}, median of {timed['repeats']} repeats in turns, one "
            f"process on {timed['cpu_cores']} cores. Embedding the queries is left out.",
        )
    )
    codes = {r["bits"]: r["ms"] for r in rows if r["name"] == "phpq" and r["engine"] == "index"}
    floats = {r["bits"]: r["ms"] for r in rows if r["engine"] == "float"}
    ratios = {str(b): round(floats[b] / codes[b], 2) for b in codes if b in floats and codes[b]}
    told = [
        f"{length} bits: PHPQ answers {ratio:.1f} times as fast as float search."
        for length, ratio in ratios.items()
    ]
    if plan.subject.name in SPEED_UP:
        told.append(f"The paper says {SPEED_UP[plan.subject.name]:.2f} times.")
    blocks += [Note(tuple(told), as_list=True)] if told else []
    return timed | {"phpq_over_float": ratios}, _figure_section(plan, "efficiency", blocks)


def _top10(plan: GridPlan, records: Records, store: Store, dataset: Dataset | None) -> Made:
    drawn = draw_top10(plan, records, store, dataset)
    if drawn is None:
        why = "The images are not here." if dataset is None else "PHPQ or PQN is not run yet."
        return None, Section(TITLES["top10"], (Note((why,)),))
    picture, facts = drawn
    right = ", ".join(f"{name.upper()} {count}" for name, count in facts["right"].items())
    alt = f"Queries with the first ten hits of PHPQ and of PQN, {facts['bits']} bits"
    caption = f"Right hits of {facts['shown']}: {right}. Green with a tick: the class of the query."
    content = {"figure": "top10", "dataset": plan.subject.facts()} | facts
    lead = "One query of each of a few classes spread over all, chosen before hits were seen."
    blocks = (_figure(plan, "top10", picture, alt), Note((caption,)))
    return content, Section(TITLES["top10"], blocks, lead=lead)
