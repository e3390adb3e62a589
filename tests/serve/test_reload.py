"""What other processes write is served soon, and whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from made_up_galleries import make_codebooks, make_queries, make_record, make_store
from phpq.gallery import GalleryStore
from phpq.gallery.view import Page
from phpq.gallery.views import Views
from phpq.serve.reload import Follower


def start(folder: Path, count: int = 8) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n) for n in range(count)])
    return store


def test_a_change_appears_by_itself(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    seen: list[int] = []
    views = Views(tmp_path / "g", make_codebooks(), changed=lambda fresh: seen.append(len(fresh)))
    views.reload()
    follower = Follower(views, seconds=0.01)
    follower.start()
    store.put([make_record("new", 3)])
    end = time.monotonic() + 30
    while len(views.current) != 9:
        assert time.monotonic() < end
        time.sleep(0.01)
    follower.close()
    assert seen == [8, 9]


def test_a_damaged_gallery_leaves_the_old_view(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    views = Views(tmp_path / "g", make_codebooks())
    views.reload()
    follower = Follower(views, seconds=0.01)
    store.put([make_record("new", 3)])
    (tmp_path / "g" / "manifest.json").write_text("{", "utf-8")
    follower.start()
    time.sleep(0.1)
    follower.close()
    assert len(views.current) == 8


def test_readers_never_see_a_half_state(tmp_path: Path) -> None:
    """Every commit moves all images to one generation: no answer may hold two of them."""
    store = start(tmp_path / "g", 0)
    names = [f"i{n}" for n in range(12)]
    store.put([make_record(name, n, generation=0) for n, name in enumerate(names)])
    views = Views(tmp_path / "g", make_codebooks())
    views.reload()
    follower = Follower(views, seconds=0.001)
    follower.start()
    stop = threading.Event()
    mixed: list[set[int]] = []
    generations: set[int] = set()
    query = make_queries(1)[0]

    def read() -> None:
        while not stop.is_set():
            found = views.current.search(query, Page(top_k=12))
            seen = {hit.metadata["generation"] for hit in found}
            generations.update(seen)
            if len(seen) != 1 or len(found) != 12 or found.total != 12:
                mixed.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for generation in range(1, 8):
        store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
        end = time.monotonic() + 30
        while views.current.version < store.version and time.monotonic() < end:
            time.sleep(0.005)
    stop.set()
    for reader in readers:
        reader.join()
    follower.close()
    assert not mixed
    assert 7 in generations or views.current.record(0).metadata["generation"] == 7
    assert len(generations) > 1
