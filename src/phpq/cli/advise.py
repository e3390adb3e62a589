"""`phpq advise`: evaluated runs and the size of a gallery in, what each code length costs out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import (
    AsJson,
    home,
    is_run,
    print_facts,
    print_json,
    progress_bars,
    readable_bytes,
    results,
    table_of,
)

if TYPE_CHECKING:
    from phpq.gallery.advice import CodeAdvice


def advise(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE|RUN", help="A data set, or an evaluated run.")
    ],
    size: Annotated[int, typer.Option(min=1, help="Number of images that the gallery will have.")],
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="An evaluated run, or a folder of runs; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what each code length costs and gives for a gallery of some size.

    MAP, distinct codes and search time are measured; the rest is computed. Without runs nothing can
    be measured, and only the sizes are shown.
    """
    from phpq.gallery.advice import COMMON_BITS, advise_run, find_runs
    from phpq.index.engine import most_bytes

    folders = list(runs or ())
    if is_run(Path(source)):
        folders.insert(0, Path(source))
    else:
        from phpq.data import open_dataset

        open_dataset(source, home=home())  # a data set that is not there is named
    found = find_runs(folders)
    advice: list[CodeAdvice] = []
    with progress_bars() as progress:
        for number, run in enumerate(found):
            progress("measuring", number, len(found))
            advice.append(advise_run(run, size))
    advice.sort(key=lambda row: (row.bits, -row.map_percent))
    lengths = [
        {
            "bits": bits,
            "bytes": bits // 8 * size,
            "memory_at_most": most_bytes(size, num_codebooks=bits // 8),
        }
        for bits in COMMON_BITS
    ]
    if as_json:
        rows = [asdict(row) for row in advice]
        print_json({"source": source, "size": size, "runs": rows, "code_bytes": lengths})
    elif advice:
        _print_measured(advice, size)
    else:
        _print_sizes(source, lengths, size)


def _print_measured(advice: list[CodeAdvice], size: int) -> None:
    from rich.text import Text

    names = ("bits", "bytes", "in memory", "MAP", "distinct", "ties", "ms/query")
    table = table_of(f"a gallery of {size:,} images", names)
    table.add_column("run", overflow="fold")
    for row in advice:
        table.add_row(
            f"{row.bits}",
            f"{row.bytes_per_image}",
            readable_bytes(row.memory_bytes),
            f"{row.map_percent:.2f}",
            f"{row.expected_distinct:,}",
            f"{row.images_per_code:,.{0 if row.images_per_code > 99 else 1}f}",
            f"{row.search_ms:.3g}",
            Text(row.run),
        )
    results().print(table)
    timed = max(row.timed_rows for row in advice)
    scaled = "" if timed >= size else f", scaled from {timed:,} rows"
    images = " or ".join(f"{count:,}" for count in sorted({row.images for row in advice}))
    extrapolated = (
        f"extrapolated from the evaluated gallery ({images} images; Chao1, a lower bound)"
    )
    made_up = f"{timed:,} made-up rows that repeat as the run's codes do"
    print_facts(
        (
            ("bytes", "computed: of one code"),
            ("MAP", "measured by phpq evaluate, on the run's own data set"),
            ("distinct", f"computed: codes that differ, {extrapolated}"),
            ("ties", "computed: images that share a code, on average"),
            ("in memory", f"measured: codes and index{scaled}"),
            ("ms/query", f"measured: top 10 on one thread, {made_up}"),
        )
    )


def _print_sizes(source: str, lengths: list[dict[str, int]], size: int) -> None:
    names = ("bits", "bytes/image", "codes", "in memory at most", "possible codes")
    table = table_of(f"codes of {size:,} images (computed)", names)
    for row in lengths:
        bits = row["bits"]
        memory = [readable_bytes(row["bytes"]), readable_bytes(row["memory_at_most"])]
        table.add_row(f"{bits}", f"{bits // 8}", *memory, f"2^{bits}")
    results().print(table)
    again = f"phpq train {source} --bits 32; phpq evaluate RUN; and again with --runs RUN"
    print_facts((("measured", "nothing: no evaluated run was given"), ("next", again)))
