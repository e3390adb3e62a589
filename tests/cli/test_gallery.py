from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from command_line import phpq, refused
from made_up_galleries import make_record, make_store
from own_galleries import add, filled, pictures
from phpq.additive import Calibration
from phpq.gallery import GalleryStore, VerifyReport
from phpq.gallery.owned import write_calibration
from sure_galleries import PARENTS, certain, coded_store, sure_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"n{i}", i, label="ab"[i % 2], year=2000 + i) for i in range(10)])
    return tmp_path / "g"


def test_info(folder: Path) -> None:
    outcome = phpq("gallery", "info", folder)
    assert "10 (0 without a label)" in outcome.out
    assert "year (int64)" in outcome.out
    content = phpq("gallery", "info", folder, "--json").json()
    assert (content["images"], content["labels"], content["bits"]) == (10, 2, 6)


def test_delete_by_id_and_by_expression(folder: Path) -> None:
    outcome = phpq("gallery", "delete", folder, "n1", "who")
    assert (outcome.code, outcome.err) == (0, "not in the gallery: 'who'\n")
    assert outcome.out.split() == ["deleted", "1", "image", "left", "9", "images"]
    content = phpq("gallery", "delete", folder, "--where", "label = 'a'", "--json").json()
    assert content == {"deleted": 5, "images": 4, "unknown": []}
    assert "either ids, or where" in refused("gallery", "delete", folder)
    assert "Columns: id" in refused("gallery", "delete", folder, "--where", "lable = 'a'")
    assert len(GalleryStore.open(folder)) == 4


def test_compact_and_export(folder: Path, tmp_path: Path) -> None:
    phpq("gallery", "delete", folder, "n1")
    content = phpq("gallery", "compact", folder, "--json").json()
    assert content["images"] == 9
    assert content["bytes_after"] < content["bytes_before"]
    assert "before" in phpq("gallery", "compact", folder).out
    out = tmp_path / "out.parquet"
    assert phpq("gallery", "export", folder, out).code == 0
    assert len(parquet.read_table(out)) == 9
    assert phpq("gallery", "export", folder, out, "--json").json()["images"] == 9
    assert "must end in .parquet" in refused("gallery", "export", folder, tmp_path / "out.csv")


def test_verify_says_what_is_wrong(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpq.gallery.repair._check_model", lambda _: None)  # it has none
    assert phpq("gallery", "verify", folder).out.split() == ["sound", "10", "images"]
    (folder / "manifest.json").write_text("{")
    outcome = phpq("gallery", "verify", folder)
    assert outcome.code == 1
    assert f"phpq gallery verify --repair {folder}" in outcome.out
    outcome = phpq("gallery", "verify", "--repair", folder)
    assert outcome.code == 0
    assert "wrote manifest.json anew" in outcome.out
    assert phpq("gallery", "verify", folder, "--json").json()["sound"] is True


def test_many_lost_images_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = tuple(map(str, range(25)))
    report = VerifyReport(3, ("x",), ("y",), lost)
    monkeypatch.setattr("phpq.gallery.repair.verify_gallery", lambda *_, **__: report)
    assert "... and 5 more" in phpq("gallery", "verify", folder).out


def test_what_is_no_gallery_is_named(tmp_path: Path) -> None:
    for command in ("info", "compact", "verify"):
        assert "is not a gallery" in refused("gallery", command, tmp_path)
        assert "does not exist" in refused("gallery", command, tmp_path / "none")
    assert phpq("gallery").code == 2
    assert phpq("gallery", "shrink").code == 2


def test_codebooks_of_its_own_are_described_and_fitted_anew(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    outcome = phpq("gallery", "info", tmp_path / "g")
    assert "its own, fitted to 20 images, 2 kinds, trust 0.9" in outcome.out
    assert "not due" in outcome.out
    assert "bytes per image" in outcome.out
    add(store, pictures(("blue",), 21, seed=1))
    due = phpq("gallery", "info", tmp_path / "g").out
    assert "due, it holds 41 images, and its codebooks were fitted to 20" in due
    assert f"phpq gallery refit {tmp_path / 'g'}" in due.replace("\n", "")
    outcome = phpq("gallery", "refit", tmp_path / "g", "--trust", "0.5")
    assert "41 images, 16 bits each" in outcome.out, outcome.err
    assert phpq("gallery", "refit", tmp_path / "g", "--json").json()["trust"] == 0.5
    content = phpq("gallery", "info", tmp_path / "g", "--json").json()
    assert (content["codebooks"], content["fit"]["fitted_rows"]) == ("own", 41)
    assert content["fit"]["due"] is None


def test_photos_to_calibrate_by_are_looked_for_among_the_downloads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    message = refused("gallery", "calibrate", folder, "cub200")
    assert str(tmp_path / "home" / "cub200") in message


def test_an_upgrade_its_way_back_and_its_end(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    outcome = phpq("gallery", "upgrade", tmp_path / "g", "--bits", "32")
    assert "40 images, 32 bits each" in outcome.out, outcome.err
    assert f"phpq gallery upgrade {tmp_path / 'g'} --rollback" in outcome.out.replace("\n", "")
    again = phpq("gallery", "upgrade", tmp_path / "g", "--bits", "32", "--json").json()
    assert (again["changed"], again["bits"], again["before"]) == (False, 32, store.version)
    assert f"version {store.version}, for" in phpq("gallery", "info", tmp_path / "g").out
    assert "rolled back" in phpq("gallery", "upgrade", tmp_path / "g", "--rollback").out
    assert "rolled back" in phpq("gallery", "upgrade", tmp_path / "g", "--rollback").out
    back = phpq("gallery", "upgrade", tmp_path / "g", "--rollback", "--json").json()
    assert (back["changed"], back["bits"]) == (True, 16)
    assert "version" in phpq("gallery", "upgrade", tmp_path / "g", "--drop-old").out
    content = phpq("gallery", "upgrade", tmp_path / "g", "--drop-old", "--json").json()
    assert content == {"dropped": None, "bytes_freed": 0}
    assert phpq("gallery", "info", tmp_path / "g", "--json").json()["before"] is None


def test_an_upgrade_that_cannot_be_made_is_refused(tmp_path: Path, folder: Path) -> None:
    filled(tmp_path / "own")
    upgrade = ("gallery", "upgrade", tmp_path / "own")
    assert "no version to go back to" in refused(*upgrade, "--rollback")
    assert "Say what to do" in refused(*upgrade)
    assert "Say what to do" in refused(*upgrade, "--bits", "8", "--rollback")
    assert "multiple of 8" in refused(*upgrade, "--bits", "9")
    assert "Say what to upgrade to" in refused("gallery", "upgrade", folder, "--bits", "8")
    assert "config.json" in refused(*upgrade, "--model", str(tmp_path / "own"))
    assert "does not exist" in refused("gallery", "upgrade", tmp_path / "none", "--bits", "8")


def test_labels_are_renamed_and_given(folder: Path) -> None:
    assert "codebooks of its model" in refused("gallery", "refit", folder)
    assert phpq("gallery", "rename", folder, "a", "wren", "--json").json() == {"changed": 5}
    assert phpq("gallery", "relabel", folder, "n1", "wren").out.split()[1:] == ["1", "image"]
    assert phpq("gallery", "relabel", folder, "n0", "--clear").out.split()[1:] == ["1", "image"]
    store = GalleryStore.open(folder)
    assert (store.count("label = 'wren'"), store.count("label IS NULL")) == (5, 1)
    assert "has the label 'a'" in refused("gallery", "rename", folder, "a", "x")
    assert "--clear" in refused("gallery", "relabel", folder, "n2")
    assert "--clear" in refused("gallery", "relabel", folder, "n2", "wren", "--clear")
    assert "no image 'who'" in refused("gallery", "relabel", folder, "who", "x")


def test_probabilities_are_told_and_parents_set(tmp_path: Path) -> None:
    sure_store(tmp_path / "g")
    told = " ".join(phpq("gallery", "info", tmp_path / "g").out.split())
    assert "fitted to 120 of its images; with at most 5% wrong" in told
    table = tmp_path / "parents.csv"
    table.write_text("".join(f"{child},{parent}\n" for child, parent in PARENTS.items()))
    outcome = phpq("gallery", "parents", tmp_path / "g", table)
    assert "8 names" in outcome.out, outcome.err
    content = phpq("gallery", "info", tmp_path / "g", "--json").json()["probabilities"]
    assert (content["children"], content["parents"]) == (8, 5)
    table.write_text("red light,red\nred,red light\n")
    assert "no circle" in refused("gallery", "parents", tmp_path / "g", table)
    assert "; --clear" in refused("gallery", "parents", tmp_path / "g")
    gone = refused("gallery", "parents", tmp_path / "g", tmp_path / "none.csv")
    assert gone.endswith("none.csv' cannot be read: No such file or directory.\n")
    cleared = phpq("gallery", "parents", tmp_path / "g", "--clear", "--json").json()
    assert cleared["children"] == 0
    filled(tmp_path / "small", ("red", "green"))
    told = " ".join(phpq("gallery", "info", tmp_path / "small").out.split())
    assert "not known: at least 100 labelled images" in told
    said = refused("gallery", "calibrate", tmp_path / "small", tmp_path / "no photos")
    assert said


def test_probabilities_of_a_models_codes_are_told(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    told = " ".join(phpq("gallery", "info", tmp_path / "g").out.split())
    assert "not known: neither the model nor the gallery was fitted" in told
    table = tmp_path / "parents.csv"
    table.write_text("red light,red\nred dark,red\n")
    content = phpq("gallery", "parents", tmp_path / "g", table, "--json").json()
    assert (content["children"], content["parents"], content["known"]) == (2, 1, False)
    assert "until then no parent is named" in phpq("gallery", "parents", tmp_path / "g", table).out
    said = Calibration(probabilities=certain(0), parents={"red light": "red"})
    with store.changing():
        store.commit_manifest(
            replace(store.manifest, chances=write_calibration(store.folder, said))
        )
    told = " ".join(phpq("gallery", "info", tmp_path / "g").out.split())
    assert "fitted to 100 photos; with at most 5% wrong, 50%" in told
    assert "parents 1 name" in told
