"""Bulk adding: what is encoded, committed, replaced, refused and reported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from made_up_galleries import FakeModel, make_store
from phpq.codes import Space
from phpq.data.places import Origin, RemoteFile, content_hash
from phpq.errors import BadImageError, DataError
from phpq.gallery import AddReport, GalleryStore, ingest
from phpq.gallery._part import batches
from phpq.gallery.ingest import Encoded, Ingest, encode_again, encode_items
from phpq.gallery.records import Record
from phpq.gallery.sources import Item, Source
from phpq.gallery.store import write_here
from picture_files import write_image

if TYPE_CHECKING:
    from phpq.model import Model


def add(store: GalleryStore, source: Source, **settings: Any) -> AddReport:
    metadata = settings.pop("metadata", {})
    prefix = settings.pop("prefix", "")
    progress = settings.pop("progress", None)
    work = Ingest(store, FakeModel().model, batch_size=4, **settings)
    return work.run(source, progress, metadata=metadata, prefix=prefix)


def pictures(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "image": Image.new("RGB", (2, 2), (n % 256, n // 256, 0))}
        for n in range(first, first + count)
    ]


def test_only_what_is_new_or_changed(tmp_path: Path) -> None:
    for number in range(6):
        write_image(tmp_path / "src" / "ab"[number % 2] / f"{number}.png", (number, 0, 0))
    (tmp_path / "src" / "bad.png").write_bytes(b"x")
    store = make_store(tmp_path / "g")
    report = add(store, tmp_path / "src")
    assert (report.added, report.unchanged, report.replaced) == (6, 0, 0)
    assert [image.id for image in report.skipped] == ["bad.png"]
    assert report.seen == 7
    write_image(tmp_path / "src" / "a" / "0.png", (99, 0, 0))
    write_image(tmp_path / "src" / "a" / "new.png", (7, 0, 0))
    report = add(store, tmp_path / "src")
    assert (report.added, report.unchanged, report.replaced) == (1, 5, 1)
    assert report.to_dict()["skipped"][0]["id"] == "bad.png"
    assert store.count("label = 'a'") == 4


def test_a_folder_that_moved_changes_only_the_places(tmp_path: Path) -> None:
    write_image(tmp_path / "old" / "a" / "0.png", (1, 0, 0))
    store = make_store(tmp_path / "g")
    add(store, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    report = add(store, tmp_path / "new")
    assert (report.added, report.replaced) == (0, 1)
    assert store.find(["a/0.png"])["a/0.png"].uri == str(tmp_path / "new" / "a" / "0.png")


def test_two_folders_with_equal_names_are_not_mixed_up(tmp_path: Path) -> None:
    write_image(tmp_path / "one" / "0.png", (1, 0, 0))
    write_image(tmp_path / "two" / "0.png", (2, 0, 0))
    store = make_store(tmp_path / "g")
    add(store, tmp_path / "one")
    with pytest.raises(DataError, match=r"already names .*one.*--prefix.*--replace"):
        add(store, tmp_path / "two")
    assert add(store, tmp_path / "two", prefix="two/").added == 1
    assert set(store.find(["0.png", "two/0.png"])) == {"0.png", "two/0.png"}
    assert add(store, tmp_path / "two", refuse_clash=False).replaced == 1
    assert len(store) == 2


class Watched:
    """An engine that is this process, with a count of what it is asked for."""

    workers = 2

    def __init__(self) -> None:
        self.encoded = self.written = 0

    def encode(
        self,
        items: Iterable[Item],
        model: Model,
        *,
        batch_size: int = 64,
        keep_embeddings: bool = False,
        space: Space = "learned",
    ) -> Generator[list[Encoded], None, None]:
        settings: Any = {"batch_size": batch_size, "keep_embeddings": keep_embeddings}
        settings["space"] = space
        for batch in encode_items(items, model, **settings):
            self.encoded += len(batch)
            yield batch

    def write(self, table: Any, dataset: Any) -> list[Any]:
        self.written += table.num_rows
        return write_here(table, dataset)


def test_an_engine_does_all_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", 4)
    store = make_store(tmp_path / "g")
    before = store.version
    engine = Watched()
    assert add(store, pictures(10), engine=engine).added == 10
    assert (engine.encoded, engine.written, len(store)) == (10, 10, 10)
    assert store.version - before == 2  # two workers: commits of eight


def test_bad_images_can_stop_the_work(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    rows = [*pictures(3), {"id": "bad", "path": str(tmp_path / "none.png")}]
    with pytest.raises(BadImageError, match=r"none.png"):
        add(store, rows, refuse_bad=True)
    assert len(store) == 3  # what came before is kept


def test_an_interrupted_add_keeps_what_was_encoded(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")

    def stopping(_: str, done: int, total: int) -> None:
        assert total >= done
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(store, pictures(40), progress=stopping)
    assert len(store) == 8
    report = add(store, pictures(40))
    assert (report.added, report.unchanged) == (32, 8)


def test_commits_are_many_and_files_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", 3)
    monkeypatch.setattr(ingest, "_MANY_FILES", 4)
    store = make_store(tmp_path / "g")
    before = store.version
    add(store, pictures(30))
    assert store.version - before >= 8  # a batch is 4 images
    assert len(store.dataset.get_fragments()) == 1
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", 0.0)
    before = store.version
    add(store, pictures(8, first=100))
    assert store.version - before >= 2


def test_an_id_that_comes_twice_holds_the_last(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    rows = [*pictures(2), {"id": "1", "image": Image.new("RGB", (2, 2), (200, 0, 0))}]
    report = add(store, rows, metadata={"Year": 2024})
    assert (report.added, report.replaced) == (2, 1)
    assert store.find(["1"])["1"].code.tolist() == [3, 0, 0]
    assert store.count("year = 2024") == 2


def named(name: str, red: int) -> dict[str, Any]:
    return {"id": name, "image": Image.new("RGB", (2, 2), (red, 0, 0))}


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_the_last_of_an_id_holds_however_often_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", every)
    monkeypatch.setattr("phpq.gallery.ingest._WINDOW", 4)
    store = make_store(tmp_path / "g")
    add(store, [named("a", 0), named("b", 0)])
    # "a" changes and comes back; "b" stays, changes, and is said again; "c" comes twice.
    rows = [named("a", 70), named("b", 0), named("c", 70), *pictures(5), named("a", 0)]
    rows += [named("b", 140), *pictures(5, first=5), named("b", 140), named("c", 200)]
    report = add(store, rows)
    assert (report.added, report.replaced, report.unchanged) == (11, 5, 1)
    found = store.find(["a", "b", "c"])
    assert [found[name].code[0] for name in "abc"] == [0, 2, 3]
    ids = [name for table in batches(store) for name in table["id"].to_pylist()]
    assert ids == ["0", "1", "2", "3", "4", "a", "5", "6", "7", "8", "9", "b", "c"]


def test_a_version_that_another_process_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    add(store, pictures(6))
    add(store, pictures(2, first=6))
    others = GalleryStore.open(store.folder)

    def rows() -> Iterator[dict[str, Any]]:
        others.compact()
        yield from pictures(12)

    report = add(store, rows())
    assert (report.added, report.unchanged) == (4, 8)


def test_memory_does_not_follow_the_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "COMMIT_IMAGES", 100)

    def peak(count: int) -> int:
        def rows() -> Iterator[dict[str, Any]]:
            for number in range(count):
                image = Image.new("RGB", (64, 64), (number % 256, number // 256, 0))
                yield {"id": str(number), "image": image}

        store = make_store(tmp_path / f"g{count}")
        tracemalloc.start()
        add(store, rows())
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(50)  # what is loaded on first use
    monkeypatch.setattr("phpq.gallery.ingest._WINDOW", 64)
    assert peak(1200) < 1.5 * peak(300)


def colour_item(number: int) -> Item:
    colour = tuple(64 * (number // 4**book % 4) + 5 for book in range(3))
    return Item(str(number), Image.new("RGB", (3, 3), colour))


def encode(
    items: Sequence[Item],
    stored: Mapping[str, Record] | None = None,
    model: FakeModel | None = None,
    *,
    keep_embeddings: bool = False,
) -> list[Encoded]:
    known = stored or {}
    found = [replace(item, stored=known.get(item.id)) for item in items]
    fake = (model or FakeModel()).model
    batches = encode_items(found, fake, batch_size=4, keep_embeddings=keep_embeddings)
    return [encoded for batch in batches for encoded in batch]


def test_order_and_codes_do_not_depend_on_threads() -> None:
    done = encode([colour_item(number) for number in range(30)])
    assert [encoded.item.id for encoded in done] == [str(number) for number in range(30)]
    for number, encoded in enumerate(done):
        assert encoded.record is not None
        assert encoded.record.code.tolist() == [number // 4**book % 4 for book in range(3)]
        assert encoded.record.embedding is None


def test_bad_files_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = write_image(tmp_path / "good.png", (10, 70, 140))
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    Image.new("RGB", (9, 9)).save(tmp_path / "postscript.jpg", "EPS")
    names = ["good.png", "bad.jpg", "none.png", "postscript.jpg"]
    done = encode([Item(name, tmp_path / name) for name in names], keep_embeddings=True)
    assert done[0].record is not None
    assert done[0].record.sha256 == content_hash(good)[0]
    assert done[0].record.code.tolist() == [0, 1, 2]
    assert done[0].record.embedding is not None
    assert done[0].record.embedding.dtype == np.float16
    reasons = ("not an image", "No such file", "looks like EPS. Opened are JPEG")
    for encoded, reason in zip(done[1:], reasons, strict=True):
        assert encoded.record is None
        assert encoded.reason is not None
        assert reason in encoded.reason
        assert str(tmp_path) in encoded.reason


def test_known_content_is_not_encoded_again() -> None:
    items = [colour_item(number) for number in range(10)]
    stored = {e.record.id: e.record for e in encode(items) if e.record}
    model = FakeModel()
    assert all(e.record is None for e in encode(items, stored, model))
    assert model.batches == []
    changed = [
        Item("0", items[0].image, "wren"),
        Item("1", items[1].image, None, {"year": 3}),
        Item("2", items[2].image, None, {"year": None}),
        Item("3", items[4].image),
    ]
    first, second, third, fourth = encode(changed, stored, model)
    assert model.batches == [1]  # only the one with other content
    assert first.record is not None
    assert first.record.label == "wren"
    assert first.record.code is stored["0"].code
    assert second.record is not None
    assert second.record.metadata == {"year": 3}
    assert third.record is None
    assert fourth.record is not None
    assert fourth.record.code.tolist() == stored["4"].code.tolist()


def test_batches_are_stretches_of_the_source_whatever_is_stored(tmp_path: Path) -> None:
    items = [colour_item(number) for number in range(18)]
    items[5] = Item("5", tmp_path / "none.png")
    whole = encode(items)
    known = {e.record.id: e.record for e in whole[:9] if e.record}  # all but 5; the third batch cut
    for stored, wanted in (({}, [4, 3, 4, 4, 2]), (known, [3, 4, 2])):
        model = FakeModel()
        encode(items, stored, model)
        assert model.batches == wanted


def test_images_from_everywhere_have_the_same_codes(tmp_path: Path) -> None:
    file = write_image(tmp_path / "x.png", (10, 70, 140))
    origins: list[Origin] = [file, RemoteFile(f"file://{file}"), file.read_bytes()]
    done = encode([Item(str(n), origin) for n, origin in enumerate(origins)])
    records = [e.record for e in done if e.record]
    assert [record.code.tolist() for record in records] == [[0, 1, 2]] * 3
    assert len({record.sha256 for record in records}) == 1
    assert [record.uri for record in records] == [str(file), f"file://{file}", None]


def test_items_are_read_only_a_little_ahead() -> None:
    taken = 0

    def items() -> Iterator[Item]:
        nonlocal taken
        for number in range(100_000):
            taken += 1
            yield colour_item(number % 64)

    batches = encode_items(items(), FakeModel().model, batch_size=4)
    assert len(next(batches)) == 4
    batches.close()
    assert taken <= 12


def test_a_stored_image_is_encoded_again_from_its_file(tmp_path: Path) -> None:
    file = write_image(tmp_path / "x.png", (10, 70, 140))
    (made,) = encode([Item("x", file)], keep_embeddings=True)
    assert made.record is not None
    lost = replace(made.record, code=np.zeros(3, np.uint8))
    gone = replace(lost, uri=str(tmp_path / "none.png"))
    changed = replace(lost, sha256=bytes(32))
    nowhere = replace(lost, uri=None)
    model, store = FakeModel().model, make_store(tmp_path / "g")
    again, *others = (
        encode_again(model, record, store) for record in (lost, gone, changed, nowhere)
    )
    assert again is not None
    assert again.code.tolist() == [0, 1, 2]
    assert again.embedding is not None
    assert made.record.embedding is not None
    assert np.array_equal(again.embedding, made.record.embedding)
    assert others == [None, None, None]
