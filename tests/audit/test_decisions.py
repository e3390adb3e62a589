"""Decisions: each is one change, nothing goes without a yes, and each can be undone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from doubtful_galleries import COPY, EQUAL, WRONG, doubtful
from made_up_galleries import make_record, make_store
from own_galleries import codes_of, expected_codes, fit_again
from phpq.audit import Audit, decide, list_decisions, undo
from phpq.audit.decisions import left_open
from phpq.audit.report import CopyGroup, Outlier, WrongLabel
from phpq.errors import ConfigError, DataError, UnknownNameError
from phpq.gallery import GalleryStore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doubtful(tmp_path_factory.mktemp("decided") / "g").folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> GalleryStore:
    shutil.copytree(made, tmp_path / "g")
    return GalleryStore.open(tmp_path / "g")


def state(store: GalleryStore) -> dict[str, Any]:
    """Return what is stored by id, but for the order."""
    store.refresh()
    return {
        record.id: (record.label, record.uri, record.sha256, dict(record.metadata))
        for record in store.records(store.dataset.to_table())
    }


def test_relabel_and_undo(store: GalleryStore) -> None:
    before, name = state(store), next(iter(WRONG))
    decision = decide(str(store.folder), "k1", "relabel", ids=[name], label="red")
    assert (decision.number, decision.had) == (1, ("blue",))
    assert state(store)[name][0] == "red"
    assert undo(store.folder) == decision
    assert state(store) == before
    assert list_decisions(store.folder) == []
    assert codes_of(store) == expected_codes(store)


def test_nothing_is_deleted_without_a_yes_and_all_comes_back(store: GalleryStore) -> None:
    before = state(store)
    for action, ids in (("delete", EQUAL), ("merge", COPY)):
        with pytest.raises(ConfigError, match="without a yes"):
            decide(store, "k", action, ids=ids)  # type: ignore[arg-type]
    assert state(store) == before
    decide(store, "k", "delete", ids=EQUAL, yes=True)
    assert before.keys() - state(store).keys() == set(EQUAL)
    undo(store)
    assert state(store) == before
    assert codes_of(store) == expected_codes(store)
    assert list((store.folder / "audit").glob("*.arrow")) == []


def test_a_merge_keeps_the_first_and_gives_it_a_label(store: GalleryStore) -> None:
    decide(store, "k0", "relabel", ids=[COPY[0]], label=None)
    before = state(store)
    decision = decide(store, "k1", "merge", ids=COPY, yes=True)
    assert decision.label == "green"
    after = state(store)
    assert COPY[1] not in after
    assert after[COPY[0]][0] == "green"
    undo(store)
    assert state(store) == before


def test_merged_labels_come_apart_again(store: GalleryStore) -> None:
    before = state(store)
    decide(store, "k", "merge labels", old_label="grey", label="blue")
    assert "grey" not in {label for label, *_ in state(store).values()}
    undo(store)
    assert state(store) == before
    assert codes_of(store) == expected_codes(store)


def test_the_last_decision_is_undone_first(store: GalleryStore) -> None:
    start = state(store)
    decide(store, "a", "keep")
    decide(store, "b", "relabel", ids=["red/1.png"], label="blue")
    decide(store, "c", "delete", ids=["red/1.png"], yes=True)
    assert [each.key for each in list_decisions(store.folder)] == ["a", "b", "c"]
    assert [undo(store).key for _ in range(3)] == ["c", "b", "a"]
    assert state(store) == start
    with pytest.raises(ConfigError, match="no decision to undo"):
        undo(store)


def test_wrong_decisions_change_nothing(store: GalleryStore) -> None:
    before = state(store)
    for words, action, given in (
        ("not allowed", "burn", {}),
        ("needs 1 ids", "delete", {"yes": True}),
        ("needs 2 ids", "merge", {"ids": ["red/1.png"], "yes": True}),
        ("needs two labels", "merge labels", {"label": "red"}),
    ):
        with pytest.raises(ConfigError, match=words):
            decide(store, "k", action, **given)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="no image"):
        decide(store, "k", "delete", ids=["red/1.png", "who"], yes=True)
    with pytest.raises(UnknownNameError, match="'pink'"):
        decide(store, "k", "merge labels", old_label="pink", label="red")
    assert state(store) == before
    assert list_decisions(store.folder) == []


def test_after_a_refit_what_was_deleted_gets_new_codes(store: GalleryStore) -> None:
    before = state(store)
    decide(store, "k", "delete", ids=EQUAL, yes=True)
    fit_again(store, bits=24)
    undo(store)
    assert state(store) == before
    assert codes_of(store) == expected_codes(store)


def test_under_another_model_it_cannot_be_put_back(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"n{i}", i, year=2000 + i) for i in range(4)])
    before = state(store)
    decide(store, "k", "delete", ids=["n1", "n2"], yes=True)
    store.put([make_record("n9", 9, place="marsh")])  # a column that came since
    undo(store)
    assert {name: row[3]["year"] for name, row in state(store).items() if name in before} == {
        f"n{i}": 2000 + i for i in range(4)
    }
    decide(store, "k", "delete", ids=["n1"], yes=True)
    (store.folder / "audit" / "1.arrow").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be put back"):
        undo(store)
    assert len(list_decisions(store.folder)) == 1


def test_what_is_decided_or_gone_is_not_shown(store: GalleryStore) -> None:
    report = Audit(
        gallery="g",
        version=1,
        images=9,
        vectors="kept embeddings",
        copies=(
            CopyGroup("c1", (*EQUAL, "red/2.png"), False, ("blue", "blue", "red")),
            CopyGroup("c2", COPY, False, ("green", "green")),
        ),
        wrong_labels=(WrongLabel("w", "red/3.png", "blue", "red", 0.9, 0.9),),
        outliers=(Outlier("o", "red/strange.png", "red", 0.1, 0.5),),
    ).to_dict()
    decide(store, "c2", "keep")
    decide(store, "o", "delete", ids=["red/strange.png", "red/3.png", EQUAL[1]], yes=True)
    left = left_open(report, list_decisions(store.folder))
    assert [each["ids"] for each in left["copies"]] == [[EQUAL[0], "red/2.png"]]
    assert left["copies"][0]["labels"] == ["blue", "red"]
    assert (left["wrong_labels"], left["outliers"]) == ([], [])
