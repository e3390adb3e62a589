"""The tables of docs/results/scale.md and docs/guides/scale.md: scale.json in, Markdown out.

They are tables of `render.py`, by the names of `TABLES`: a test fails where a page says something
else than scale.json and the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scale_model import CHECKED, RANDOM, ROW_NUMBER, CostModel, Growth, spread

DOCS = Path(__file__).parents[1] / "docs"
DATA = DOCS / "results" / "scale.json"
PAGE = DOCS / "results" / "scale.md"
GUIDE = DOCS / "guides" / "scale.md"

SIZES = tuple(10**power for power in range(4, 11))
USUAL = 1000  # rows per class of the examples
BILLION = 10**9
SHARDS = (1, 2, 4, 10, 20, 40)
LARGEST = 10**8  # rows that were measured; what is beyond is marked
CROP, ENCODED = 224, 288  # pixels a side in training and in encoding
HOURS_A_MONTH = 730

Data = dict[str, Any]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def images(count: float) -> str:
    """Write 10,000 and 1 million."""
    for size, name in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:,.3g} {name}"
    return f"{count:,.0f}"


def size(count: float) -> str:
    """Write bytes as kB to TB, powers of ten."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{_short(count / unit)} {name}"
    return f"{_short(count / 1e3)} kB"


def seconds(value: float) -> str:
    """Write a time as s, min, h or days."""
    for unit, name in ((86400 * 2, "days"), (5400, "h"), (90, "min")):
        if value >= unit:
            return f"{_short(value / {'days': 86400, 'h': 3600, 'min': 60}[name])} {name}"
    return f"{_short(value)} s"


def milliseconds(value: float) -> str:
    """Write ms, or s from one second."""
    return f"{_short(value)} ms" if value < 1000 else f"{_short(value / 1000)} s"


def _short(value: float) -> str:
    """Keep two digits, or all before the point."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _percent(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f}%"


def _path(rows_per_class: int) -> str:
    return "never repeat" if rows_per_class == RANDOM else f"{rows_per_class:,} rows per class"


def encoding_rates(data: Data) -> tuple[float, float]:
    """Return images/s of one CPU core, and of one GPU machine.

    A GPU encodes at least as fast as it trains, pixel for pixel: training goes forward and back.
    Decoding is done by the machine's cores.
    """
    cited, assumed = data["cited"], data["assumed"]
    least = cited["train_per_gpu"]["value"] * (CROP / ENCODED) ** 2
    decoded = cited["decode_per_core"]["value"] * assumed["gpu_machine_cores"]
    return cited["index_per_core"]["value"], min(least, decoded)


def measured_table(data: Data, model: CostModel) -> str:
    """Return what was measured; of more than 10M rows also what follows from less."""
    model = CostModel.fit(data["cases"], data["m"], largest=CHECKED)
    heads = ["rows", "codes", "distinct codes", "bytes per row", "build s", "peak of the build"]
    heads += ["mean ms per query", "median", "95%", "all threads"]
    rows = []
    for case in data["cases"]:
        count, path = case["rows"], case["rows_per_class"]
        new = count > CHECKED

        def beside(text: str, predicted: float, measured: float, new: bool = new) -> str:
            return f"{text} ({_percent(predicted, measured)})" if new else text

        bytes_ = case["memory_bytes"]
        rows.append(
            (
                images(count),
                _path(path),
                beside(f"{case['distinct']:,}", model.distinct(count, path), case["distinct"]),
                beside(f"{bytes_ / count:.2f}", model.memory_bytes(count, path), bytes_),
                beside(_short(case["build_s"]), model.build_s(count, path), case["build_s"]),
                f"{case['build_peak_bytes_per_row']:.0f} bytes per row",
                beside(f"{case['mean_ms']:.3g}", model.search_ms(count, path), case["mean_ms"]),
                f"{case['median_ms']:.3g}",
                f"{case['p95_ms']:.3g}",
                f"{case['all_threads_ms']:.3g}",
            )
        )
    return table(heads, rows)


def lines_table(data: Data, model: CostModel) -> str:
    """Return the fitted numbers."""
    rows = []
    for path, growth in sorted(model.search.items()):
        each = dict(model.curve).get(path)
        (start, slope), (later, steep) = growth.line(CHECKED - 1), growth.line(CHECKED + 1)
        rows.append(
            (
                _path(path),
                "1 per row" if each is None else f"{each:,.1f} per class",
                f"{start:.3f} + {1e6 * slope:.4f} n",
                f"{later:.3f} + {1e6 * steep:.4f} n",
                f"{1e6 * model.build[path].line(CHECKED + 1)[1]:.2f} n",
            )
        )
    heads = ("codes", "distinct codes d(r)", "ms per query, 1 to 10 million rows")
    return table((*heads, "from 10 million rows", "build, s"), rows)


def galleries_table(data: Data, model: CostModel) -> str:
    """Return galleries on disk."""
    rows = [
        (
            images(case["rows"]),
            f"{case['disk_bytes_per_row']:.0f}",
            f"{_short(case['rows'] / case['write_s'])}",
            f"{case['open_s']:.2f}",
            size(case["open_peak_bytes"]),
        )
        for case in data["galleries"]
    ]
    heads = ("records", "bytes per row on disk", "records/s written", "s to open")
    return table((*heads, "peak of opening"), rows)


def sizes_table(data: Data, model: CostModel) -> str:
    """Return memory and search time from 10 thousand to 10 billion."""
    disk, opened = _disk(data), _open_s(data)
    rows = []
    for count in SIZES:
        most = model.most_bytes(count) + ROW_NUMBER * count
        usual = model.memory_bytes(count, USUAL) + ROW_NUMBER * count
        mark = " *" if count > LARGEST else ""
        rows.append(
            (
                images(count),
                size(data["m"] * count),
                size(usual),
                size(most),
                size(disk * count),
                seconds(opened.at(count)),
                size(max(most, opening_bytes(data, count))),
                milliseconds(model.search_ms(count, USUAL)) + mark,
                milliseconds(model.search_ms(count, RANDOM)) + mark,
                f"{machines(data, max(most, opening_bytes(data, count)))}",
            )
        )
    gb = data["assumed"]["cpu_machine_gb"]
    heads = ["images", "codes alone", f"in memory, {USUAL:,} rows per class", "in memory at most"]
    heads += [
        "on disk",
        "to open",
        "at the peak of opening",
        f"a query, {USUAL:,} rows per class",
        "never repeat",
    ]
    return table((*heads, f"machines of {gb:g} GB"), rows)


def encoding_table(data: Data, model: CostModel) -> str:
    """Return the hours and the costs of encoding."""
    assumed = data["assumed"]
    core, gpu = encoding_rates(data)
    rows = []
    for count in SIZES:
        core_hours, gpu_hours = count / core / 3600, count / gpu / 3600
        cpu_hours = core_hours / assumed["cpu_machine_cores"]
        rows.append(
            (
                images(count),
                f"{_short(core_hours)}",
                f"{_short(cpu_hours)}",
                f"${_short(cpu_hours * assumed['cpu_machine_hour'])}",
                f"{_short(gpu_hours)}",
                f"${_short(gpu_hours * assumed['gpu_machine_hour'])}",
            )
        )
    heads = ("images", "core-hours", "CPU machine-hours", "cost", "GPU machine-hours", "cost")
    return table(heads, rows)


def shards_table(data: Data, model: CostModel) -> str:
    """Return a billion rows over shards, one machine each."""
    cores = data["assumed"]["cpu_machine_cores"]
    rows = []
    for count in SHARDS:
        usual = spread(model, BILLION, USUAL, count, top_k=data["top_k"])
        worst = spread(model, BILLION, RANDOM, count, top_k=data["top_k"])
        mark = " *" if usual.rows > LARGEST else ""
        rows.append(
            (
                f"{count}",
                images(usual.rows),
                f"{usual.rows_per_class:,.0f}",
                size(usual.memory_bytes),
                size(model.most_bytes(usual.rows) + ROW_NUMBER * usual.rows),
                milliseconds(usual.search_ms) + mark,
                f"{_short(1000 * cores / usual.search_ms)}",
                milliseconds(worst.search_ms) + mark,
                f"{_short(1000 * cores / worst.search_ms)}",
                f"{usual.merged:,}",
            )
        )
    heads = ["shards", "rows each", "rows per class each", "memory each", "at most"]
    heads += ["a query", "queries/s", "never repeat", "queries/s", "entries merged"]
    return table(heads, rows)


def billion_table(data: Data, model: CostModel) -> str:
    """Return the whole bill of a billion images."""
    assumed, cited = data["assumed"], data["cited"]
    core, gpu = encoding_rates(data)
    learned = assumed["training_images"] * cited["train_epochs"]["value"]
    train_hours = learned / cited["train_per_gpu"]["value"] / 3600
    cpu_hours = BILLION / core / 3600 / assumed["cpu_machine_cores"]
    gpu_hours = BILLION / gpu / 3600
    disk = _disk(data) * BILLION
    served = 2 * machines(data, opening_bytes(data, BILLION))
    month = served * HOURS_A_MONTH
    cpu, gpu_price = assumed["cpu_machine_hour"], assumed["gpu_machine_hour"]
    epochs = f"{cited['train_epochs']['value']:.0f} epochs"
    rows = [
        (
            f"train on {images(assumed['training_images'])} labelled images, {epochs}",
            f"{_short(train_hours)} GPU machine-hours",
            f"${_short(train_hours * gpu_price)}",
        ),
        (
            "encode, on GPU machines",
            f"{_short(gpu_hours)} GPU machine-hours",
            f"${_short(gpu_hours * gpu_price)}",
        ),
        (
            "or on CPU machines",
            f"{_short(cpu_hours)} CPU machine-hours",
            f"${_short(cpu_hours * cpu)}",
        ),
        ("keep the gallery on disk", size(disk), _monthly(disk / 1e9, data, "storage_gb_month")),
        (
            f"serve, {served // 2} x 2 machines (two replicas)",
            f"{month:,} CPU machine-hours a month",
            f"${_short(month * cpu)} a month",
        ),
        ("build an index (one core)", seconds(model.build_s(BILLION, RANDOM)), "at every start"),
    ]
    return table(("what", "how much", "cost"), rows)


def assumptions_table(data: Data, model: CostModel) -> str:
    """Return what was not measured here."""
    assumed, cited = data["assumed"], data["cited"]
    _, gpu = encoding_rates(data)
    memory = f"{assumed['cpu_machine_cores']:g} cores, {assumed['cpu_machine_gb']:g} GB"
    rows = [
        ("CPU machine", memory, f"assumed, ${assumed['cpu_machine_hour']:.2f} an hour"),
        (
            "GPU machine",
            f"one GPU, {assumed['gpu_machine_cores']:g} cores",
            f"assumed, ${assumed['gpu_machine_hour']:.2f} an hour",
        ),
        (
            "memory that may be used",
            f"{100 * assumed['memory_share']:g}%",
            "assumed",
        ),
        ("object storage", f"${assumed['storage_gb_month']:g} a GB and month", "assumed"),
        (
            "training, one H200",
            f"{cited['train_per_gpu']['value']:,.0f} images/s",
            _source(cited["train_per_gpu"]),
        ),
        (
            "decoding, one core",
            f"{cited['decode_per_core']['value']:,.0f} images/s",
            _source(cited["decode_per_core"]),
        ),
        (
            "encoding with ResNet-18, one core",
            f"{cited['index_per_core']['value']:,.1f} images/s",
            _source(cited["index_per_core"]),
        ),
        (
            "encoding, one GPU machine",
            f"{gpu:,.0f} images/s",
            "computed, see below; not measured",
        ),
    ]
    return table(("what", "value", "where from"), rows)


def machines(data: Data, memory: float) -> int:
    """Return how many CPU machines hold that much memory."""
    assumed = data["assumed"]
    room = float(assumed["memory_share"] * 1e9 * assumed["cpu_machine_gb"])
    return math.ceil(memory / room)


def _source(item: dict[str, Any]) -> str:
    return f"measured: [{item['source']}](../results/{item['source']})"


def _monthly(amount: float, data: Data, price: str) -> str:
    return f"${_short(amount * data['assumed'][price])} a month"


def _disk(data: Data) -> float:
    return float(data["galleries"][-1]["disk_bytes_per_row"])


def _open_s(data: Data) -> Growth:
    """Return seconds by rows."""
    return Growth(tuple((case["rows"], case["open_s"]) for case in data["galleries"]))


def opening_bytes(data: Data, rows: float) -> float:
    """Return the memory that opening takes at its peak: row numbers, codes and the build.

    That grows with the rows; Lance's buffers do not, and are what a gallery took beyond it.
    """
    largest = max(case["rows"] for case in data["cases"])
    builds = [case for case in data["cases"] if case["rows"] == largest]
    each = ROW_NUMBER + max(float(case["build_peak_bytes_per_row"]) for case in builds)
    opened = data["galleries"][-1]
    fixed = max(0.0, float(opened["open_peak_bytes"] - each * opened["rows"]))
    return fixed + each * rows


def setting_line(data: Data, model: CostModel) -> str:
    """Return what was measured on what."""
    about = f"Codes of {data['m']} bytes, top-{data['top_k']}, {data['machine']}."
    return f"{about} {data['note']}".rstrip()


TABLES: dict[str, Callable[[Data, CostModel], str]] = {
    "setting": setting_line,
    "measured": measured_table,
    "lines": lines_table,
    "galleries": galleries_table,
    "assumptions": assumptions_table,
    "sizes": sizes_table,
    "encoding": encoding_table,
    "shards": shards_table,
    "billion": billion_table,
}
