"""Uploads become embeddings; what others write is served soon, and whole; counts add up."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from finished_runs import copy_run
from made_up_galleries import make_record, make_store, make_views, record_at
from phpq.data import write_plumage
from phpq.errors import BadImageError
from phpq.gallery import Gallery, GalleryStore
from phpq.serve._refusals import Refused
from phpq.serve.services import Follower, Metrics, Services
from phpq.serve.settings import ServerSettings
from served_galleries import (
    TOKEN,
    new_photo,
    photo,
    reading_generations,
    served,
    shared_gallery,
    wait_until_served,
)
from tiny_runs import tiny_birds


@pytest.fixture
def services() -> Iterator[Services]:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    made = Services(gallery, ServerSettings(decoders=1, max_upload_bytes=20_000))
    yield made
    made.close()


def test_an_upload_is_embedded_as_the_library_does_it(services: Services, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(new_photo(4))
    view = services.views.current
    expected = view.embed(tmp_path / "a.png")[0]
    assert np.allclose(services.embed(view, new_photo(4), "a.png"), expected, atol=1e-5)
    with pytest.raises(BadImageError, match=r"'notes\.txt'"):
        services.embed(view, b"notes", "notes.txt")
    with pytest.raises(Refused, match="20,001 bytes"):
        services.embed(view, bytes(20_001), "a.png")
    png = services.heat_png(view, photo(), "a.jpg", record_at(view, 1).code)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
    assert services.jobs() == {"searches": 0, "uploads": 0, "writes": 0}


def start(folder: Path, count: int = 8) -> GalleryStore:
    store = make_store(folder)
    store.put([make_record(f"i{n}", n) for n in range(count)])
    return store


def test_a_change_appears_by_itself(tmp_path: Path) -> None:
    store = start(tmp_path / "g")
    seen: list[int] = []
    views = make_views(tmp_path / "g", changed=lambda fresh: seen.append(len(fresh)))
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
    views = make_views(tmp_path / "g")
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
    views = make_views(tmp_path / "g")
    views.reload()
    with reading_generations(views, 12) as readers:
        for generation in range(1, 8):
            store.put([make_record(name, n, generation=generation) for n, name in enumerate(names)])
            wait_until_served(views, store.version)
    assert not readers.mixed
    assert 7 in readers.seen or record_at(views.current, 0).metadata["generation"] == 7
    assert len(readers.seen) > 1


def values(metrics: Metrics) -> dict[tuple[str, str], float]:
    text = metrics.text({"searches": 3}).decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 503):
        metrics.began()
        metrics.ended("GET", "/search", status, 0.002)
    metrics.began()
    metrics.loaded(42, 7)
    found = values(metrics)
    assert found["phpq_requests_total", "GET,/search,200"] == 2
    assert found["phpq_requests_total", "GET,/search,503"] == 1
    assert found["phpq_request_seconds_count", "/search"] == 3
    assert found["phpq_requests_running", ""] == 1
    assert found["phpq_images", ""] == 42
    assert found["phpq_gallery_version", ""] == 7
    assert found["phpq_jobs", "searches"] == 3


def test_methods_that_somebody_made_up_share_one_name() -> None:
    metrics = Metrics()
    for number in range(20):
        metrics.began()
        metrics.ended(f"MADE{number}", "none", 405, 0.1)
    assert values(metrics)["phpq_requests_total", "other,none,405"] == 20


def test_what_happens_to_shards_is_counted() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.shard_event("retries", 1)
    metrics.shard_event("restarts", 0)
    metrics.shard_event("failures", 1)
    found = values(metrics)
    assert found["phpq_shard_retries_total", "1"] == 3
    assert found["phpq_shard_restarts_total", "0"] == 1
    assert found["phpq_shard_failures_total", "1"] == 1


def test_two_servers_do_not_share_their_counts() -> None:
    first, second = Metrics(), Metrics()
    first.loaded(1, 1)
    assert values(second)["phpq_images", ""] == 0


def test_a_gallery_that_owns_its_codebooks_is_served(tmp_path: Path) -> None:
    birds = write_plumage(tmp_path / "birds", tiny_birds(3, 1))
    run = copy_run(tmp_path / "run", evaluated=False)
    gallery = Gallery.create(tmp_path / "g", run, codebooks="own", bits=16)
    gallery.add(birds)
    file = sorted(birds.rglob("*.png"))[0]
    with served(tmp_path / "g", writable=True, token=TOKEN, reload_seconds=0.02) as client:
        info = client.get("/api/v1/info").json()
        assert (info["codebooks"], info["bits"]) == ("own", 16)
        ours = gallery.search(file, 5)
        answer = client.post("/api/v1/search", files={"image": file.read_bytes()}).json()
        assert [hit["id"] for hit in answer["hits"][:5]] == [hit.id for hit in ours]
        assert ours.verdict is not None
        told, others = answer["verdict"], dict(ours.verdict.runners_up)
        assert (told["label"], told["by"]) == (ours.verdict.label, "kinds")
        assert told["share"] == pytest.approx(ours.verdict.share, abs=1e-4)
        assert dict(told["runners_up"]) == pytest.approx(others, abs=1e-4)
        assert list(dict(told["runners_up"])) == list(others)
        form = {"label": next(iter(others))}  # the only kind that is left
        only = client.post("/api/v1/search", files={"image": file.read_bytes()}, data=form).json()
        told = {name: only["verdict"][name] for name in ("label", "share", "runners_up", "by")}
        assert told == {**form, "share": 1.0, "runners_up": [], "by": "kinds"}
        hit = ours[0].id
        reason = client.get("/api/v1/explain", params={"hit_id": hit, "query_id": ours[1].id})
        told = reason.json()
        assert (len(told["shares"]), told["hit"]["heatmap"]) == (2, None)
        assert told["note"].count("owns its codebooks") == 1
        sent = client.post(
            "/api/v1/explain", files={"image": file.read_bytes()}, data={"hit_id": hit}
        )
        assert sent.json()["query"]["heatmap"] is None
        assert len(client.get("/api/v1/map").json()["points"]) == 16
        # Five images of a kind that it never saw are named at once.
        head = {"Authorization": f"Bearer {TOKEN}"}
        for seed in range(5):
            form = {"id": f"new{seed}", "label": "noise"}
            files = {"image": new_photo(seed)}
            assert client.post(
                "/api/v1/items", files=files, data=form, headers=head
            ).status_code in (200, 201)
        verdict = client.post("/api/v1/search", files={"image": new_photo(9)}).json()["verdict"]
        assert verdict["label"] == "noise"
        # A refit elsewhere is followed, codes and codebooks together.
        Gallery.open(tmp_path / "g", device="cpu").refit(bits=24)
        while client.get("/api/v1/info").json()["bits"] != 24:
            time.sleep(0.01)
        answer = client.post("/api/v1/search", files={"image": file.read_bytes()}).json()
        assert len(answer["query"]["code"]) == 6
        assert answer["hits"][0]["label"] == file.parent.name
