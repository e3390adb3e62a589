"""Tables of speed for README and docs/results: search, the server, shards, the grid of Table 1."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from render_tables import BITS, Load, markdown


def find_search(
    load: Load, codes: str, classes: int | None, rows: int, *, m: int, threads: int = 1
) -> dict[str, Any]:
    """Return one row of search.json."""
    wanted = (codes, classes, rows, m, threads)
    (found,) = (
        row
        for row in load("search")["results"]
        if (row["codes"], row["classes"], row["rows"], row["m"], row["threads"]) == wanted
    )
    return dict(found)


_KINDS = (("learned", 200), ("learned", 10_000), ("learned", 1_000_000), ("random", None))


def _search_cases() -> list[tuple[str, int | None, int]]:
    return [(codes, classes, m) for codes, classes in _KINDS for m in (2, 4, 6, 8)]


def _named(codes: str, classes: int | None) -> str:
    return codes if classes is None else f"{codes}, {classes:,} classes"


def ms(value: float) -> str:
    """Write milliseconds with three digits or so."""
    return f"{value:.{3 if value < 1 else 1 if value < 100 else 0}f}"


def times(value: float) -> str:
    """Write a ratio."""
    return f"{value:.{1 if value < 20 else 0}f}"


def _yes(row: Mapping[str, Any]) -> str:
    return "yes" if row["identical"] else "no"


def _bytes(row: Mapping[str, Any]) -> str:
    return f"{row['bytes_per_row']:.1f} ({1.5 * row['m'] + 8:.0f})"


def search_rows(rows: int) -> Callable[[Load], str]:
    """Return the renderer of one size of gallery, one thread."""

    def render(load: Load) -> str:
        heads = ["codes", "M", "distinct codes", "build s", "bytes per row (limit)"]
        heads += ["**ours** (mean)", "IndexPQ", "**ratio**", "identical"]
        lines = []
        for codes, classes, m in _search_cases():
            row = find_search(load, codes, classes, rows, m=m)
            lines.append(
                (
                    _named(codes, classes),
                    str(m),
                    f"{row['distinct_codes']:,}",
                    f"{row['build_s']:.1f}",
                    _bytes(row),
                    f"**{ms(row['ours_ms'])}** ({ms(row['ours_mean_ms'])})",
                    ms(row["faiss_pq_ms"]),
                    f"**{times(row['ratio'])}**",
                    _yes(row),
                )
            )
        return markdown(heads, lines)

    return render


def search_growth(load: Load) -> str:
    """Return what ten times the rows cost."""
    heads = ["codes", "M", "ours 1M", "ours 10M", "grows by"]
    heads += ["IndexPQ 1M", "IndexPQ 10M", "grows by"]
    lines = []
    for codes, classes, m in _search_cases():
        small, large = (find_search(load, codes, classes, rows, m=m) for rows in (10**6, 10**7))
        cells = [_named(codes, classes), str(m)]
        for name in ("ours_ms", "faiss_pq_ms"):
            grows = f"{large[name] / small[name]:.1f}"
            cells += [ms(small[name]), ms(large[name]), grows]
        lines.append(cells)
    return markdown(heads, lines)


def search_threads(load: Load) -> str:
    """Return the wall clock of all threads."""
    heads = ["codes", "M"]
    for size in ("1M", "10M"):
        heads += [f"ours {size}", f"IndexPQ {size}", "ratio"]
    lines = []
    for codes, classes, m in _search_cases():
        cells, same = [_named(codes, classes), str(m)], []
        for rows in (10**6, 10**7):
            row = find_search(load, codes, classes, rows, m=m, threads=2)
            cells += [ms(row["ours_ms"]), ms(row["faiss_pq_ms"]), times(row["ratio"])]
            same.append(row)
        lines.append([*cells, "yes" if all(row["identical"] for row in same) else "no"])
    return markdown([*heads, "identical"], lines)


def search_rivals(load: Load) -> str:
    """Return what the other indexes of faiss take."""
    heads = ["codes", "M", "ours", "IndexPQ", "IVFPQ (recall)", "FastScan, 4-bit"]
    heads += ["flat float, scaled", "numpy"]
    lines = []
    for row in load("search")["rivals_from_an_earlier_busy_run"]:
        ivf = f"{ms(row['faiss_ivfpq_ms'])} ({row['faiss_ivfpq_recall']:.3f})"
        first = [ms(row[name]) for name in ("ours_ms", "faiss_pq_ms")]
        last = [ms(row[name]) for name in ("faiss_fastscan_ms", "faiss_flat_ms", "numpy_ms")]
        lines.append([_named(row["codes"], row["classes"]), str(row["m"]), *first, ivf, *last])
    return markdown(heads, lines)


_LABELS = {"labelled": "with its labels", "new kinds": "without"}
_ASKED = {
    "held": "in the gallery",
    "new": "new photos of its classes",
    "strange": "classes that it does not hold",
}
_CODES = {"learned crops": "learned, real crops", "learned": "learned-like", "random": "random"}


def search_beside(load: Load) -> str:
    """Return search beside faiss over distinct codes and RaBitQ, larger galleries first."""
    heads = ["rows", "codes", "M", "distinct codes", "bytes per row", "**ours** (mean)"]
    heads += ["IndexPQ", "**ratio**", "IndexPQ, distinct", "ratio", "RaBitQ, scaled", "identical"]
    found = [row for row in _beside(load) if row["codes"] in _CODES]
    order = list(_CODES)
    found.sort(key=lambda r: (-r["rows"], order.index(r["codes"]), r["classes"] or 0, -r["m"]))
    lines = []
    for row in found:
        what = (_named(_CODES[row["codes"]], row["classes"]), str(row["m"]))
        weight = (f"{row['distinct_codes']:,}", f"{row['bytes_per_row']:.1f}")
        rabitq = f"{row['faiss_rabitq_ms']:.0f}"
        lines.append((f"{row['rows']:,}", *what, *weight, *_speeds(row), rabitq, _yes(row)))
    return markdown(heads, lines)


def search_new_kinds(load: Load) -> str:
    """Return search over a gallery's own codebooks, 8 bytes, larger galleries first."""
    heads = ["rows", "labels", "new codes within a", "queries", "distinct codes", "bytes per row"]
    heads += ["**ours** (mean)", "IndexPQ", "**ratio**", "IndexPQ, distinct", "ratio"]
    heads += ["rows left by 1 / 2 / 4 / 6 bytes, %", "identical"]
    found = [row for row in _beside(load) if row["codes"] in _LABELS]
    lines = []
    for row in sorted(found, key=lambda r: -r["rows"]):
        left = " / ".join(f"{100 * row['in_reach'][after - 1]:.1f}" for after in (1, 2, 4, 6))
        what = (_LABELS[row["codes"]], row["within"], _ASKED[row["asked"]])
        weight = (f"{row['distinct_codes']:,}", f"{row['bytes_per_row']:.1f}")
        lines.append((f"{row['rows']:,}", *what, *weight, *_speeds(row), left, _yes(row)))
    return markdown(heads, lines)


def search_crops(load: Load) -> str:
    """Return how often codes of real crops repeat, and those that are drawn from them."""
    known, lines = load("search")["tables"], []
    titles = {"learned_crops": "learned, 64 bits", "labelled": "own codebooks, with labels"}
    for name, title in (titles | {"new kinds": "own codebooks, without"}).items():
        one = known[name]
        within = {k.partition("within_")[2]: v for k, v in one.items() if "drawn" in k}
        drawn = ", ".join(
            f"{_share(v)} within a {k}" if k else _share(v) for k, v in within.items()
        )
        lines.append((title, f"{one['crops']:,}", _share(one["distinct_real"]), drawn))
    return markdown(("codes", "crops", "distinct", "of as many rows drawn"), lines)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _beside(load: Load) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load("search")["beside_distinct_codes_and_rabitq"]["results"]
    return rows


def _speeds(row: Mapping[str, Any]) -> tuple[str, ...]:
    ours = f"**{ms(row['ours_ms'])}** ({ms(row['ours_mean_ms'])})"
    whole = (ms(row["faiss_pq_ms"]), f"**{times(row['ratio'])}**")
    return (ours, *whole, ms(row["faiss_distinct_ms"]), f"{row['distinct_ratio']:.1f}")


def readme_search(load: Load) -> str:
    """Return milliseconds per query at 10 million learned-like codes of 10,000 classes."""
    rows = [find_search(load, "learned", 10_000, 10**7, m=m) for m in (2, 4, 6, 8)]
    return markdown(
        ("bits", *BITS),
        [
            ["ms per query", *(f"{row['ours_ms']:.2f}" for row in rows)],
            ["times faster", *(f"{row['ratio']:.0f}" for row in rows)],
        ],
    )


def serve_loads(load: Load) -> str:
    """Return requests per second and their times."""
    heads = ["query", "clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "errors"]
    loads = sorted(load("serve")["loads"], key=lambda one: (one["query"], one["clients"]))
    rows = []
    for one in loads:
        times = [one[f"{name}_ms"] for name in ("p50", "p95", "p99")]
        rows.append(
            (
                f"by {one['query']}",
                str(one["clients"]),
                f"{one['per_second']:.1f}",
                *(f"{value:.1f}" if value < 1000 else f"{value:,.0f}" for value in times),
                str(one["errors"]),
            )
        )
    return markdown(heads, rows, right=True)


def gallery_upgrade(load: Load) -> str:
    """Return what clients saw of galleries that were upgraded and rolled back."""
    heads = ["upgrade", "images", "seconds", "requests during it", "failed", "mixed"]
    heads += ["p50 ms before, during, after", "p99 ms", "rollback, seconds"]
    rows = []
    for run in load("upgrade")["runs"]:
        phases = ("before", "during", "after")
        rows.append(
            (
                run["what"],
                f"{run['images']:,}",
                f"{run['upgrade_seconds']:.0f}",
                f"{run['requests']['during']:,}",
                str(run["failed"]),
                str(run["two_answers"] + run["not_as_the_library"]),
                ", ".join(f"{run['p50_ms'][phase]:.0f}" for phase in phases),
                ", ".join(f"{run['p99_ms'][phase]:.0f}" for phase in phases),
                f"{run['rollback_seconds']:.0f}",
            )
        )
    return markdown(heads, rows, right=True)


def gallery_kills(load: Load) -> str:
    """Return how galleries were left by upgrades that were killed."""
    heads = ("killed", "during a change", "left as it was", "left changed", "readers' checks")
    kills = load("upgrade")["kills"]
    left = [kills["left"].get(name, 0) for name in ("old", "new")]
    cells = (kills["kills"], kills["inside_a_change"], *left, kills["readers_checked"])
    return markdown(heads, [[f"{cell:,}" for cell in cells]], right=True)


def sharded_speeds(load: Load) -> str:
    """Return requests per second of one process and of shards."""
    speeds = load("sharded")["speeds"]
    heads = ["served by", "1 client: requests/s", "p50 ms", "16 clients: requests/s", "p50 ms"]
    heads += ["past HTTP: queries/s", "memory of the server", "of each shard"]
    rows = []
    best = max(one["http_per_second"] for one in speeds)
    for name in dict.fromkeys(one["served_by"] for one in speeds):
        cells = [name.replace("1 shards", "1 shard")]
        for clients in (1, 16):
            (one,) = (s for s in speeds if (s["served_by"], s["clients"]) == (name, clients))
            rate = f"{one['http_per_second']:.1f}"
            strong = one["http_per_second"] == best
            cells += [f"**{rate}**" if strong else rate, f"{one['http_p50_ms']:.0f}"]
        (one,) = (s for s in speeds if (s["served_by"], s["clients"]) == (name, 1))
        past = one["handles_per_second"]
        cells += ["" if past is None else f"{past:.1f}", f"{one['front_mb']:,.0f} MB"]
        rows.append([*cells, f"{one['shard_mb']:,.0f} MB" if one["shard_mb"] else ""])
    return markdown(heads, rows)


def sharded_kills(load: Load) -> str:
    """Return what clients saw while a shard died."""
    heads = ["shards x replicas", "right answers", "wrong", "refused (503)"]
    heads += ["last refusal after", "first answer that needs the shard", "restarted and answering"]
    rows = [
        (
            f"{kill['shards']} x {kill['replicas']}",
            str(kill["answers"]),
            str(kill["wrong"]),
            str(kill["errors"]),
            f"{kill['error_window_s']:.1f} s" if kill["errors"] else "\N{EN DASH}",
            f"{kill['first_answer_s']:.1f} s",
            f"{kill['recovery_s']:.1f} s",
        )
        for kill in load("sharded")["kills"]
    ]
    return markdown(heads, rows)


def grid_whole(load: Load) -> str:
    """Return seconds of the whole grid, both ways."""
    data = load("grid")
    once, alone = (data[way]["rows"][0]["seconds"] for way in ("at_once", "one_by_one"))
    at_once = (
        "**eight at once** (`phpq reproduce --processes 8`), from the start to the last file",
        f"**{once:.0f}**",
        f"**{alone / once:.2f}**",
    )
    by_one = ("**one by one** (`--processes 1`), the same cells", f"**{alone:.0f}**", "1")
    return markdown(("", "seconds", "times as fast"), [at_once, by_one], right=True)


_GROUPS = (
    ("PHPQ",),
    ("SRLH",),
    ("ExchNet",),
    ("FPH",),
    ("CFH",),
    ("PQN",),
    ("DPSH", "DSH", "DTH", "HashNet"),
    ("ADSH", "CSQ", "OrthoHash"),
)


def grid_cells(load: Load) -> str:
    """Return seconds per cell, alone and with eight at once."""
    data = load("grid")

    def line(way: str, share: int) -> list[str]:
        seconds = data[way]["rows"][0]["cell_seconds"]

        def median(method: str) -> float:
            own = [v["all"] for key, v in seconds.items() if key.startswith(f"{method.lower()}-")]
            return float(statistics.median(own)) / share

        cells = []
        for group in _GROUPS:
            low, high = (f"{pick(map(median, group)):.1f}" for pick in (min, max))
            cells.append(low if low == high else f"{low} to {high}")
        return cells

    return markdown(
        ("seconds per cell, median of four lengths", *(", ".join(group) for group in _GROUPS)),
        [
            ("alone", *line("one_by_one", 1)),
            ("eight at once, an eighth of their time", *line("at_once", 8)),
        ],
        right=True,
    )


# Rows of the table of images/s -> what they are called in grid.json.
_STEPS = (
    ("alone, its step captured as a CUDA graph (the default of `phpq train`)", "captured"),
    ("alone, compiled too", "compiled"),
    ("... without kernels for what follows the first convolution", "compiled, not joined"),
    ("eight at once, captured", "captured, eight at once"),
    ("eight at once, compiled", "compiled, eight at once"),
    ("four at once, compiled", "compiled, four at once"),
    (
        "eight at once, compiled, each with 30 % of the GPU's multiprocessors",
        "compiled, eight at once, 30 % of the GPU each",
    ),
    (
        "... without kernels for what follows the first convolution",
        "compiled, not joined, eight at once, 30 % of the GPU each",
    ),
)


def grid_images(load: Load) -> str:
    """Return images/s of one method at three commits, alone and at once."""
    data = load("grid")
    known = data["images_per_second"]
    commits = ("ec00039", "37be071", "8234505")
    columns = [next(v for k, v in known.items() if f"commit {c}" in k) for c in commits]
    (plain,) = (
        rate
        for key, rate in data["earlier"]["plain_loop"]["rows"][0]["images_per_second"].items()
        if key.startswith("dsh-")
    )
    first = "alone, plain loop (`training.accelerate=off`, another day)"
    rows: list[tuple[str, ...]] = [(first, f"{plain:,.0f}", "", "")]
    best = max(_rate(value) for column in columns for value in column.values())

    def cell(value: float | list[float] | None) -> str:
        if value is None:
            return ""
        text = f"{_rate(value):,.0f}"
        return f"**{text}**" if _rate(value) == best else text

    rows += [(title, *(cell(column.get(name)) for column in columns)) for title, name in _STEPS]
    return markdown(("", *commits), rows, right=True)


def _rate(value: float | list[float]) -> float:
    """Return a rate, or the mean of several runs."""
    return float(statistics.mean(value) if isinstance(value, list) else value)


_RUNTIMES = {"torch": "torch", "onnx": "ONNX (the default on a CPU)", "int8": "int8"}


def _laptop(section: str, columns: Mapping[str, tuple[str, str]]) -> Callable[[Load], str]:
    """Return a table of runtimes: what a column is called, what holds it, and how it is written."""

    def render(load: Load) -> str:
        rows = [
            (_RUNTIMES[row["runtime"]], *(format(row[key], how) for key, how in columns.values()))
            for row in load("laptop")[section]
        ]
        return markdown(("runtime", *columns), rows, right=True)

    return render


laptop_search = _laptop("start", {"first, s": ("first_s", ".1f"), "again, s": ("again_s", ".1f")})
laptop_serve = _laptop(
    "serve",
    {
        "ready, s": ("ready_s", ".1f"),
        "PSS, MB": ("pss_mb", ".0f"),
        "uploads per second": ("uploads_per_s", ".1f"),
    },
)
laptop_codes = _laptop(
    "codes",
    {
        "MB": ("MB", ".0f"),
        "images/s": ("images/s", ".1f"),
        "times torch": ("x torch", ".2f"),
        "equal codes, %": ("same codes %", ".2f"),
        "MAP": ("MAP", ".2f"),
    },
)


def laptop_first(load: Load) -> str:
    """Return the seconds of a newcomer's commands."""
    *parts, total = load("laptop")["first"]
    rows = [(f"`{row['command']}`", f"{row['seconds']:.0f}") for row in parts]
    return markdown(("command", "s"), [*rows, ("all", f"{total['seconds']:.0f}")], right=True)


def laptop_whole(load: Load) -> str:
    """Return the MAP of all classes by backbones that are frozen, or nearly so."""
    runs = load("frozen")["runs"]
    lengths = tuple(next(iter(runs.values()))["labelled"])
    rows = [
        (name, f"{run['map']:.1f}", *(f"{run['labelled'][bits]:.1f}" for bits in lengths))
        for name, run in runs.items()
    ]
    labelled = tuple(f"with labels, {bits} bits" for bits in lengths)
    return markdown(("learns", "its own codes, 64 bits", *labelled), rows, right=True)


def gallery_indexing(content: Any) -> str:
    """Return indexing beside bare decoding and bare inference."""
    heads = ("backbone", "images", "decoding, images/s", "inference", "indexing", "ratio")
    rows = [
        (
            row["backbone"],
            str(row["images"]),
            f"{row['decode_per_s']:.0f}",
            f"{row['inference_per_s']:.1f}",
            f"{row['indexing_per_s']:.1f}",
            f"**{row['ratio']:.2f}**" if row["within_target"] else f"{row['ratio']:.2f}",
        )
        for row in content["results"]
    ]
    return markdown(heads, rows)


def sharded_encoding(content: Any) -> str:
    """Return bulk encoding in one process and by actors of Ray."""
    rows = [
        (row["way"], f"{row['seconds']:.1f}", f"{row['overall_per_s']:.1f}")
        for row in content["results"]
    ]
    return markdown(("way", "seconds", "images/s"), rows)
