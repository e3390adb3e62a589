"""Finished cells in; a JSON file, a Markdown page and an HTML page of every table and figure out.

table1-cub200.json  table1-cub200.md     of each target
table1-cub200.html                       of all that one command asked for
figures/*.png
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phpq.data import Dataset
from phpq.evaluation.report import Figure, Headline, Note, Report, Section, Table, write_report
from phpq.files import read_json, write_bytes, write_json, write_text
from phpq.reproduce.efficiency import time_searches
from phpq.reproduce.figures import plot_curves, plot_scatter
from phpq.reproduce.grid import Plan
from phpq.reproduce.markdown import render_markdown
from phpq.reproduce.paper import SPEED_UP
from phpq.reproduce.rows import RECONSTRUCTED, TABLES
from phpq.reproduce.sections import TITLES, table_section
from phpq.reproduce.store import Store
from phpq.reproduce.tables import Records, build_table
from phpq.reproduce.top10 import draw_top10

NOTES = "notes.json"  # words of people: {"dsh": "why it differs", "table1": "..."}


@dataclass(slots=True)
class _Made:
    """What a command's targets came to.

    Attributes:
        data: Target -> the content of its JSON file.
        sections: Target -> what its page shows.
        pictures: Alternative text of a figure -> its file.
    """

    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)


def write_pages(
    plan: Plan, records: Records, store: Store, *, dataset: Dataset | None, word: str
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
    made = _Made()
    notes = _notes(store)
    (store.folder / "figures").mkdir(parents=True, exist_ok=True)
    for target in plan.targets:
        if target in TABLES:
            made.data[target] = build_table(plan, target, records)
            made.sections[target] = table_section(made.data[target], notes)
            if target == "alpha":
                _add_alpha_figure(made, plan, store)
        elif target == "pn-curves":
            _add_curves(made, plan, records, store)
        elif target == "efficiency":
            _add_efficiency(made, plan, records, store)
        else:
            _add_top10(made, plan, records, store, dataset)
    return made.data, _write(made, plan, store, word)


def _write(made: _Made, plan: Plan, store: Store, word: str) -> tuple[Path, ...]:
    name, pages = plan.subject.name, []
    for target, section in made.sections.items():
        page = store.folder / f"{target}-{name}.md"
        report = Report(f"{name}: {section.title[0].lower()}{section.title[1:]}", (section,))
        write_text(page, render_markdown(report, made.pictures))
        pages.append(page)
        if target in made.data:
            write_json(page.with_suffix(".json"), made.data[target])
    whole = Report(
        title=f"{name}: the paper's evaluation, ours beside theirs",
        sections=tuple(made.sections.values()),
        summary="Every number of ours is from a run on the same data, with the same backbone and "
        "as many epochs; the last epoch counts. Methods differ by their recipes: deep ones other "
        "than PHPQ may spend a share of their epochs on fine-tuning the backbone, and have rates "
        "and batches of their own. Each record holds all settings.",
        headlines=_headlines(made.data.get("table1")),
    )
    html = store.folder / f"{word}-{name}.html"
    write_report(html, whole)
    return (html, *pages)


def _headlines(table: Mapping[str, Any] | None) -> tuple[Headline, ...]:
    if table is None:
        return ()
    lines = []
    for bits, standing in table["standing"].items():
        if standing["phpq"] is not None:
            note = "the best row" if standing["phpq_is_best"] else f"best: {standing['best']}"
            lines.append(Headline(f"PHPQ, {bits} bits", f"{standing['phpq']:.2f}", note))
    return tuple(lines)


def _notes(store: Store) -> dict[str, str]:
    path = store.folder / NOTES
    if not path.is_file():
        return {}
    return {name: str(text) for name, text in read_json(path, remedy="Mend it.").items()}


def _figure(made: _Made, store: Store, name: str, *, image: bytes, alt: str) -> Figure:
    """Write a picture beside the pages, and return its block."""
    place = f"figures/{name}.png"
    write_bytes(store.folder / place, image)
    made.pictures[alt] = place
    return Figure(image, alt=alt, wide=True)


def _add_alpha_figure(made: _Made, plan: Plan, store: Store) -> None:
    bits = max(plan.bits)
    curves: dict[str, dict[float, float]] = {}
    for row in made.data["alpha"]["rows"]:
        cell = row["cells"][str(bits)]
        alpha = float(row["name"].split("-")[1])
        if cell["mean"] is not None:
            curves.setdefault(f"ours, {row['group']}", {})[alpha] = cell["mean"]
        if cell["paper"] is not None:
            curves.setdefault("paper, partial attention", {})[alpha] = cell["paper"]
    if not curves:
        return
    image = plot_curves(
        curves,
        title=f"MAP against alpha, {bits} bits",
        x_label="alpha",
        y_label="MAP, %",
        strong="ours, partial attention",
    )
    alt = f"MAP against alpha with partial and with full attention, {bits} bits"
    name = f"alpha-{plan.subject.name}"
    figure = _figure(made, store, name, image=image, alt=alt)
    section = made.sections["alpha"]
    made.sections["alpha"] = Section(section.title, (figure, *section.blocks), lead=section.lead)


def _add_curves(made: _Made, plan: Plan, records: Records, store: Store) -> None:
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
        image = plot_curves(
            curves, title=f"{bits} bits", x_label="N", y_label="precision, %", strong="PHPQ"
        )
        alt = f"Precision of the first N hits against N, {bits} bits"
        name = f"pn-curves-{bits}-{plan.subject.name}"
        blocks.append(_figure(made, store, name, image=image, alt=alt))
    made.data["pn-curves"] = {
        "figure": "pn-curves",
        "dataset": plan.subject.facts(),
        "seed": plan.seeds[0],
        "precision_at": data,
    }
    lead = f"Seed {plan.seeds[0]}, last epoch. {RECONSTRUCTED}: our reconstruction."
    made.sections["pn-curves"] = Section(TITLES["pn-curves"], tuple(blocks), lead=lead)


def _add_efficiency(made: _Made, plan: Plan, records: Records, store: Store) -> None:
    timed = time_searches(plan, records, store)
    bits = max(plan.bits)
    shown = [row for row in timed["rows"] if row["bits"] == bits]
    ratios = _speed_ups(timed["rows"])
    timed["phpq_over_float"] = ratios
    made.data["efficiency"] = timed
    blocks: list[Any] = []
    if shown:
        points = [
            (row["title"], row["ms"], row["map"])
            for row in shown
            if row["engine"] == "float" or not _has_hamming(row, shown)
        ]
        image = plot_scatter(
            points,
            title=f"Time of 1,000 queries against MAP, {bits} bits",
            x_label="milliseconds for 1,000 queries",
            y_label="MAP, %",
            strong="PHPQ",
        )
        alt = f"Milliseconds for 1,000 queries against MAP, {bits} bits"
        name = f"efficiency-{plan.subject.name}"
        blocks.append(_figure(made, store, name, image=image, alt=alt))
    columns = ("method", "search", "bits", "MAP", "ms for 1,000 queries")
    rows = tuple((r["title"], r["engine"], r["bits"], r["map"], r["ms"]) for r in timed["rows"])
    caption = (
        f"Top {timed['top_k']}, median of {timed['repeats']} repeats in turns, one process on "
        f"{timed['cpu_cores']} cores. Embedding the queries is left out."
    )
    blocks.append(Table(columns, rows, caption=caption))
    theirs = SPEED_UP.get(plan.subject.name)
    told = [
        f"{length} bits: PHPQ answers {ratio:.1f} times as fast as float search."
        for length, ratio in ratios.items()
    ]
    if theirs is not None:
        told.append(f"The paper says {theirs:.2f} times.")
    blocks += [Note(tuple(told), as_list=True)] if told else []
    lead = f"Seed {plan.seeds[0]}, last epoch. {RECONSTRUCTED}: our reconstruction."
    made.sections["efficiency"] = Section(TITLES["efficiency"], tuple(blocks), lead=lead)


def _has_hamming(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Tell whether this way is shown by a method's Hamming search instead."""
    same = [one for one in rows if one["name"] == row["name"] and one is not row]
    return row["engine"] == "index" and any(one["engine"].startswith("hamming") for one in same)


def _speed_ups(rows: list[dict[str, Any]]) -> dict[str, float]:
    codes = {r["bits"]: r["ms"] for r in rows if r["name"] == "phpq" and r["engine"] == "index"}
    floats = {r["bits"]: r["ms"] for r in rows if r["engine"] == "float"}
    return {str(b): round(floats[b] / codes[b], 2) for b in codes if b in floats and codes[b]}


def _add_top10(
    made: _Made, plan: Plan, records: Records, store: Store, dataset: Dataset | None
) -> None:
    drawn = draw_top10(plan, records, store, dataset)
    if drawn is None:
        why = "The images are not here." if dataset is None else "PHPQ or PQN is not run yet."
        made.sections["top10"] = Section(TITLES["top10"], (Note((why,)),))
        return
    right = ", ".join(f"{name.upper()} {count}" for name, count in drawn.right.items())
    alt = f"Queries with the first ten hits of PHPQ and of PQN, {drawn.bits} bits"
    name = f"top10-{plan.subject.name}"
    figure = _figure(made, store, name, image=drawn.picture, alt=alt)
    caption = f"Right hits of {drawn.shown}: {right}. Green with a tick: the class of the query."
    made.data["top10"] = {
        "figure": "top10",
        "dataset": plan.subject.facts(),
        "bits": drawn.bits,
        "right": drawn.right,
        "shown": drawn.shown,
    }
    lead = "One query of each of a few classes spread over all, chosen before hits were seen."
    blocks = (figure, Note((caption,)))
    made.sections["top10"] = Section(TITLES["top10"], blocks, lead=lead)
