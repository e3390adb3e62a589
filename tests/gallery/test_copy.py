"""The copy that readers open without Lance: its answers are those of the newest version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_up_galleries import (
    DIM,
    make_codebooks,
    make_queries,
    make_record,
    make_store,
    make_ties,
    make_views,
)
from own_galleries import filled, query_for, view_of
from phpq.errors import FormatError
from phpq.gallery import GalleryStore
from phpq.gallery import _copy as module
from phpq.gallery._copy import COPY, EMBEDDINGS, read_copy
from phpq.gallery.folder import HINT, IMAGES
from phpq.gallery.view import GalleryView, Page

ODD = {"year": 1999, "seen": date(2024, 5, 1), "at": datetime(2024, 5, 1, tzinfo=UTC), "wet": True}
CHANGES: dict[str, Callable[[GalleryStore], Any]] = {
    "append": lambda store: store.put([make_record("new", 5)]),
    "replace": lambda store: store.put([make_record("i3", 5)]),
    "delete": lambda store: store.delete(["i3"]),
    "metadata": lambda store: store.commit_manifest(store.manifest),
    "files": lambda store: store.merge_files(above=1),
    "compact": lambda store: store.compact(),
}


def made(folder: Path, *, keep: bool = False) -> GalleryStore:
    """Make a gallery of several files, whose scan meets rows in another order than insertion."""
    store = make_store(folder, keep_embeddings=keep)
    records = [
        make_record(f"i{n}", n * 7 % 64, label=("a", "b", None)[n % 3], **(ODD if n % 4 else {}))
        for n in range(60)
    ]
    if keep:
        vectors = np.random.default_rng(2).normal(size=(60, DIM)).astype(np.float16)
        records = [replace(r, embedding=v) for r, v in zip(records, vectors, strict=True)]
    for start in range(0, 60, 20):
        store.put(records[start : start + 20])
    store.put([replace(records[7], label="c"), replace(records[30], uri=None)])
    store.delete(["i9", "i33"])
    return store


def copied(folder: Path) -> Path:
    """Read a gallery as a command does, and see that it left a copy."""
    assert len(make_views(folder).current)
    assert read_copy(folder) is not None
    return folder


@pytest.mark.parametrize("keep", [False, True])
def test_answers_are_those_of_lance(tmp_path: Path, keep: bool) -> None:
    folder = copied(made(tmp_path / "g", keep=keep).folder)
    fast = GalleryView(GalleryStore.open(folder), make_codebooks())
    (folder / COPY).unlink()
    slow = GalleryView(GalleryStore.open(folder), make_codebooks())
    assert fast.store.copied is not None
    assert slow.store.copied is None
    pages = [Page(), Page(top_k=80), Page(top_k=3, offset=50), Page(labels=("b", "c"), top_k=40)]
    pages += [
        Page(where="year = 1999 AND wet", top_k=9),
        Page(where="label IS NULL", labels=("a",)),
    ]
    pages += [Page(rerank=20)] if keep else []
    for page in pages:
        queries = make_queries(4)
        assert fast.search_many(queries, page) == slow.search_many(queries, page)
    assert (fast.version, fast.columns, len(fast)) == (slow.version, slow.columns, len(slow))
    assert fast.label_counts == slow.label_counts
    assert fast.usage.tolist() == slow.usage.tolist()
    for name in ("i0", "i7", "i59"):
        (place, one), (other, two) = fast.find(name), slow.find(name)
        assert place == other
        assert fast.query_of(one).tolist() == slow.query_of(two).tolist()
        assert (one.sha256, one.uri, one.metadata) == (two.sha256, two.uri, two.metadata)
    shown = [
        [(each.id, each.label) for each in view.word_images(0, 1, 9)[0]] for view in (fast, slow)
    ]
    assert shown[0] == shown[1]
    assert fast.store.count("label = 'a'") == slow.store.count("label = 'a'")


def test_a_gallery_that_owns_its_codebooks_is_read_with_those_of_the_version(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "g")
    slow = view_of(GalleryStore.open(store.folder))
    store.copy()
    fast = view_of(GalleryStore.open(store.folder))
    assert fast.store.copied is not None
    assert fast.store.manifest == slow.store.manifest
    query = query_for("red")[0]
    assert fast.search(query, Page()) == slow.search(query, Page())


def test_a_search_needs_neither_lance_nor_pandas_nor_numba(tmp_path: Path) -> None:
    folder = copied(made(tmp_path / "g").folder)
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("lance", "pandas", "numba", "scipy", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from phpq.codes import Codebooks
from phpq.gallery.view import Page
from phpq.gallery.views import Views
words = np.tile(np.eye(4, 2, dtype=np.float32) + 1, (3, 1, 1))
words /= np.linalg.norm(words, axis=2, keepdims=True)
views = Views(Path({str(folder)!r}), lambda _: SimpleNamespace(codebooks=Codebooks(words)))
page = Page(labels=("a", "c"), top_k=5)
print([hit.metadata["seen"] for hit in views.current.search(np.ones(6, np.float32), page)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    assert "datetime.date(2024, 5, 1)" in done.stdout


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_copied_before_a_change_is_not_read_after_it(tmp_path: Path, change: str) -> None:
    folder = copied(made(tmp_path / "g").folder)
    CHANGES[change](GalleryStore.open(folder))
    assert read_copy(folder) is None
    fresh = GalleryStore.open(folder)
    assert fresh.copied is None
    fresh.copy()
    again = GalleryStore.open(folder)
    assert again.copied is not None
    assert (again.version, len(again)) == (fresh.version, len(fresh))


def test_a_store_that_writes_leaves_its_copy(tmp_path: Path) -> None:
    folder = copied(made(tmp_path / "g").folder)
    store = GalleryStore.open(folder)
    before = len(store)
    store.put([make_record("new", 5)])
    assert store.copied is None
    assert len(store) == before + 1
    assert "new" in store.find(["new"])


def test_a_version_that_is_gone_is_left_for_the_newest(tmp_path: Path) -> None:
    folder = copied(made(tmp_path / "g").folder)
    store, views = GalleryStore.open(folder), make_views(folder)
    assert views.current.store.copied is not None
    GalleryStore.open(folder).compact()
    store.refresh()
    assert store.version == GalleryStore.open(folder).version
    # The view in hand answers on; what needs Lance is read from the newest version.
    found = views.read(lambda view: view.search(make_queries(1)[0], Page(where="year = 1999")))
    assert found.total > 0
    assert views.current.version == store.version


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_copy_that_is_not_whole_is_not_read(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "g"
    if not folder.exists():
        copied(made(folder).folder)
        shutil.copy(folder / COPY, tmp_path / "sound")
    content = bytearray((tmp_path / "sound").read_bytes())
    if data.draw(st.booleans(), "cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1), "length")]
    else:
        content[data.draw(st.integers(0, len(content) - 1), "place")] ^= 1 << data.draw(
            st.integers(0, 7), "bit"
        )
    (folder / COPY).write_bytes(content)
    assert read_copy(folder) is None
    assert len(GalleryStore.open(folder)) == 58


def test_the_copy_of_another_gallery_is_not_read(tmp_path: Path) -> None:
    one, two = (copied(made(tmp_path / name).folder) for name in ("one", "two"))
    assert GalleryStore.open(one).version == GalleryStore.open(two).version
    shutil.copy(one / COPY, two / COPY)
    assert read_copy(two) is None


def test_a_gallery_copied_as_a_folder_keeps_its_copy(tmp_path: Path) -> None:
    folder = copied(made(tmp_path / "g").folder)
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert read_copy(tmp_path / "elsewhere") is not None


@pytest.mark.parametrize("file", ["data/*.lance", "_deletions/*", "_versions/*.manifest", "hint"])
def test_a_gallery_that_has_lost_a_file_says_so_as_without_a_copy(
    tmp_path: Path, file: str
) -> None:
    folder = copied(made(tmp_path / "g").folder)
    if file == "hint":
        (folder / IMAGES / HINT).write_text('{"version": 999}')
    else:
        for each in (folder / IMAGES).glob(file):
            each.unlink()
    assert read_copy(folder) is None
    with pytest.raises(FormatError, match="verify --repair"):
        make_views(folder).current.search(make_queries(1)[0], Page())


def test_a_folder_that_changes_while_it_is_listed_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(made(tmp_path / "g").folder)
    newest = module._newest
    seen: list[Path] = []

    def late(where: Path) -> Path:
        seen.append(newest(where))
        if len(seen) == 1:
            GalleryStore.open(folder, version=None).put([make_record("late", 3)])
        return seen[0] if len(seen) == 1 else newest(where)

    monkeypatch.setattr(module, "_newest", late)
    assert read_copy(folder) is None


def test_who_cannot_write_reads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "g").folder

    def full(_: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "replacing", full)
    assert len(make_views(folder).current) == 58
    assert not (folder / COPY).exists()
    monkeypatch.undo()
    monkeypatch.setattr(module, "_MAX_ROWS", 57)
    assert len(make_views(folder).current) == 58
    assert not (folder / COPY).exists()


def test_what_a_killed_reader_left_goes_when_the_gallery_is_compacted(tmp_path: Path) -> None:
    store = made(tmp_path / "g")
    (store.folder / f".{COPY}.x.tmp").mkdir()
    (store.folder / f".{COPY}.x.tmp" / COPY).write_bytes(b"half")
    copied(store.folder)
    store.compact()
    assert not list(store.folder.glob(".*"))


def test_no_reader_sees_less_than_was_committed_before_it_came(tmp_path: Path) -> None:
    store = made(tmp_path / "g")
    committed, failures = [len(store)], []
    done = threading.Event()

    def write() -> None:
        for number in range(12):
            store.put([make_record(f"late {number}", number)])
            if number % 4 == 3:
                store.compact()
            committed.append(len(store))
        done.set()

    def read() -> None:
        while not done.is_set():
            before = committed[-1]
            views = make_views(store.folder)  # leave a copy each time
            found = views.read(lambda view: view.search(make_queries(1)[0], Page(top_k=99)))
            if len(found) < before:
                failures.append((len(found), before))

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(copied(store.folder).name) > 0


@pytest.mark.parametrize("harm", ["none", "gone", "cut", "changed", "of another version"])
def test_copied_embeddings_are_read_without_lance_and_only_if_whole(
    tmp_path: Path, harm: str
) -> None:
    store = make_ties(tmp_path / "g")
    queries, page = make_queries(3), Page(top_k=12)
    expected = GalleryView(store, make_codebooks()).search_many(queries, page)
    store.copy()
    file = store.folder / EMBEDDINGS
    content = bytearray(file.read_bytes())
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(content[:-1])
    elif harm != "none":
        places = range(32, len(content), 3) if harm == "changed" else range(32)
        for place in places:
            content[place] ^= 4
        file.write_bytes(content)
    fresh = GalleryStore.open(store.folder)
    assert fresh.copied is not None
    assert GalleryView(fresh, make_codebooks()).search_many(queries, page) == expected
    assert (fresh._dataset is None) == (harm == "none")


def test_more_embeddings_than_are_copied_are_read_with_lance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_ties(tmp_path / "g")
    monkeypatch.setattr("phpq.gallery._copy._MAX_BYTES", 100)
    store.copy()
    assert (store.folder / COPY).is_file()
    assert not (store.folder / EMBEDDINGS).exists()
    fresh = GalleryStore.open(store.folder)
    offsets = np.array([3, 0])
    rows = store.dataset.take([3, 0])["embedding"].to_pylist()
    np.testing.assert_array_equal(fresh.embeddings_at(offsets), np.array(rows, np.float16))
