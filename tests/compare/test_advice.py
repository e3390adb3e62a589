"""Each outcome of the advice, on made-up numbers."""

from __future__ import annotations

from typing import Any

from phpq.compare.advice import advise

ROOM = 8e9


def row(
    name: str,
    group: str,
    quality: float | None,
    memory: float,
    *,
    labels: bool = False,
    unseen: float | None = None,
    rows: int = 1_000_000,
) -> dict[str, Any]:
    """Return a row of a table at one size."""
    return {
        "name": name,
        "group": group,
        "map": quality,
        "unseen_map": None,
        "unseen_r1": unseen,
        "uses_labels": labels,
        "speeds": [{"asked": rows, "memory": memory}],
    }


def test_phpq_that_is_best_is_recommended_beside_the_next() -> None:
    (said,) = advise(
        [
            row("float", "float", 40.0, 2048),
            row("PQ", "compressed", 35.0, 8),
            row("ours", "phpq", 80.0, 20),
        ],
        room=ROOM,
    )
    assert said == (
        "use “ours”, MAP 80.0 in 20 MB; the best other way is “float”, MAP 40.0 in 2.05 GB."
    )


def test_float_search_that_is_better_and_fits_is_recommended() -> None:
    (said,) = advise([row("float", "float", 85.0, 2048), row("ours", "phpq", 80.0, 20)], room=ROOM)
    assert said.startswith("use something else than phpq: “float”")
    assert "the best of phpq is “ours”, MAP 80.0" in said


def test_float_search_that_is_better_but_does_not_fit_is_named() -> None:
    said = advise([row("float", "float", 85.0, 20_480), row("ours", "phpq", 80.0, 20)], room=ROOM)
    assert said[0].startswith("use “ours”")
    assert said[1] == (
        "“float” would be better (MAP 85.0), but takes 20.5 GB, which is more than there is room "
        "for."
    )


def test_of_equals_the_lighter_is_taken_and_of_light_ones_the_simplest() -> None:
    rows = [row("float", "float", 80.5, 2048), row("ours", "phpq", 80.0, 20)]
    assert advise(rows, room=ROOM)[0].startswith("use “ours”")
    few = [
        row("float", "float", 80.5, 2048, rows=5000),
        row("ours", "phpq", 80.9, 20, rows=5000),
    ]
    assert advise(few, room=ROOM)[0].startswith("use something else than phpq: “float”")


def test_another_code_of_few_bytes_may_win() -> None:
    rows = [row("OPQ", "compressed", 82.0, 200), row("ours", "phpq", 80.0, 20)]
    assert advise(rows, room=ROOM)[0].startswith("use something else than phpq: “OPQ”")


def test_labels_get_a_sentence_of_their_own() -> None:
    rows = [
        row("probe", "classify", 90.0, 5, labels=True, unseen=20.0),
        row("ours", "phpq", 80.0, 20, unseen=50.0),
        row("float", "float", 40.0, 2048, unseen=48.0),
    ]
    said = advise(rows, room=ROOM)
    assert said[0].startswith("If every image of the gallery has a label: use something else")
    assert said[1] == ("Of kinds that were never learned, “ours” finds more: R@1 50.0 for 20.0.")
    assert said[2].startswith("If not: use “ours”")
    assert len(said) == 3


def test_one_sentence_where_labels_change_nothing() -> None:
    rows = [row("probe", "classify", 70.0, 5, labels=True), row("ours", "phpq", 80.0, 20)]
    (said,) = advise(rows, room=ROOM)
    assert said.startswith("With or without labels in the gallery: use “ours”")


def test_nothing_that_fits_is_said() -> None:
    assert "no advice" in advise([row("float", "float", 80.0, 1e6)], room=1e9)[0]
    assert "no advice" in advise([row("float", "float", None, 1.0)], room=1e9)[0]
