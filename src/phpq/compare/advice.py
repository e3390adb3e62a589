"""The numbers of a comparison in, a sentence or two of advice out; it may be against phpq.

Within one point of the best MAP, the smallest index is recommended, or the simplest one if it is
small anyway. Galleries with labels on every image and galleries without get a sentence each, since
the first may use a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TIE = 1.0  # points of MAP within which rows count as equally good
CAUTION = 3.0  # points of R@1 of unseen classes that are worth a warning
LIGHT = 100e6  # bytes of a gallery that are not worth saving
_SIMPLE = ("float", "classify", "compressed", "fast", "phpq")  # the simplest to run first

Row = Mapping[str, Any]  # of `measure.Row.to_dict`


def advise(rows: Sequence[Row], *, room: float) -> list[str]:
    """Recommend what to use; `room` is the memory, in bytes, that a gallery may take."""
    measured = [row for row in rows if _quality(row) is not None and row["speeds"]]
    fitting = [row for row in measured if _memory(row) <= room]
    if not fitting:
        return ["Nothing could be measured that fits into memory: there is no advice to give."]
    without = [row for row in fitting if not row["uses_labels"]]
    if len(without) in (0, len(fitting)):
        return _advise_on("", fitting, measured)
    picks = _pick(fitting), _pick(without)
    if picks[0] is picks[1]:
        return _advise_on("With or without labels in the gallery: ", without, measured)
    with_labels = _advise_on("If every image of the gallery has a label: ", fitting, measured)
    return [*with_labels, *_advise_on("If not: ", without, measured)]


def _advise_on(start: str, rows: Sequence[Row], measured: Sequence[Row]) -> list[str]:
    pick = _pick(rows)
    sentences = [f"{start}{_recommend(pick, rows)}"]
    heavier = [row for row in measured if row not in rows and not row["uses_labels"]]
    better = [row for row in heavier if _value(row) > _value(pick) + TIE]
    if better and not pick["uses_labels"]:
        best = max(better, key=_value)
        sentences.append(
            f"{_quoted(best)} would be better (MAP {_value(best):.1f}), but takes "
            f"{_size(_memory(best))}, which is more than there is room for."
        )
    known = [row for row in rows if row.get("unseen_r1") is not None]
    if known and pick.get("unseen_r1") is not None:
        best = max(known, key=lambda row: float(row["unseen_r1"]))
        if best["unseen_r1"] > pick["unseen_r1"] + CAUTION:
            sentences.append(
                f"Of kinds that were never learned, {_quoted(best)} finds more: R@1 "
                f"{best['unseen_r1']:.1f} for {pick['unseen_r1']:.1f}."
            )
    return sentences


def _pick(rows: Sequence[Row]) -> Row:
    best = max(map(_value, rows))
    near = [row for row in rows if _value(row) >= best - TIE]
    light = [row for row in near if _memory(row) <= LIGHT]
    if light:
        return min(light, key=lambda row: (_SIMPLE.index(row["group"]), _memory(row)))
    return min(near, key=_memory)


def _recommend(pick: Row, rows: Sequence[Row]) -> str:
    """Name a row, and compare it with the best of phpq or of the others."""
    ours = pick["group"] == "phpq"
    others = [row for row in rows if (row["group"] == "phpq") != ours]
    what = f"{_quoted(pick)}, MAP {_value(pick):.1f} in {_size(_memory(pick))}"
    verdict = f"use {what}" if ours else f"use something else than phpq: {what}"
    if not others:
        return f"{verdict}."
    rival = max(others, key=_value)
    side = "the best other way" if ours else "the best of phpq"
    beside = f"{_quoted(rival)}, MAP {_value(rival):.1f} in {_size(_memory(rival))}"
    return f"{verdict}; {side} is {beside}."


def _quoted(row: Row) -> str:
    return f"\N{LEFT DOUBLE QUOTATION MARK}{row['name']}\N{RIGHT DOUBLE QUOTATION MARK}"


def _quality(row: Row) -> float | None:
    value = row.get("map")
    return row.get("unseen_map") if value is None else value


def _value(row: Row) -> float:
    value = _quality(row)
    assert value is not None  # rows without a value were left out before
    return value


def _memory(row: Row) -> float:
    """Return the bytes of the whole gallery, at the largest requested size."""
    speed = max(row["speeds"], key=lambda one: one["asked"])
    return float(speed["memory"] * speed["asked"])


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
