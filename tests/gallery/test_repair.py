"""A damaged gallery is seen, and what can be fixed is fixed, the model's part too."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from finished_runs import copy_run
from made_up_galleries import make_record, make_store
from own_galleries import codes_of, filled
from phpq.data import write_plumage
from phpq.errors import FormatError
from phpq.gallery import Gallery, GalleryStore, Record, verify_store
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import IMAGES, MANIFEST
from phpq.gallery.repair import verify_gallery
from phpq.model.weights import write_safetensors
from tiny_runs import tiny_birds, tiny_network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A gallery of four data files and five versions."""
    store = make_store(tmp_path / "g")
    for part in range(4):
        store.put([make_record(f"{part}-{i}", 10 * part + i) for i in range(10)])
    return tmp_path / "g"


def ids_of(folder: Path) -> set[str]:
    return {name for t in batches(GalleryStore.open(folder)) for name in t["id"].to_pylist()}


def test_a_sound_gallery_stays_as_it_is(folder: Path) -> None:
    for repair in (False, True):
        report = verify_store(folder, repair=repair)
        assert report.sound
        assert report.images == 40
        assert not report.problems
        assert not report.repairs
    assert GalleryStore.open(folder).version == 5


def test_a_lost_or_damaged_manifest_is_written_anew(folder: Path) -> None:
    kept = (folder / MANIFEST).read_text()
    for damage in ("{", "[]", kept.replace('"bits": 6', '"bits": 9'), None):
        if damage is None:
            (folder / MANIFEST).unlink()
        else:
            (folder / MANIFEST).write_text(damage)
        assert not verify_store(folder).sound
        report = verify_store(folder, repair=True)
        assert report.sound
        assert report.images == 40
        assert "manifest.json" in report.repairs[0]
        assert (folder / MANIFEST).read_text() == kept


def test_the_last_good_version_is_taken(folder: Path) -> None:
    newest, second = sorted((folder / IMAGES / "_versions").glob("*.manifest"))[:2]
    newest.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:30])
    assert not verify_store(folder).sound
    report = verify_store(folder, repair=True)
    assert report.sound
    assert report.images == 20
    assert len(report.problems) == 2
    assert {part.split("-")[0] for part in ids_of(folder)} == {"0", "1"}
    assert (folder / "damaged" / newest.name).is_file()  # set aside, not deleted
    assert verify_store(folder).problems == ()
    GalleryStore.open(folder).put([make_record("new")])
    assert len(ids_of(folder)) == 21


def test_a_version_that_vanished_is_noted(folder: Path) -> None:
    min((folder / IMAGES / "_versions").glob("*.manifest")).unlink()
    assert verify_store(folder).problems == ("version 5 is missing; the newest left is 4",)
    assert verify_store(folder, repair=True).images == 30
    assert len(ids_of(folder)) == 30


@pytest.mark.parametrize("damage", ["gone", "short", "random"])
def test_a_broken_data_file_costs_its_rows_only(folder: Path, damage: str) -> None:
    file = min((folder / IMAGES / "data").iterdir())
    if damage == "gone":
        file.unlink()
    else:
        size = file.stat().st_size
        noise = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8).tobytes()
        file.write_bytes(file.read_bytes()[:100] if damage == "short" else noise)
    report = verify_store(folder)
    assert not report.sound
    assert "a data file of 10 rows is damaged" in report.problems[0]
    report = verify_store(folder, repair=True)
    assert report.sound
    assert report.images == len(ids_of(folder)) == 30
    assert verify_store(folder).problems == ()


def spoil(folder: Path, names: Sequence[str]) -> None:
    """Write wrong codes under the checks of the right ones."""
    dataset = lance.dataset(folder / IMAGES)
    table = dataset.to_table(filter="id IN (" + ",".join(f"'{n}'" for n in names) + ")")
    books = table.schema.field("code").type.list_size
    ones = pa.array(np.full(books * len(table), 1, np.uint8))
    wrong = pa.FixedSizeListArray.from_arrays(ones, books)
    table = table.set_column(table.schema.get_field_index("code"), "code", wrong)
    dataset.merge_insert("id").when_matched_update_all().execute(table)


def test_damaged_codes_are_made_again_or_dropped(folder: Path) -> None:
    good = GalleryStore.open(folder).find(["1-3"])["1-3"]
    spoil(folder, ["1-3", "2-0"])
    with pytest.raises(FormatError, match="verify --repair"):
        find_part(GalleryStore.open(folder)).codes()
    assert verify_store(folder).problems == ("2 images have a damaged code",)

    def encode(records: Sequence[Record]) -> list[Record | None]:
        assert {record.id for record in records} == {"1-3", "2-0"}
        return [replace(r, code=good.code) if r.id == "1-3" else None for r in records]

    report = verify_store(folder, repair=True, encode=encode)
    assert report.sound
    assert report.lost == ("2-0",)
    assert report.images == 39
    store = GalleryStore.open(folder)
    assert store.find(["1-3"])["1-3"].code.tolist() == good.code.tolist()
    assert store.find(["1-3"])["1-3"].uri == good.uri
    assert len(find_part(store).codes()) == 39


def test_without_a_model_damaged_codes_are_dropped(folder: Path) -> None:
    spoil(folder, ["0-0"])
    report = verify_store(folder, repair=True)
    assert (report.images, report.lost) == (39, ("0-0",))


def test_repeated_ids_keep_the_last(folder: Path) -> None:
    store = GalleryStore.open(folder)
    store.append([make_record("0-0", 33)])  # past the check of `put`
    assert verify_store(folder).problems == ("1 rows repeat an id",)
    assert verify_store(folder, repair=True).images == 40
    assert GalleryStore.open(folder).find(["0-0"])["0-0"].sha256 == bytes([33]) * 32


def test_problems_that_cannot_be_repaired_are_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        verify_store(tmp_path / "none")
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    for file in (other / IMAGES / "_versions").glob("*.manifest"):
        file.write_bytes(b"")
    with pytest.raises(FormatError, match="no readable version left"):
        verify_store(other, repair=True)
    shutil.rmtree(folder / IMAGES)
    with pytest.raises(FormatError, match="nothing is left to repair"):
        verify_store(folder, repair=True)


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    run = copy_run(tmp_path / "run")
    write_plumage(tmp_path / "birds", tiny_birds(2, 1))
    Gallery.create(tmp_path / "g", run).add(tmp_path / "birds")
    return tmp_path / "g"


def spoil_all_codes(coded: Path) -> None:
    dataset = lance.dataset(coded / "images.lance")
    table = dataset.to_table()
    wrong = pa.FixedSizeListArray.from_arrays(pa.array(np.full(4 * len(table), 7, np.uint8)), 4)
    table = table.set_column(table.schema.get_field_index("code"), "code", wrong)
    dataset.merge_insert("id").when_matched_update_all().execute(table)


def test_lost_codes_are_made_again_from_the_files(coded: Path, tmp_path: Path) -> None:
    before = Gallery.open(coded).search(np.ones(32, np.float32), 100)
    spoil_all_codes(coded)
    files = sorted((tmp_path / "birds").rglob("*.png"))
    files[0].unlink()
    files[1].write_bytes(files[2].read_bytes())  # another image now
    assert not verify_gallery(coded).sound
    report = verify_gallery(coded, repair=True)
    assert report.sound
    assert len(report.lost) == 2
    after = Gallery.open(coded).search(np.ones(32, np.float32), 100)
    scores = {hit.id: hit.score for hit in after}
    assert len(scores) == len(before) - 2
    assert all(scores.get(hit.id, hit.score) == hit.score for hit in before)


def test_a_wrong_or_broken_model_is_reported_and_not_repaired(coded: Path) -> None:
    weights = coded / "model" / "weights.safetensors"
    write_safetensors(weights, tiny_network(seed=5).state_dict(), {"epoch": "1"})
    for repair in (False, True):
        report = verify_gallery(coded, repair=repair)
        assert not report.sound
        assert "another model" in report.problems[0]
    weights.unlink()
    report = verify_gallery(coded, repair=True)
    assert not report.sound
    assert "the model cannot be read" in report.problems[0]


def test_a_gallery_that_owns_its_codebooks_needs_no_images_to_be_repaired(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    codes = codes_of(store)
    spoil(store.folder, ["red/0/1", "blue/0/2"])
    assert verify_store(store.folder).problems == ("2 images have a damaged code",)
    report = verify_store(store.folder, repair=True)
    assert (report.sound, report.lost) == (True, ())
    assert codes_of(GalleryStore.open(store.folder)) == {name: codes[name] for name in codes}
    # The manifest is written anew from that of the newest version.
    (store.folder / MANIFEST).write_text("{")
    assert verify_store(store.folder, repair=True).sound
    assert GalleryStore.open(store.folder).manifest == store.manifest
