"""What a comparison measured in, its page out: plain data to blocks, as HTML and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from phpq.files import write_bytes, write_json, write_text
from phpq.report.blocks import (
    Cell,
    Figure,
    Note,
    Report,
    Section,
    Settings,
    Table,
    render_markdown,
    write_report,
)
from phpq.report.scatter import Point, plot_points

PAGE, DATA, TEXT = "compare.html", "compare.json", "compare.md"
PICTURES = {"bytes": "compare-bytes.png", "speed": "compare-speed.png"}
_GROUPS = {
    "float": "float search",
    "compressed": "signs, RaBitQ, PQ, OPQ",
    "fast": "IVFPQ, HNSW",
    "classify": "classify, then list",
    "phpq": "phpq",
}
_SHORT = (
    (", frozen trunk", ""),
    (" search", ""),
    (" bytes", " B"),
    ("model's codebooks", "model's"),
    ("gallery's codebooks, with its labels", "gallery's, labels"),
    ("gallery's codebooks", "gallery's"),
    ("whitened trunk", "whitened"),
    ("general embedding", "general"),
    (", then list", ""),
    ("learned embedding of the ", "learned, "),
)


def write_comparison(folder: Path, content: Mapping[str, Any]) -> None:
    """Write data and, where there is matplotlib, page and pictures."""
    from importlib.util import find_spec

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / DATA, dict(content))
    if find_spec("matplotlib") is None:  # a machine that only measures needs no pictures
        return
    report = build_page(content)
    figures = [block for section in report.sections for block in section.blocks]
    for figure in figures:
        if isinstance(figure, Figure):
            write_bytes(folder / figure.file, figure.image)
    write_report(folder / PAGE, report)
    write_text(folder / TEXT, render_markdown(report))


def build_page(content: Mapping[str, Any], *, pictures: str = "") -> Report:
    """Lay out a comparison; a Markdown page finds its pictures in the folder `pictures`."""
    rows = content["rows"]
    sizes = [speed["asked"] for speed in rows[0]["speeds"]]
    facts, images = content["embedding"], content["images"]
    new = f" and {images['unseen_queries']:,} of other classes" * bool(images["unseen_queries"])
    lead = (
        f"A gallery of {images['gallery']:,} images of {images['classes']:,} classes; "
        f"{images['seen_queries']:,} queries of learned classes{new}. "
        f"Trunk: {facts['trunk']}. phpq: {facts['ours']}."
    )
    quality = Table(
        columns=(
            *("way to search", "gallery's labels", "R@1", "P@10", "MAP", "unseen: R@1", "MAP"),
            *("float's ten", "learning: labels", "minutes"),
        ),
        rows=tuple(map(_quality_cells, rows)),
        caption="In per cent, over one gallery of all classes, means over all orders of equal "
        "scores. Unseen: queries of classes that nothing has learned, in the same gallery. Float's "
        "ten: the share of the first ten of float search over the same embedding that is among the "
        "first ten. What an index does not return counts as tied behind what it does. Learning: "
        "what the embedding took; the gallery's labels are another matter.",
    )
    sections = [
        Section("What to use", (Note(tuple(content["advice"])),)),
        Section("What is found", (quality,), lead=lead),
        *(_speed(content, number, asked) for number, asked in enumerate(sizes)),
        Section("Quality against bytes and speed", tuple(_figures(content, pictures))),
    ]
    if content["left_out"] or content["notes"]:
        points = (*content["left_out"], *content["notes"])
        title = "Left out, and other remarks"
        sections.append(Section(title, (Note(tuple(map(_sentence, points)), as_list=True),)))
    sections.append(Section("How it was measured", (_settings(content),), lead=_method(content)))
    return Report(
        title=f"{content['dataset']}: what to search it with",
        summary=content["advice"][0],
        sections=tuple(sections),
        created=datetime.fromisoformat(content["created"]),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _quality_cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    minutes = row["learning_minutes"]
    return (
        row["name"],
        "yes" if row["uses_labels"] else "no",
        *(_rounded(row[name]) for name in ("r1", "p10", "map", "unseen_r1", "unseen_map")),
        _rounded(row["float_recall"]),
        row["learning_labels"],
        None if minutes is None else f"{minutes:.1f}",
    )


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _speed(content: Mapping[str, Any], number: int, asked: int) -> Section:
    cores = content["machine"]["cores"]
    table = Table(
        columns=(
            *("way to search", "bytes in memory", "on disk", "whole gallery", "rows timed"),
            *("queries/s, 1 thread", f"{cores} threads", "build, s"),
        ),
        rows=tuple(_speed_cells(row["name"], row["speeds"][number]) for row in content["rows"]),
        caption="Bytes per image with everything counted: row numbers, graphs, lists, codebooks "
        "and rotations spread over the rows, and on disk the floats that are kept to put the first "
        "hits in order. Names of images are the same for all, and not counted.",
    )
    lead = " ".join(_about_speed(content, number, asked))
    return Section(f"Weight and speed, {asked:,} images", (table,), lead=lead)


def _about_speed(content: Mapping[str, Any], number: int, asked: int) -> Iterator[str]:
    """Yield sentences about the rows that were timed, and how they came about."""
    real, cores = content["images"]["gallery"], content["machine"]["cores"]
    speeds = [row["speeds"][number] for row in content["rows"]]
    yield (
        f"Queries per second on one thread and on {cores}, lookup tables included, the network's "
        "pass over the query image not: it is the same for all."
    )
    if asked > real:
        yield (
            f"The first {real:,} rows are real; the others are made up, each between two images "
            "of a class with noise."
        )
    encoded = [one["encoded"] for one in speeds if one.get("encoded", asked) < one["rows"]]
    if encoded:
        yield (
            "Scans of all codes and lists of classes take as long whatever the rows are: beyond "
            f"{max(encoded):,} these repeat, and the seconds to build them are reckoned. All rows "
            "of phpq, IVFPQ and HNSW are encoded, since their searches depend on them."
        )
    if any(one["rows"] < asked for one in speeds):
        yield (
            "Rows that did not fit into memory, disk or the minutes are timed with fewer, as "
            "their column says; their bytes are reckoned for the full size."
        )


def _speed_cells(name: str, speed: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        name,
        *(_short_number(speed[key]) for key in ("memory", "disk")),
        _bytes(speed["memory"] * speed["asked"]),
        f"{speed['rows']:,}".replace(",", " "),
        *(_short_number(speed[key]) for key in ("one_thread", "all_threads", "build_seconds")),
    )


def _short_number(value: float) -> str:
    """Keep three digits, or all before the point."""
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def _bytes(count: float) -> str:
    size, unit = (count / 1e9, "GB") if count >= 1e9 else (count / 1e6, "MB")
    return f"{_short_number(size)} {unit}"


def _figures(content: Mapping[str, Any], folder: str) -> Iterator[Figure]:
    rows = [r for r in content["rows"] if r["map"] is not None or r["unseen_map"] is not None]
    asked = rows[0]["speeds"][-1]["asked"]
    weights = [(row, row["speeds"][-1]["memory"]) for row in rows]
    yield _figure("bytes", "bytes per image in memory", asked, weights, folder)
    # Ways that were timed with more rows than others cannot be compared in speed.
    size, timed = _timed_alike(rows)
    drawn = {row["name"] for row, _ in timed}
    others = [short_name(row["name"]) for row in rows if row["name"] not in drawn]
    note = (
        f" Timed with other numbers of rows, and not drawn: {'; '.join(others)}." if others else ""
    )
    yield _figure("speed", "queries per second, one thread", size, timed, folder, note)


def _timed_alike(rows: Sequence[Mapping[str, Any]]) -> tuple[int, list[tuple[Any, float]]]:
    """Return the number of rows with which most ways were timed, and how fast these were."""
    speeds = [(row, {one["rows"]: one["one_thread"] for one in row["speeds"]}) for row in rows]
    counts = Counter(size for _, known in speeds for size in known)
    size = max(counts, key=lambda one: (counts[one], one))
    return size, [(row, known[size]) for row, known in speeds if size in known]


def _figure(
    kind: str,
    axis: str,
    size: int,
    values: Sequence[tuple[Mapping[str, Any], float]],
    folder: str,
    note: str = "",
) -> Figure:
    """Draw quality against a value of each row."""
    points = [
        Point(
            x=value,
            y=row["map"] if row["map"] is not None else row["unseen_map"],
            label=short_name(row["name"]),
            group=_GROUPS[row["group"]],
            hollow=row["uses_labels"],
        )
        for row, value in values
    ]
    return Figure(
        plot_points(
            points,
            title=f"MAP against {axis.split(',')[0]}, {size:,} images",
            labels=(axis, "MAP, %"),
            strong=_GROUPS["phpq"],
        ),
        alt=f"MAP of each way to search against {axis}",
        caption=f"Hollow marks use the gallery's labels.{note}",
        wide=True,
        file=f"{folder}{PICTURES[kind]}",
    )


def short_name(name: str) -> str:
    """Return the name of a row as pictures show it."""
    for long, short in _SHORT:
        name = name.replace(long, short)
    return name


def _method(content: Mapping[str, Any]) -> str:
    rate = content["embedding"]["images_per_second"]
    return (
        f"The trunk embeds {rate:.0f} images a second here, decoding included. Rows of a size are "
        "timed in turns, as many as fit into memory together, in one process; K of PQ and OPQ and "
        "the penalty of the linear probe are chosen on gallery images, of which a fifth asks, "
        "never on the queries."
    )


def _settings(content: Mapping[str, Any]) -> Settings:
    machine, facts = content["machine"], content["embedding"]
    items: list[tuple[str, str]] = [
        ("data set", content["dataset"]),
        ("commit", content["commit"] or "unknown"),
        ("seed", str(facts.get("seed", ""))),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['platform']}"),
        ("load of the machine", f"{machine['load']:.1f}"),
        ("packages", ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)),
        ("minutes allowed", f"{content['minutes']:g}"),
        ("minutes taken", f"{content['seconds'] / 60:.1f}"),
        *(
            (f"codewords, {name}", str(size))
            for name, size in content["chosen"]["codewords"].items()
        ),
        ("penalty of the linear probe", f"{content['chosen']['penalty']:g}"),
    ]
    items += _config_items(facts)
    return Settings("Settings", tuple(items))


def _config_items(facts: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    config: Mapping[str, Mapping[str, Any]] = facts.get("config", {})
    kept = [
        (f"{stage}.{name}", str(value))
        for stage, part in config.items()
        for name, value in part.items()
    ]
    return kept + [
        ("model", f"{model['bits']} bits, {model['epochs']} epochs, {model['fingerprint'][:12]}")
        for model in facts.get("models", ())
    ]
