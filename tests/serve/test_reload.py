"""The newest snapshot is served, whole; many who ask for it share one load."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.gallery import GalleryStore
from phpq.serve import reload
from phpq.serve.reload import Snapshots
from phpq.serve.snapshot import Page, Snapshot


def start(folder: Path, count: int = 8) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n) for n in range(count)])
    return store


def test_a_change_appears_by_itself(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    seen: list[int] = []
    snapshots = Snapshots(
        tmp_path / "g",
        make_codebooks(),
        seconds=0.01,
        changed=lambda fresh: seen.append(len(fresh)),
    )
    snapshots.start()
    store.put([make_record("new", 3)])
    end = time.monotonic() + 30
    while len(snapshots.current) != 9:
        assert time.monotonic() < end
        time.sleep(0.01)
    snapshots.close()
    assert seen == [8, 9]


def test_one_load_serves_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = start(tmp_path / "g")
    snapshots = Snapshots(tmp_path / "g", make_codebooks())
    loads: list[int] = []

    def counted(*arguments: object) -> Snapshot:
        loads.append(1)
        return Snapshot(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reload, "Snapshot", counted)
    store.put([make_record("new", 3)])
    newest = snapshots.newest()
    threads = [
        threading.Thread(target=snapshots.reload, kwargs={"at_least": newest}) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert snapshots.current.version == newest
    assert snapshots.renew(snapshots.current) is snapshots.current


def test_a_damaged_gallery_leaves_the_old_snapshot(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    snapshots = Snapshots(tmp_path / "g", make_codebooks(), seconds=0.01)
    store.put([make_record("new", 3)])
    (tmp_path / "g" / "manifest.json").write_text("{", "utf-8")
    snapshots.start()
    time.sleep(0.1)
    snapshots.close()
    assert len(snapshots.current) == 8


def test_readers_never_see_a_half_state(tmp_path: Path) -> None:
    """Every commit moves all images to one generation: no answer may hold two of them."""
    store = start(tmp_path / "g", 0)
    names = [f"i{n}" for n in range(12)]
    store.put([make_record(name, n, generation=0) for n, name in enumerate(names)])
    snapshots = Snapshots(tmp_path / "g", make_codebooks(), seconds=0.001)
    snapshots.start()
    stop = threading.Event()
    mixed: list[set[int]] = []
    generations: set[int] = set()
    query = make_queries(1)[0]

    def read() -> None:
        while not stop.is_set():
            found = snapshots.current.search(query, Page(top_k=12))
            seen = {record.metadata["generation"] for record in found.records}
            generations.update(seen)
            if len(seen) != 1 or len(found.records) != 12 or found.total != 12:
                mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(1, 8):
        store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
        end = time.monotonic() + 30
        while snapshots.current.version < store.version and time.monotonic() < end:
            time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    snapshots.close()
    assert not mixed
    assert 7 in generations or snapshots.current.record(0).metadata["generation"] == 7
    assert len(generations) > 1
