"""Codebooks that a gallery owns: fitted to its first images, extended by classes, found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import FakeModel, general_embedding, make_own_store, make_store
from own_galleries import (
    KINDS,
    add,
    codes_of,
    expected_codes,
    filled,
    fit_again,
    pictures,
    query_for,
    view_of,
    write_pictures,
)
from phpq.errors import DataError, FormatError
from phpq.gallery import GalleryStore, ingest
from phpq.gallery.ingest import Ingest, encode_again
from phpq.gallery.owned import BOOKS, code_records, read_codebooks, write_codebooks
from phpq.gallery.records import Record
from phpq.gallery.repair import verify_store
from phpq.gallery.view import Page


def files(store: GalleryStore) -> list[str]:
    return sorted(path.stem for path in (store.folder / BOOKS).glob("*"))


def test_the_first_commit_fits_and_codes_in_the_order_of_the_source(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    manifest = store.manifest
    assert (manifest.fitted_rows, manifest.fit, len(store)) == (20, manifest.books, 20)
    assert files(store) == [manifest.books]
    assert store.own_codebooks().class_names == ("green", "red")
    assert codes_of(store) == expected_codes(store)
    opened = GalleryStore.open(store.folder)
    assert opened.manifest == manifest
    found = view_of(store).search_many(query_for("red"), Page(top_k=5))[0]
    assert {hit.label for hit in found} == {"red"}


def test_codes_do_not_depend_on_batches_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled(tmp_path / "whole", ("red", "green"))
    add(whole, pictures(("red", "green"), 9, seed=1))
    monkeypatch.setattr(ingest, "FIT_IMAGES", 20)
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", 3)
    parts = make_own_store(tmp_path / "parts")
    both = [*pictures(("red", "green"), 10), *pictures(("red", "green"), 9, seed=1)]
    add(parts, both, batch_size=5)
    assert parts.manifest.fitted_rows == 20
    assert codes_of(parts) == codes_of(whole)


def test_a_class_that_comes_later_leaves_codes_valid(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    before, old = store.manifest, codes_of(store)
    add(store, pictures(("red",), 3, seed=1))
    assert store.manifest == before  # no new class: no new codebooks
    add(store, pictures(("blue",), 5, seed=2))
    after = store.manifest
    assert (after.fit, after.fitted_rows) == (before.fit, before.fitted_rows)
    assert after.books != before.books
    assert files(store) == sorted([before.books, after.books])
    assert {name: codes_of(store)[name] for name in old} == old
    assert codes_of(store) == expected_codes(store)
    found = view_of(store).search_many(query_for("blue"), Page(top_k=5))[0]
    assert {hit.label for hit in found} == {"blue"}
    assert found.verdict is not None
    assert found.verdict.label == "blue"
    # A reader of the version before finds the codebooks of that version.
    for version in range(1, store.version + 1):
        there = GalleryStore.open(store.folder, version=version)
        there.own_codebooks()
        assert there.manifest.books in (before.books, after.books, "")


def test_images_added_one_by_one_are_as_good_as_together(tmp_path: Path) -> None:
    rows = pictures(("blue",), 5, seed=2)
    prototypes = []
    for name in ("together", "apart"):
        store = filled(tmp_path / name, ("red", "green"))
        order = list(codes_of(store))
        for part in [rows] if name == "together" else [[row] for row in rows]:
            assert add(store, part).replaced == 0
        assert codes_of(store) == expected_codes(store)
        assert list(codes_of(store)) == [*order, *(row["id"] for row in rows)]
        books = store.own_codebooks()
        assert sorted(books.class_names) == ["blue", "green", "red"]
        assert store.manifest.fit != store.manifest.books
        slot = books.class_codes[books.class_names.index("blue")]
        prototypes.append(books.codewords[0, slot[0]])
    np.testing.assert_allclose(prototypes[0], prototypes[1], atol=1e-3)
    before = store.manifest.books
    add(store, pictures(("blue",), 3, seed=3))  # it is grown up
    assert store.manifest.books == before


def test_compacting_removes_codebooks_of_no_version(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    add(store, pictures(("blue",), 5, seed=2))
    codes = codes_of(store)
    store.compact()
    assert files(store) == [store.manifest.books]
    assert codes_of(GalleryStore.open(store.folder)) == codes


def test_a_row_with_another_label_is_coded_again(tmp_path: Path) -> None:
    for keep in (True, False):
        store = filled(tmp_path / f"g{keep}", ("red", "green"), keep_embeddings=keep)
        old = codes_of(store)
        renamed = [row | {"label": "green"} for row in pictures(("red",), 2)]
        report = add(store, renamed)
        assert (report.replaced, report.unchanged) == (2, 0)
        new = codes_of(store)
        classes = store.own_codebooks().class_codes.tolist()
        assert [old[row["id"]][0] for row in renamed] == classes[1] * 2
        assert {name for name, code in new.items() if old[name] != code} <= {
            row["id"] for row in renamed
        }
        if keep:
            assert new == expected_codes(store)
        # Another place of the same image changes no code.
        moved = [row | {"year": 2000} for row in pictures(("green",), 2)]
        assert add(store, moved).replaced == 2
        assert codes_of(store) == new


def test_embeddings_need_not_be_kept(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red",), keep_embeddings=False)
    assert "embedding" not in store.dataset.schema.names
    kept = filled(tmp_path / "kept", ("red",))
    assert codes_of(store) == codes_of(kept)


def test_an_emptied_gallery_is_fitted_to_what_comes(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    old = store.manifest.fit
    store.delete(where="label IS NOT NULL")
    add(store, pictures(("blue", "grey"), 4))
    assert store.manifest.fit != old
    assert store.own_codebooks().class_names == ("blue", "grey")
    assert codes_of(store) == expected_codes(store)


def test_many_later_images_take_spare_codewords_and_leave_codes_valid(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g", keep_embeddings=False)
    add(store, pictures(("red", "green"), 10))
    before, old, books = store.manifest, codes_of(store), store.own_codebooks()
    add(store, pictures(("blue", "grey"), 50))
    after, grown = store.manifest, store.own_codebooks()
    assert (after.fit, after.fitted_rows) == (before.fit, before.fitted_rows)
    assert {name: codes_of(store)[name] for name in old} == old
    assert grown.spare[1] < books.spare[1] == 96
    found = view_of(store).search_many(query_for("blue"), Page(top_k=5))[0]
    assert {hit.id.split("/")[0] for hit in found} == {"blue"}


def test_later_images_that_fit_badly_are_fitted_to_where_nothing_is_spare_or_kept(
    tmp_path: Path,
) -> None:
    old, new = pictures(("red", "green"), 60, labelled=False), pictures(("blue", "grey"), 70)
    store = make_own_store(tmp_path / "g", keep_embeddings=False)
    add(store, old)
    before = store.manifest
    few = add(store, [row | {"label": None} for row in new[:40]])  # not worth a fit
    assert (few.refitted, store.manifest.fit) == (False, before.fit)
    assert add(store, pictures(("red", "green"), 60, seed=0, labelled=False)).unchanged == 120
    codes = np.array([list(code) for code in codes_of(store).values()])
    known = store.own_codebooks().decode(codes)
    old_books, came = store.own_codebooks(), new[40:]
    report, after = add(store, came), store.manifest
    assert (report.added, report.refitted) == (100, True)
    assert (after.fitted_rows, after.fit) == (260, after.books)
    # All rows have new codes: the old ones of what their codes told, the new ones of what they are.
    seen = np.array([row["image"].getpixel((0, 0)) for row in came], np.uint8)
    vectors = general_embedding(seen)
    misfit = old_books.distortion(vectors)
    vectors = np.concatenate([known, vectors.astype(np.float16).astype(np.float32)])
    labels = [None] * len(known) + [row["label"] for row in came]
    fitted = store.own_codebooks()
    assert misfit > 0.1 > 1e-3 > fitted.distortion(vectors, labels)
    assert list(codes_of(store).values()) == [bytes(c) for c in fitted.encode(vectors, labels)]
    assert verify_store(store.folder).sound
    for kind in ("red", "blue", "grey"):
        found = view_of(store).search_many(query_for(kind), Page(top_k=5))[0]
        assert {hit.id.split("/")[0] for hit in found} == {kind}
    # From now on it has classes, and room.
    assert not add(store, pictures(("grey",), 60, seed=3)).refitted


def test_an_empty_gallery_is_searched_and_finds_nothing(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g")
    (found,) = view_of(store).search_many(query_for("red"), Page())
    assert (len(found), found.total, found.verdict) == (0, 0, None)
    assert store.codebooks(FakeModel().codebooks).bits == 16


def test_records_of_another_fit_get_codes_of_this_one(tmp_path: Path) -> None:
    for keep in (True, False):
        store = filled(tmp_path / f"g{keep}", ("red", "green"), keep_embeddings=keep)
        before = GalleryStore.open(store.folder)
        before.own_codebooks()
        records = list(before.find([row["id"] for row in pictures(("red",), 3)]).values())
        add(store, pictures(("blue",), 30, seed=4))
        fit_again(store)
        done = code_records(store, records, before)
        books = store.own_codebooks()
        for record, old in zip(done, records, strict=True):
            if keep:
                assert old.embedding is not None
                vector = old.embedding.astype(np.float32)[None]
            else:
                vector = before.own_codebooks().decode_without_class(old.code[None], [old.label])
            assert record.code.tolist() == books.encode(vector, [old.label])[0].tolist()


def test_a_refit_elsewhere_during_an_add_never_mixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    other = GalleryStore.open(store.folder)
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", 8)
    put, calls = store.put, []

    def put_after_a_refit(records: list[Record], **settings: object) -> int:
        calls.append(len(records))
        if len(calls) == 2:
            fit_again(other, trust=0.3)
        return put(records, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", put_after_a_refit)
    # Some are there and get another label: their records come from before the refit.
    there = [row | {"label": "odd"} for row in pictures(("red",), 6)]
    add(store, [*there, *pictures(("red", "blue"), 9, seed=3)], batch_size=4)
    assert len(calls) > 2
    assert store.manifest.trust == 0.3
    assert codes_of(store) == expected_codes(store)


def test_a_refit_and_a_compaction_during_an_add_stop_it(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    work = Ingest(store, FakeModel().model)
    work._before = GalleryStore.open(store.folder)
    other = GalleryStore.open(store.folder)
    fit_again(other, trust=0.1)
    other.compact()
    with pytest.raises(DataError, match="run this again to go on"):
        work._find(["red/0/1"])


def test_codebooks_that_are_lost_are_named(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red",))
    path = store.folder / BOOKS / f"{store.manifest.books}.safetensors"
    content = path.read_bytes()
    others = replace(store.own_codebooks(), trust=0.5).to_bytes()
    for damage in (content[:100], others):
        path.write_bytes(damage)
        with pytest.raises(FormatError, match=r"not what was written.*phpq gallery refit"):
            view_of(store)
    path.unlink()
    with pytest.raises(FormatError, match=r"cannot be read.*phpq gallery refit"):
        read_codebooks(store.folder, store.manifest)
    assert write_codebooks(store.folder, store.own_codebooks()) == path.stem
    assert path.read_bytes() == content


def test_galleries_with_the_models_codebooks_have_no_such_files(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    books = FakeModel().codebooks
    assert store.codebooks(books) is books
    store.compact()
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "images.lance",
        "manifest.json",
        "writer.lock",
    ]


def test_a_stored_image_is_encoded_again_with_the_gallerys_codebooks(tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "src", tuple(KINDS), 3)
    store = make_own_store(tmp_path / "g")
    add(store, source)
    for record in store.records(store.dataset.to_table()):
        again = encode_again(FakeModel().model, replace(record, code=record.code * 0), store)
        assert again is not None
        assert again.code.tolist() == record.code.tolist()
