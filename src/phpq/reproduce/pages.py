"""Finished cells in; a JSON file, a Markdown page and an HTML page of every table and figure out.

table1-cub200.json  table1-cub200.md     of each target
table1-cub200.html                       of all that one command asked for
figures/*.png
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phpq.data import Dataset
from phpq.files import read_json, write_bytes, write_json, write_text
from phpq.report import blocks
from phpq.report.pictures import plot_curves
from phpq.reproduce import figures
from phpq.reproduce.grid import GridPlan
from phpq.reproduce.paper import RECIPE_TITLES, RECONSTRUCTED, TITLES, UNSEEN
from phpq.reproduce.store import Store
from phpq.reproduce.tables import SURE, Records, build_table
from phpq.reproduce.unseen import unseen_section, unseen_table

Data = Mapping[str, Any]
Show = Callable[[Data, str], blocks.Cell]  # of a row and a code length

_BEST = "\N{BLACK STAR}"
_FAR = 5.0  # points below the paper that a page remarks on
NOTES = "notes.json"  # written by people: {"dsh": "why it differs", "table1": "..."}


def write_pages(
    plan: GridPlan, records: Records, store: Store, *, dataset: Dataset | None, name: str
) -> tuple[dict[str, dict[str, Any]], tuple[Path, ...]]:
    """Write the tables, figures and pages of finished cells.

    Pictures need the `dataset`, None if its images are not here; `name` is that of the HTML page.
    Returns target -> the content of its JSON file; and the pages.
    """
    path = store.folder / NOTES
    notes = read_json(path, remedy="Correct or remove it.") if path.is_file() else {}
    made = {target: _make(target, plan, records, store, dataset, notes) for target in plan.targets}
    subject, data, pages = plan.subject.name, {}, []
    (store.folder / "figures").mkdir(parents=True, exist_ok=True)
    for target, (content, section) in made.items():
        for block in section.blocks:
            if isinstance(block, blocks.Figure):
                write_bytes(store.folder / block.file, block.image)
        page = store.folder / f"{target}-{subject}.md"
        write_text(page, _markdown(subject, section))
        pages.append(page)
        if content is not None:
            data[target] = content
            write_json(page.with_suffix(".json"), content)
    whole = blocks.Report(
        title=f"{subject}: the paper's evaluation, ours beside theirs",
        sections=tuple(section for _, section in made.values()),
        summary="Every number of ours is from a run on the same data, with the same backbone and "
        "as many epochs; the last epoch counts. Methods differ by their recipes: deep ones other "
        "than PHPQ may spend a share of their epochs on fine-tuning the backbone, and have rates "
        "and batches of their own. Each record holds all settings.",
        headlines=_headlines(data.get("table1")),
    )
    html = store.folder / f"{name}-{subject}.html"
    blocks.write_report(html, whole)
    return data, (html, *pages)


def _make(
    target: str,
    plan: GridPlan,
    records: Records,
    store: Store,
    dataset: Dataset | None,
    notes: Mapping[str, Any],
) -> figures.Made:
    if target == "top10":
        return figures.top10_figure(plan, records, store, dataset)
    if target == "pn-curves":
        content = figures.precision_data(plan, records)
    elif target == "efficiency":
        content = figures.time_searches(plan, records, store)
    elif target == UNSEEN:
        content = unseen_table(plan, records)
    else:
        content = build_table(plan, target, records)
    return content, _section(content, notes)


def _section(
    content: Data, notes: Mapping[str, Any], draw: figures.Draw = plot_curves
) -> blocks.Section:
    """Show the content of a JSON file."""
    if "figure" in content:
        show = {"pn-curves": figures.precision_figures, "efficiency": figures.efficiency_figure}
        return show[content["figure"]](content, draw=draw)
    if content["table"] == UNSEEN:
        return unseen_section(content)
    section = table_section(content, {name: str(text) for name, text in notes.items()})
    if content["table"] == "alpha":
        shown = figures.alpha_figure(content, draw=draw)
        section = replace(section, blocks=(*shown, *section.blocks))
    return section


def stored_page(content: Data, notes: Mapping[str, Any]) -> str:
    """Return the Markdown page of a JSON file of `write_pages`, without drawing pictures."""
    section = _section(content, notes, draw=lambda *_, **__: b"")
    return _markdown(content["dataset"]["name"], section)


def _markdown(name: str, section: blocks.Section) -> str:
    title = f"{name}: {section.title[0].lower()}{section.title[1:]}"
    return blocks.render_markdown(blocks.Report(title, (section,)))


def _headlines(table: Mapping[str, Any] | None) -> tuple[blocks.Headline, ...]:
    lines = []
    for bits, standing in ({} if table is None else table["standing"]).items():
        if standing["phpq"] is not None:
            note = "the best row" if standing["phpq_is_best"] else f"best: {standing['best']}"
            lines.append(blocks.Headline(f"PHPQ, {bits} bits", f"{standing['phpq']:.2f}", note))
    return tuple(lines)


def table_section(table: Data, notes: Mapping[str, str]) -> blocks.Section:
    """Show a table of `build_table`: theirs and ours, epochs, seconds, and remarks.

    `notes` are those of `NOTES`, by the name of a row ("dsh") or a table ("table1").
    """
    remarks, data = _remarks(table, notes), table["dataset"]
    shown: list[blocks.Block] = [_main(part) for part in _by_recipe(table)]
    shown += [blocks.Note(tuple(remarks), as_list=True)] if remarks else []
    shown += [*_first_hits(table), _epochs(table), *_ties(table), _seconds(table), _facts(table)]
    lead = (
        f"{data['name']}: {data['queries']:,} queries against {data['gallery']:,} images of "
        f"{data['classes']:,} classes. {table['unit']}."
    )
    if table["paper"] is not None:
        lead += f" The paper's numbers: {table['paper']['source']}."
    return blocks.Section(TITLES[table["table"]], tuple(shown), lead=lead)


def _by_recipe(table: Data) -> list[Data]:
    """Return a table of variants once for each recipe; a table of methods as it is."""
    recipes = list(dict.fromkeys(row["recipe"] for row in table["rows"]))
    if table["table"] == "table1" or len(recipes) == 1:
        return [table]
    return [
        {**table, "rows": [r for r in table["rows"] if r["recipe"] == one], "recipe": one}
        for one in recipes
    ]


def claim_lines(table: Data) -> list[str]:
    """Return a sentence for each claim of the paper: whether our numbers confirm it."""
    lines = []
    for one in table.get("claims", []):
        line = f"{RECIPE_TITLES[one['recipe']].capitalize()}: {one['claim']}: {one['verdict']}"
        if one["gain"] is not None:
            error = "" if one["error"] is None else f" \N{PLUS-MINUS SIGN} {one['error']:.2f}"
            seeds = f"{len(one['seeds'])} seed{'s' if len(one['seeds']) > 1 else ''}"
            line += f", {one['gain']:+.2f}{error} points over {seeds}"
        if one["paper_gain"] is not None:
            line += f" (the paper: {one['paper_gain']:+.2f})"
        lines.append(f"{line}.")
    if lines:
        lines.append(
            f"Confirmed or refuted is what differs from none by more than {SURE:g} standard errors "
            "of the mean over seeds, of paired differences that are means over the code lengths."
        )
    return lines


def standing_lines(table: Data) -> list[str]:
    """Return a sentence for each code length: whether PHPQ is the best row."""
    lines = []
    marks = {r["title"]: f" {RECONSTRUCTED}" for r in table["rows"] if r["reconstruction"]}
    for bits, standing in table.get("standing", {}).items():
        if standing["phpq"] is None:
            continue
        above = ", ".join(
            f"{one['title']} ({one['map']:.2f}{marks.get(one['title'], '')})"
            for one in standing["beaten_by"]
        )
        answer = f"{'no' if above else 'yes'} ({standing['phpq']:.2f})"
        above = f"; above it: {above}" if above else ""
        lines.append(f"{bits} bits: PHPQ is the best row: {answer}{above}.")
    return lines


def _main(table: Data) -> blocks.Table:
    theirs = table["paper"] is not None
    gains = "delta" in table["rows"][0]["cells"][str(table["bits"][0])]

    def ours(row: Data, bits: str) -> str:
        mean, means = row["cells"][bits]["mean"], [r["cells"][bits]["mean"] for r in table["rows"]]
        best = max((value for value in means if value is not None), default=None)
        mark = f" {_BEST}" if mean is not None and mean == best else ""
        return _score(row, bits) + mark

    columns: dict[str, Show] = {
        "paper": lambda row, bits: row["cells"][bits]["paper"],
        "ours": ours,
        "difference": lambda row, bits: _signed(row["cells"][bits]["difference"]),
        "gain, paper": lambda row, bits: _signed(row["cells"][bits]["paper_delta"]),
        "gain, ours": lambda row, bits: _gain(row["cells"][bits]),
    }
    left_out = set() if theirs else {"paper", "difference", "gain, paper"}
    left_out |= set() if gains else {"gain, paper", "gain, ours"}
    seeds = ", ".join(map(str, table["seeds"]))
    over = f"Seed {seeds}" if len(table["seeds"]) == 1 else f"Mean and deviation of seeds {seeds}"
    recipe = f"{RECIPE_TITLES[table['recipe']].capitalize()}. " if "recipe" in table else ""
    caption = f"{recipe}{over}, last epoch. {_BEST}: best of its column."
    if gains:
        caption += " Gains over the base row are paired by seed."
    if any(row["reconstruction"] for row in table["rows"]):
        caption += f" {RECONSTRUCTED}: our reconstruction; its file says of what."
    names = [row["name"] for row in table["rows"]]
    title = "method" if table["table"] == "table1" else "row"
    shown = {name: show for name, show in columns.items() if name not in left_out}
    strong = names.index("phpq") if "phpq" in names else None
    return replace(_by_bits(table, title, shown, caption), strong_row=strong)


def _epochs(table: Data) -> blocks.Table:
    caption = (
        "The best epoch is picked by the very queries that it is measured on, so it flatters. "
        "Shallow methods are fitted once, after the last epoch."
    )
    columns: dict[str, Show] = {
        "last": _score,
        "best": lambda row, bits: _score(row, bits, "best_"),
    }
    return _by_bits(table, "last and best epoch", columns, caption)


def _first_hits(table: Data) -> list[blocks.Table]:
    cells = [cell for row in table["rows"] for cell in row["cells"].values()]
    if not any(cell["p1"] is not None or cell["p1_float"] is not None for cell in cells):
        return []
    caption = (
        "P@1 of search by codes; MAP and P@1 of float search over the same embeddings, for those "
        "whose codes are not all that they hold. Cells of earlier versions have no P@1 of floats."
    )
    columns: dict[str, Show] = {
        "P@1": lambda row, bits: _marked(row["cells"][bits]["p1"], row),
        "float MAP": lambda row, bits: _marked(row["cells"][bits]["float"], row),
        "float P@1": lambda row, bits: _marked(row["cells"][bits]["p1_float"], row),
    }
    return [_by_bits(table, "first hits", columns, caption)]


def _ties(table: Data) -> list[blocks.Table]:
    cells = [cell for row in table["rows"] for cell in row["cells"].values()]
    if table["table"] != "table1" or not any(cell["range"] for cell in cells):
        return []
    caption = (
        "Short codes leave many images at the same distance. Above, MAP is its mean over all "
        "orders of such ties; a tool that takes them as they come may report anything in this "
        "range."
    )
    if any(cell["range"] and len(cell["range_seeds"]) < len(cell["seeds"]) for cell in cells):
        caption += (
            " Cells that did not record it are left out, so that a range may miss the mean above."
        )
    columns: dict[str, Show] = {
        "worst": lambda row, bits: _marked((row["cells"][bits]["range"] or [None])[0], row),
        "best": lambda row, bits: _marked((row["cells"][bits]["range"] or [None])[-1], row),
    }
    return [_by_bits(table, "worst and best order of ties", columns, caption)]


def _seconds(table: Data) -> blocks.Table:
    caption = (
        "Loading, training and evaluation of one seed, with as many cells at once as said below. "
        "Fine-tuned backbones and features that cells share are not in it; the sum below has them."
    )
    shown = _by_bits(
        table, "seconds per cell", {"": lambda row, bits: row["cells"][bits]["seconds"]}, caption
    )
    rows = []
    for row, cells in zip(table["rows"], shown.rows, strict=True):
        rates = [cell["images_per_second"] for cell in row["cells"].values()]
        rows.append((*cells, round(max(filter(None, rates))) if any(rates) else None))
    return replace(shown, columns=(*shown.columns, "images/s"), rows=tuple(rows))


def _by_bits(table: Data, title: str, columns: Mapping[str, Show], caption: str) -> blocks.Table:
    """Show some figures of every cell: for each code length the same columns side by side.

    `title` is that of the first column, which names the rows; `columns` are by heading.
    """
    headings = [title]
    for bits in table["bits"]:
        first, *others = columns
        headings += [f"{bits} bits: {first}" if first else f"{bits} bits", *others]
    rows = []
    for row in table["rows"]:
        name = row["title"] + (" (our reconstruction)" if row["reconstruction"] else "")
        if row["recipe"] != "ours" and table["table"] != "table1" and "recipe" not in table:
            name += f", {RECIPE_TITLES[row['recipe']]}"
        shown = (show(row, str(bits)) for bits in table["bits"] for show in columns.values())
        rows.append((name, *shown))
    return blocks.Table(tuple(headings), tuple(rows), caption=caption)


def _remarks(table: Data, notes: Mapping[str, str]) -> list[str]:
    remarks = standing_lines(table) + claim_lines(table)
    for row in table["rows"]:
        far = [
            f"{bits} bits: {cell['difference']:+.2f}"
            for bits, cell in row["cells"].items()
            if cell["difference"] is not None and cell["difference"] < -_FAR
        ]
        if far:
            remarks.append(
                f"{row['title']} is more than {_FAR:g} points below the paper ({'; '.join(far)})."
            )
    if table["paper"] is not None and table["paper"]["note"]:
        remarks.append(table["paper"]["note"])
    remarks += _gaps(table)
    known = {table["table"], *(row["name"] for row in table["rows"])}
    return remarks + [text for name, text in notes.items() if name in known]


def _gaps(table: Data) -> list[str]:
    """Return sentences about missing cells, and means over fewer seeds than the others."""
    fewer: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    empty = 0
    for row in table["rows"]:
        lengths: dict[tuple[str, ...], list[str]] = {}
        for bits, cell in row["cells"].items():
            seeds = tuple(cell["seeds"])
            empty += not seeds
            if seeds and len(seeds) < len(table["seeds"]):
                lengths.setdefault(seeds, []).append(bits)
        for seeds, bits in lengths.items():
            fewer.setdefault((", ".join(bits), seeds), []).append(row["title"])
    lines = []
    if empty:
        places = "1 place is" if empty == 1 else f"{empty} places are"
        lines.append(f"{len(table['missing'])} cells are not run yet: {places} empty.")
    for (bits, seeds), titles in fewer.items():
        shown = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        lines.append(f"Of {shown} only, at {bits} bits: {'; '.join(titles)}.")
    return lines


def _facts(table: Data) -> blocks.Settings:
    cost = table["cost"]
    items = [
        ("epochs", ", ".join(map(str, table["epochs"]))),
        ("cells", f"{cost['cells']}, {cost['cell_seconds']:,} s in all"),
        ("cells at once", ", ".join(map(str, cost["at_once"]))),
        ("backbones start from", str(table["dataset"]["weights"])),
        ("commits", ", ".join(table["commits"])),
    ]
    for machine in table["hardware"]:
        cpu = f"{machine['cpu']}, {machine['cpu_cores']} cores"
        versions = f"torch {machine['torch']}, Python {machine['python']}"
        items.append(("hardware", "; ".join(filter(None, (machine["gpu"], cpu, versions)))))
    return blocks.Settings("Where the numbers come from", tuple(items))


def _score(row: Data, bits: str, best: str = "") -> str:
    cell = row["cells"][bits]
    return _marked(cell[f"{best}mean"], row, cell[f"{best}std"])


def _marked(value: float | None, row: Data, deviation: float | None = None) -> str:
    if value is None:
        return "\N{EN DASH}"
    text = f"{value:.2f}"
    if deviation is not None:
        text += f" \N{PLUS-MINUS SIGN} {deviation:.2f}"
    return f"{text} {RECONSTRUCTED}" if row["reconstruction"] else text


def _gain(cell: Data) -> str:
    spread = cell["delta_std"]
    return _signed(cell["delta"]) + ("" if spread is None else f" \N{PLUS-MINUS SIGN} {spread:.2f}")


def _signed(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:+.2f}"
