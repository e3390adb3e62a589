"""A table as plain data in, the blocks that show it out, for the HTML page and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phpq.evaluation.report import Block, Note, Section, Settings, Table
from phpq.reproduce.rows import RECONSTRUCTED

Data = Mapping[str, Any]

TITLES = {
    "table1": "All methods",
    "variants": "Variants of PHPQ",
    "kappa": "Codewords that take part: kappa",
    "alpha": "Sharpness of the attention: alpha",
    "tau": "Temperature of the classifier: tau",
    "future": "Future work of the paper, tried",
    "pn-curves": "Precision of the first N hits",
    "efficiency": "Time against MAP",
    "top10": "The first ten hits of PHPQ and of PQN",
}
_BEST = "\N{BLACK STAR}"
_FAR = 5.0  # points below the paper from which a page must say why


def table_section(table: Data, notes: Mapping[str, str]) -> Section:
    """Show a table: theirs and ours, last and best epochs, seconds, and what to know of it.

    Args:
        table: From `build_table`.
        notes: Words of people about a row ("dsh") or a table ("table1"), by name.
    """
    blocks: list[Block] = [_main(table), _epochs(table)]
    remarks = _remarks(table, notes)
    if remarks:
        blocks.insert(1, Note(tuple(remarks), as_list=True))
    known = any(cell["range"] for row in table["rows"] for cell in row["cells"].values())
    if table["table"] == "table1" and known:
        blocks.append(_ties(table))
    blocks += [_seconds(table), _facts(table)]
    return Section(TITLES[table["table"]], tuple(blocks), lead=_lead(table))


def standing_lines(table: Data) -> list[str]:
    """Say for each code length whether PHPQ is the best row, or who beats it."""
    lines = []
    marks = {r["title"]: f" {RECONSTRUCTED}" for r in table["rows"] if r["reconstruction"]}
    for bits, standing in table.get("standing", {}).items():
        if standing["phpq"] is None:
            continue
        text = f"{bits} bits: PHPQ is the best row: "
        if standing["phpq_is_best"]:
            text += f"yes ({standing['phpq']:.2f})."
        else:
            above = [
                f"{one['title']} ({one['map']:.2f}{marks.get(one['title'], '')})"
                for one in standing["beaten_by"]
            ]
            text += f"no ({standing['phpq']:.2f}); above it: {', '.join(above)}."
        lines.append(text)
    return lines


def _lead(table: Data) -> str:
    data = table["dataset"]
    text = (
        f"{data['name']}: {data['queries']:,} queries against {data['gallery']:,} images of "
        f"{data['classes']:,} classes. {table['unit']}."
    )
    if table["paper"] is not None:
        text += f" The paper's numbers: {table['paper']['source']}."
    return text


def _main(table: Data) -> Table:
    has_paper, has_delta = (
        table["paper"] is not None,
        "delta" in table["rows"][0]["cells"][str(table["bits"][0])],
    )
    columns = ["method" if table["table"] == "table1" else "row"]
    for bits in table["bits"]:
        columns += [f"{bits} bits: paper"] if has_paper else []
        columns += ["ours" if has_paper else f"{bits} bits: ours"]
        columns += ["difference"] if has_paper else []
        columns += ["gain, paper"] if has_paper and has_delta else []
        columns += ["gain, ours"] if has_delta else []
    best = {bits: _best(table, bits) for bits in table["bits"]}
    rows = []
    for row in table["rows"]:
        cells: list[str | float | None] = [_title(row)]
        for bits in table["bits"]:
            cell = row["cells"][str(bits)]
            mark = f" {_BEST}" if cell["mean"] is not None and cell["mean"] == best[bits] else ""
            cells += [cell["paper"]] if has_paper else []
            cells.append(_score(cell["mean"], cell["std"], row) + mark)
            cells += [_signed(cell["difference"])] if has_paper else []
            cells += [_signed(cell["paper_delta"])] if has_paper and has_delta else []
            cells += [_signed(cell["delta"])] if has_delta else []
        rows.append(tuple(cells))
    seeds = ", ".join(map(str, table["seeds"]))
    over = f"Seed {seeds}" if len(table["seeds"]) == 1 else f"Mean and deviation of seeds {seeds}"
    caption = f"{over}, last epoch. {_BEST}: best of its column."
    if any(row["reconstruction"] for row in table["rows"]):
        caption += f" {RECONSTRUCTED}: our reconstruction; its file says of what."
    return Table(tuple(columns), tuple(rows), caption=caption, strong_row=_base_row(table))


def _epochs(table: Data) -> Table:
    caption = (
        "The best epoch is picked by the very queries that it is measured on, so it flatters. "
        "Shallow methods are fitted once, after the last epoch."
    )

    def scores(cell: Data, row: Data) -> tuple[str, str]:
        return (
            _score(cell["mean"], cell["std"], row),
            _score(cell["best_mean"], cell["best_std"], row),
        )

    return _pairs(table, "last and best epoch", ("last", "best"), scores, caption)


def _ties(table: Data) -> Table:
    caption = (
        "Short codes leave many images at the same distance. Above, MAP is its mean over all "
        "orders of such ties; a tool that takes them as they come may report anything in this "
        "range."
    )
    cells = [cell for row in table["rows"] for cell in row["cells"].values()]
    if any(cell["range"] and len(cell["range_seeds"]) < len(cell["seeds"]) for cell in cells):
        caption += (
            " Cells that did not record it are left out, so that a range may miss the mean above."
        )

    def scores(cell: Data, row: Data) -> tuple[str, str]:
        lowest, highest = cell["range"] or (None, None)
        return _score(lowest, None, row), _score(highest, None, row)

    return _pairs(table, "worst and best order of ties", ("worst", "best"), scores, caption)


def _pairs(
    table: Data,
    title: str,
    names: tuple[str, str],
    scores: Callable[[Data, Data], tuple[str, str]],
    caption: str,
) -> Table:
    """Show two figures of every cell side by side.

    Args:
        table: From `build_table`.
        title: Of the first column.
        names: Of the two figures.
        scores: The figures of a cell, which stands in a row.
        caption: Of the table.
    """
    columns = [title]
    for bits in table["bits"]:
        columns += [f"{bits} bits: {names[0]}", names[1]]
    rows = [
        (_title(row), *(s for b in table["bits"] for s in scores(row["cells"][str(b)], row)))
        for row in table["rows"]
    ]
    return Table(tuple(columns), tuple(rows), caption=caption)


def _seconds(table: Data) -> Table:
    columns = ["seconds a cell", *(f"{bits} bits" for bits in table["bits"]), "images/s"]
    rows = []
    for row in table["rows"]:
        cells = [row["cells"][str(bits)] for bits in table["bits"]]
        rates = [cell["images_per_second"] for cell in cells if cell["images_per_second"]]
        rate = round(max(rates)) if rates else None
        rows.append((_title(row), *(cell["seconds"] for cell in cells), rate))
    caption = (
        "Loading, training and evaluation of one seed, with as many cells at once as said below. "
        "Fine-tuned backbones and features that cells share are not in it; the sum below has them."
    )
    return Table(tuple(columns), tuple(rows), caption=caption)


def _remarks(table: Data, notes: Mapping[str, str]) -> list[str]:
    remarks = standing_lines(table)
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
    """Say what is missing: empty places, and means over fewer seeds than the others."""
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


def _facts(table: Data) -> Settings:
    cost = table["cost"]
    items = [
        ("epochs", ", ".join(map(str, table["epochs"]))),
        ("cells", f"{cost['cells']}, {cost['cell_seconds']:,} s in all"),
        ("cells at once", ", ".join(map(str, cost["at_once"]))),
        ("backbones start from", str(table["dataset"]["weights"])),
        ("commits", ", ".join(table["commits"])),
    ]
    items += [("hardware", _hardware(machine)) for machine in table["hardware"]]
    return Settings("Where the numbers come from", tuple(items))


def _hardware(machine: Mapping[str, Any]) -> str:
    named = [machine["gpu"], f"{machine['cpu']}, {machine['cpu_cores']} cores"]
    versions = f"torch {machine['torch']}, Python {machine['python']}"
    return "; ".join([*filter(None, named), versions])


def _title(row: Data) -> str:
    return f"{row['title']} (our reconstruction)" if row["reconstruction"] else str(row["title"])


def _score(mean: float | None, deviation: float | None, row: Data) -> str:
    if mean is None:
        return "\N{EN DASH}"
    text = f"{mean:.2f}"
    if deviation is not None:
        text += f" \N{PLUS-MINUS SIGN} {deviation:.2f}"
    return f"{text} {RECONSTRUCTED}" if row["reconstruction"] else text


def _signed(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:+.2f}"


def _best(table: Data, bits: int) -> float | None:
    values = [row["cells"][str(bits)]["mean"] for row in table["rows"]]
    return max((value for value in values if value is not None), default=None)


def _base_row(table: Data) -> int | None:
    names: Sequence[str] = [row["name"] for row in table["rows"]]
    return names.index("phpq") if "phpq" in names else None
