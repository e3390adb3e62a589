"""Probabilities of a gallery: by other photos, with parents, through changes of the gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from made_up_galleries import FakeModel, make_own_store
from own_galleries import add, codes_of, fit_again
from phpq.errors import ConfigError, DataError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery.calibration import calibrate, describe, read_parents, set_parents
from phpq.gallery.labels import rename_labels
from phpq.gallery.owned import CALIBRATIONS, read_calibration
from phpq.gallery.repair import verify_store
from sure_galleries import COLOURS, PARENTS, STRANGE, coded_store, photos, sure_store


def by_photos(store: GalleryStore, source: Any) -> dict[str, Any]:
    return calibrate(store, lambda: FakeModel().model, source)


def test_a_gallery_describes_its_calibration(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    summary = describe(store)
    assert (summary["known"], summary["by"], summary["wrong_at_most"]) == (True, "gallery", 0.05)
    assert 0 <= summary["named"] == summary["answered"] <= 1
    small = sure_store(tmp_path / "h")
    small.delete(where="id LIKE '%1%'")
    fit_again(small)
    assert describe(small)["known"] is False
    assert "at least 100 labelled images" in describe(small)["why_not"]


def test_photos_of_known_and_unknown_kinds_calibrate_it(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    codes = store.own_codebooks().codewords
    summary = by_photos(store, photos([*COLOURS, *STRANGE], 20, seed=4))
    assert (summary["by"], summary["images"]) == ("photos", 120)
    opened = GalleryStore.open(store.folder)
    assert opened.own_codebooks().probabilities == store.own_codebooks().probabilities
    assert (opened.own_codebooks().codewords == codes).all()
    fit_again(store)
    assert describe(store)["by"] == "gallery"


def test_what_cannot_calibrate_is_refused(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    before = store.version
    with pytest.raises(DataError, match="12 photos do not suffice"):
        by_photos(store, photos(list(COLOURS), 2, seed=4))
    plain = [photo | {"label": None} for photo in photos(list(COLOURS), 2, seed=4)]
    with pytest.raises(DataError, match="No labelled photo"):
        by_photos(store, plain)
    assert GalleryStore.open(store.folder).version == before
    bare = sure_store(tmp_path / "bare", keep_embeddings=False)
    assert bare.own_codebooks().probabilities is not None  # fitted while embeddings were there
    with pytest.raises(ConfigError, match="keeps no embeddings"):
        by_photos(bare, photos(list(COLOURS), 20, seed=4))


def test_photos_calibrate_a_gallery_with_the_codebooks_of_its_model(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    codes, summary = codes_of(store), describe(store)
    assert (summary["known"], summary["parents"]) == (False, 0)
    assert "phpq gallery calibrate" in summary["why_not"]
    summary = by_photos(store, photos([*COLOURS, *STRANGE], 20, seed=4))
    assert (summary["by"], summary["images"], summary["known"]) == ("photos", 120, True)
    opened = GalleryStore.open(store.folder)
    assert opened.manifest.format_version == 1  # older versions of phpq open it too
    assert read_calibration(opened.folder, opened.manifest).probabilities is not None
    assert codes_of(opened) == codes
    assert describe(opened) == summary


def test_too_few_photos_change_nothing_of_such_a_gallery(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    version = store.version
    with pytest.raises(DataError, match="12 photos do not suffice"):
        by_photos(store, photos(list(COLOURS), 2, seed=4))
    with pytest.raises(DataError, match="No labelled photo"):
        by_photos(store, [])
    with pytest.raises(ConfigError, match="neither a label of the gallery"):
        set_parents(store, {"no such": "red"})
    opened = GalleryStore.open(store.folder)
    assert (opened.version, opened.manifest.chances) == (version, "")


def test_parents_of_such_a_gallery_stay_until_they_are_changed(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    summary = set_parents(store, PARENTS)
    assert (summary["known"], summary["children"], summary["parents"]) == (False, 8, 5)
    summary = by_photos(store, photos(list(COLOURS), 20, seed=4))
    fitted = read_calibration(store.folder, store.manifest).probabilities
    assert fitted is not None
    assert (summary["parents"], len(fitted.parent_weights)) == (5, 2)
    rename_labels(store, {"red dark": "crimson"})
    calibration = read_calibration(store.folder, store.manifest)
    assert (calibration.parents["crimson"], calibration.probabilities) == ("red", fitted)
    add(store, photos(["yellow"], 3, seed=1))
    store.compact()  # which removes older files
    store = GalleryStore.open(store.folder)
    assert [path.stem for path in (store.folder / CALIBRATIONS).iterdir()] == [
        store.manifest.chances
    ]
    # Other parents have not been fitted to: a parent needs what a kind needs.
    summary = set_parents(store, {"blue dark": "blue"})
    calibration = read_calibration(store.folder, store.manifest)
    assert calibration.probabilities == fitted.without_parents()
    assert (summary["known"], summary["parents"], summary["named"]) == (
        True,
        1,
        summary["answered"],
    )
    assert set_parents(store, {})["parents"] == 0


def test_a_damaged_file_of_such_a_gallery_is_named_and_given_up(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    set_parents(store, PARENTS)
    path = store.folder / CALIBRATIONS / f"{store.manifest.chances}.json"
    path.write_text(path.read_text().replace("warm", "worm"))
    with pytest.raises(FormatError, match=r"is not what was written.* verify --repair"):
        describe(store)
    assert not verify_store(store.folder).sound
    assert verify_store(store.folder, repair=True).sound
    assert describe(GalleryStore.open(store.folder))["parents"] == 0
    set_parents(store, PARENTS)
    path.unlink()
    with pytest.raises(FormatError, match="cannot be read"):
        describe(store)


def test_parents_stay_until_they_are_changed(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    summary = set_parents(store, PARENTS)
    assert (summary["children"], summary["parents"]) == (8, 5)
    assert summary["answered"] >= summary["named"]
    fit_again(store)
    assert GalleryStore.open(store.folder).own_codebooks().parents == PARENTS
    add(store, photos(["yellow"], 3, seed=1))
    assert store.own_codebooks().parents == PARENTS
    rename_labels(store, {"red dark": "crimson"})
    parents = store.own_codebooks().parents
    assert parents["crimson"] == "red"
    assert "red dark" not in parents
    rename_labels(store, {"crimson": "red"})  # a label with the name of its parent
    assert store.own_codebooks().parents["red"] == "warm"
    assert set_parents(store, {})["parents"] == 0


def test_without_embeddings_parents_need_what_a_kind_needs(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g", keep_embeddings=False)
    set_parents(store, PARENTS)
    fitted = store.own_codebooks().probabilities
    assert fitted is not None
    assert fitted.parent_weights == ()
    assert fitted.cut_off(1, 0.1) == fitted.cut_off(0, 0.1)


def test_without_embeddings_other_parents_lose_the_fit_of_the_old_ones(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g", keep_embeddings=False)
    set_parents(store, PARENTS)
    fit_again(store)  # which has embeddings, and fits the parents
    fitted = store.own_codebooks().probabilities
    assert fitted is not None
    assert len(fitted.parent_weights) == 2
    set_parents(store, {"blue dark": "blue"})
    assert store.own_codebooks().probabilities == fitted.without_parents()


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"red light": "red", "red": "warm", "warm": "red"}, "would belong to itself"),
        ({"red light": "red light"}, "would belong to itself"),
        ({"no such": "red"}, "'no such' is neither a label of the gallery nor a parent"),
        ({"red light": ""}, "must not be empty"),
    ],
)
def test_tables_that_make_no_sense_are_refused(
    tmp_path: Path, parents: dict[str, str], message: str
) -> None:
    store = sure_store(tmp_path / "g")
    with pytest.raises(ConfigError, match=message):
        set_parents(store, parents)
    assert store.own_codebooks().parents == {}


def test_a_table_of_parents_is_read(tmp_path: Path) -> None:
    table = tmp_path / "parents.csv"
    table.write_text('\ufefflabel,parent\n\nred light, red\n"a, b",c\n', encoding="utf-8")
    assert read_parents(table) == {"red light": "red", "a, b": "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\na,c\n", "gives 'a' two parents, 'b' and 'c'"),
        ("a\n", "as its entry 1; expected two names"),
        ("a,b\nc,\n", "as its entry 2"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "parents.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_parents(tmp_path / "parents.csv")


def test_tables_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes.csv", "none.csv"):
        with pytest.raises(DataError, match="cannot be read"):
            read_parents(tmp_path / name)


def test_columns_give_the_parents_of_labels(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g")
    rows = photos(list(COLOURS), 2, seed=0)
    for row in rows:
        family = str(row["label"]).split()[0]
        own = row["label"] if family == "green" else family  # a kind may be its own family
        row |= {"family": own, "group": PARENTS.get(family)}
    rows[0]["family"] = None
    add(store, rows)
    summary = set_parents(store, ["family", "group"])
    parents = dict(store.own_codebooks().parents)
    assert parents["red dark"] == "red"
    assert parents["green light"] == "cold"  # by way of itself
    assert parents["red"] == "warm"
    assert summary["children"] == len(parents)
    with pytest.raises(ConfigError, match=r"no column 'genus'\. Its columns: family, group"):
        set_parents(store, ["genus"])
    add(store, [photos(["blue dark"], 3, seed=1)[2] | {"family": "grey"}])
    with pytest.raises(DataError, match="'blue dark' two parents, 'blue' and 'grey'"):
        set_parents(store, ["family"])
    assert store.own_codebooks().parents == parents
