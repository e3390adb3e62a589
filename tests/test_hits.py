"""Hits and their verdict, which all answers share, and the import of a client without numpy."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from phpq.hits import Found, Hit, Sure, Verdict

NOT_KNOWN = {"known": None, "probability": None, "sure": None}


def found(*labels: str | None) -> Found:
    hits = [Hit(n, f"i{n}", 1.5, 0.5, label, None, {}) for n, label in enumerate(labels, 1)]
    return Found(tuple(hits), total=9, best=3.0)


def test_a_hit_is_plain_data() -> None:
    values = {
        "a": 1, "b": float("nan"), "c": datetime.date(2024, 5, 1), "d": None, "e": True, "f": b"x"
    }  # fmt: skip
    hit = Hit(3, "x", 1.5, 0.5, None, "/files/x", values, thumbnail="/t", has_original=True)
    content = json.loads(json.dumps(hit.to_dict(), allow_nan=False))
    assert content["metadata"] == {
        "a": 1, "b": None, "c": "2024-05-01", "d": None, "e": True, "f": "b'x'"
    }  # fmt: skip
    plain = ["rank", "id", "score", "share", "label", "uri", "probability", "metadata"]
    assert list(content) == plain
    assert content["probability"] is None


def test_what_was_found_is_a_sequence() -> None:
    answer = found("a", "b")
    assert len(answer) == 2
    assert [hit.id for hit in answer] == ["i1", "i2"]
    assert answer[-1].id == "i2"
    assert answer[:1] == answer.hits[:1]
    assert not found()
    assert answer.to_dict()["hits"] == [hit.to_dict() for hit in answer]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("a", "b", "b"), Verdict("b", 2 / 3)),
        (("a", "b", "b", "a"), Verdict("a", 0.5)),  # of equal counts the better placed one
        ((None, "b", None), Verdict("b", 1 / 3)),  # a share of all hits
        ((None, None), None),
        ((), None),
    ],
)
def test_the_verdict(labels: tuple[str | None, ...], expected: Verdict | None) -> None:
    answer = found(*labels)
    assert answer.verdict == expected
    plain = answer.to_dict()["verdict"]
    shown = {"label": expected.label, "share": expected.share} if expected else {}
    assert plain == (expected and shown | {"runners_up": [], "by": "hits", **NOT_KNOWN})


def test_the_verdict_is_by_kinds_where_there_are_kinds() -> None:
    kinds = (("c", 0.5), ("a", 0.25), ("b", 0.125))
    answer = replace(found("a", "a"), kinds=kinds)
    assert answer.verdict == Verdict("c", 0.5, kinds[1:], by="kinds")
    plain = answer.to_dict()["verdict"]
    others = [["a", 0.25], ["b", 0.125]]
    assert plain == {"label": "c", "share": 0.5, "runners_up": others, "by": "kinds", **NOT_KNOWN}
    assert replace(answer, kinds=()).verdict is None


def test_the_verdict_has_a_probability() -> None:
    sure = Sure(None, None, 0.4, 0.05)
    answer = replace(found("a"), kinds=(("c", 0.5), ("a", 0.25)), known=0.8, sure=sure)
    verdict = answer.verdict
    assert verdict is not None
    assert verdict.probability == 0.4
    plain = json.loads(json.dumps(answer.to_dict()))["verdict"]
    assert plain["sure"] == {
        "label": None,
        "level": None,
        "probability": 0.4,
        "wrong_at_most": 0.05,
    }
    assert (plain["known"], plain["probability"]) == (0.8, 0.4)
    assert Sure(**plain["sure"]) == sure


def test_hits_and_a_client_need_no_numpy() -> None:
    code = (
        "import sys, phpq.hits, phpq.client;"
        "sys.exit(bool({'numpy', 'torch', 'lance'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
