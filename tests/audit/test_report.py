"""A gallery with planted mistakes: what is found, by what, and what cannot be told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from doubtful_galleries import BARE, COPY, EQUAL, STRANGE, WRONG, doubtful, write_files
from made_up_galleries import FakeModel, make_own_store, make_store
from own_galleries import add
from phpq.audit import audit_gallery, report, rows
from phpq.audit.report import Audit, keep_report, kept_report, key_of
from phpq.errors import ConfigError
from phpq.gallery import GalleryStore


class LearnedModel(FakeModel):
    """One that has learned labels of other names."""

    class_names = ("owl",)


def audited(store: GalleryStore, where: str | None = None) -> Audit:
    return audit_gallery(store, lambda: LearnedModel().model, where=where)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GalleryStore:
    return doubtful(tmp_path_factory.mktemp("doubtful") / "g")


@pytest.fixture(scope="module")
def found(store: GalleryStore) -> Audit:
    return audited(store)


def test_copies_are_grouped_the_largest_first(found: Audit) -> None:
    groups = {each.ids: each for each in found.copies}
    assert groups.keys() == {COPY, EQUAL}
    assert (groups[COPY].exact, groups[EQUAL].exact) == (False, True)
    assert groups[COPY].labels == ("green", "green")


def test_wrong_labels_are_named_with_the_right_ones(found: Audit) -> None:
    named = {each.id: each for each in found.wrong_labels}
    assert set(WRONG) <= set(named)
    assert len(named) <= len(WRONG) + 1  # the strange one is of no kind
    for name, given in WRONG.items():
        assert (named[name].label, named[name].suggested) == (given, name.split("/")[0])
        assert named[name].wrong > 0.5
    assert found.wrong_share is not None
    assert 0.01 < found.wrong_share < 0.12


def test_an_outlier_and_what_to_label_next(found: Audit) -> None:
    assert STRANGE in {each.id for each in found.outliers}
    assert all(each.nearness < each.usual for each in found.outliers)
    assert {each.id for each in found.to_label} == set(BARE)
    assert {each.id: each.suggested for each in found.to_label} == {
        name: name.split("/")[0] for name in BARE
    }


def test_it_says_what_it_rests_on_and_changes_nothing(store: GalleryStore, found: Audit) -> None:
    assert (found.images, found.vectors) == (len(store), "kept embeddings")
    assert found.version == store.version == GalleryStore.open(store.folder).version
    assert found.notes == ()
    content = found.to_dict()
    assert found.findings == sum(
        len(content[name])
        for name in ("copies", "wrong_labels", "outliers", "to_label", "confused")
    )
    keep_report(store.folder, found)
    kept = kept_report(store.folder)
    assert kept is not None
    assert [tuple(each["ids"]) for each in kept["copies"]] == [each.ids for each in found.copies]


@pytest.mark.slow  # galleries that are made anew
def test_without_embeddings_the_images_tell_the_same(
    store: GalleryStore, found: Audit, tmp_path: Path
) -> None:
    bare = make_own_store(tmp_path / "g", keep_embeddings=False)
    add(bare, write_files(tmp_path / "pictures"), batch_size=256)
    again = audited(bare)
    assert again.vectors == "embeddings made now"
    assert again.copies == found.copies
    assert {each.id for each in again.wrong_labels} == {each.id for each in found.wrong_labels}
    shutil.rmtree(tmp_path / "pictures" / "red")
    less = audited(bare)
    assert any("cannot be read any more" in note for note in less.notes)
    assert {each.ids for each in less.copies} == {COPY, EQUAL}
    shutil.rmtree(tmp_path / "pictures")
    least = audited(bare)
    assert [each.ids for each in least.copies] == [EQUAL]  # by what was indexed
    assert (least.wrong_labels, least.outliers) == ((), ())


@pytest.mark.slow  # galleries that are made anew
def test_codes_of_a_model_tell_something_of_images_that_are_gone(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    add(store, write_files(tmp_path / "pictures"), batch_size=256)
    whole = audited(store)
    assert whole.notes == ()
    shutil.rmtree(tmp_path / "pictures")
    found = audited(store)
    assert any("their codes tell less" in note for note in found.notes)
    assert found.wrong_share is not None
    known = audit_gallery(store, lambda: NamesakeModel().model)
    assert any("learned labels of these names" in note for note in known.notes)


class NamesakeModel(FakeModel):
    class_names = ("red", "blue")


def test_an_expression_looks_at_a_part(store: GalleryStore) -> None:
    part = audited(store, where="id LIKE 'blue/%'")
    assert part.images == 21
    assert [each.ids for each in part.copies] == [EQUAL]
    assert any("Labels are not judged" in note for note in part.notes)
    with pytest.raises(ConfigError, match="cannot be used"):
        audited(store, where="lable = 'red'")


def test_an_empty_gallery_has_nothing_to_look_at(tmp_path: Path) -> None:
    assert audited(make_own_store(tmp_path / "g")).findings == 0
    assert kept_report(tmp_path / "g") is None


@pytest.mark.slow  # galleries that are made anew
def test_too_many_are_refused(store: GalleryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 10)
    with pytest.raises(ConfigError, match="Look at a part"):
        audited(store)
    monkeypatch.undo()
    monkeypatch.setattr(report, "MAX_SCORES", 10)
    found = audited(store)
    assert found.wrong_labels == ()
    assert any("too many to judge" in note for note in found.notes)


@pytest.mark.slow  # galleries that are made anew
def test_labels_that_look_alike_are_confused(tmp_path: Path) -> None:
    items = write_files(tmp_path / "pictures")
    for number, item in enumerate(items):
        if item["label"] == "red" and number % 2:
            item["label"] = "crimson"
    store = make_own_store(tmp_path / "g")
    add(store, items, batch_size=256)
    pairs = {each.labels: each for each in audited(store).confused}
    assert ("crimson", "red") in pairs
    assert pairs["crimson", "red"].share > 0.2
    assert sum(pairs["crimson", "red"].images) == 20


def test_a_key_names_a_finding_by_kind_and_images() -> None:
    assert key_of("label", ["a", "b"]) == key_of("label", ["a", "b"])
    assert (
        len({key_of("label", ["a", "b"]), key_of("copies", ["a", "b"]), key_of("label", ["ab"])})
        == 3
    )
