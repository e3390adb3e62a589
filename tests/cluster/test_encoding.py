"""Bulk encoding: a node dies, the driver is killed, actors fit, and nothing is lost or doubled."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from command_line import phpq
from finished_runs import copy_run
from gated_images import GatedImages
from made_up_galleries import FakeModel, make_record, make_store
from phpq.cluster import encoding
from phpq.cluster.connection import import_ray
from phpq.cluster.encoding import (
    Actors,
    Conductor,
    EncodingActor,
    RayEngine,
    Stretch,
    Work,
    fit_actors,
    ray_engine,
    through_conductor,
)
from phpq.codes import Space
from phpq.errors import ConfigError, DataError
from phpq.gallery import AddReport, Gallery, GalleryStore
from phpq.gallery.ingest import Encoded, encode_items
from phpq.gallery.models import MODEL
from phpq.gallery.sources import Item
from picture_files import write_image

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's processes and sockets
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
COUNT, GATED, BATCH = 48, 12, 4
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two nodes with room for one actor each."""
    import_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        made = Cluster(
            initialize_head=True,
            head_node_args={
                **NODE,
                "num_cpus": 0,
                "include_dashboard": False,
                # A killed node refuses at once: five refusals need not be three seconds apart.
                "_system_config": {"health_check_period_ms": 500},
            },
        )
        try:
            made.add_node(**NODE)
            made.add_node(**NODE)
            yield made
        finally:
            made.shutdown()


def write_source(folder: Path, images: GatedImages, *, twice: bool = False) -> Path:
    """Write a table of URIs, a file, images that cannot be read, and an id that comes twice."""
    lines = ["path,id,label,year"]
    for number, uri in enumerate(images.uris()):
        lines.append(f"{uri},{number},{'ab'[number % 2]},{2000 + number % 5}")
    lines[7] = "none.png,lost,a,1999"
    lines[30] = "bad.png,bad,b,"
    if twice:
        lines[33] = lines[3].replace("/2.png", "/40.png")  # the id 2 again, with other content
    lines.append(f"{write_image(folder / 'own.png').name},own,,")
    (folder / "bad.png").write_bytes(b"no image")
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def content(folder: Path) -> Any:
    """Return all columns and rows of a gallery, in the order of insertion."""
    data = GalleryStore.open(folder).dataset
    return data.to_table(columns=sorted(data.schema.names)).sort_by("row")


def local_twin(model: Path, source: Path, folder: Path) -> tuple[AddReport, Any]:
    gallery = Gallery.create(folder, model, keep_embeddings=True)
    return gallery.add(source, batch_size=BATCH), content(folder)


@pytest.mark.slow
def test_a_node_dies_and_nothing_is_lost_or_doubled(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = copy_run(tmp_path / "run")
    gallery = Gallery.create(tmp_path / "ray", run, keep_embeddings=True)
    seen: list[int] = []
    with GatedImages(COUNT, gated=GATED).serving() as images:
        source = write_source(tmp_path, images, twice=True)

        def kill() -> None:
            try:
                images.wait_for(2)  # both actors are in the middle of a stretch
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            finally:
                images.gate.set()  # or the test would wait where it should fail

        killer = threading.Thread(target=kill)
        killer.start()
        with (
            caplog.at_level(logging.WARNING, encoding.__name__),
            ray_engine(gallery.path, cluster.address) as engine,
        ):
            assert engine.workers == 2
            report = gallery.add(
                source,
                batch_size=BATCH,
                engine=engine,
                progress=lambda _, done, __: seen.append(done),
            )
            assert engine.workers == 1
        killer.join()
        assert any("was lost" in record.message for record in caplog.records)
        wanted, twin = local_twin(run, source, tmp_path / "local")
    assert report == wanted
    assert [image.id for image in report.skipped] == ["lost", "bad"]
    assert (report.added, report.replaced) == (COUNT - 2, 1)
    assert seen == sorted(seen)
    assert seen[-1] == COUNT + 1
    assert content(gallery.path).equals(twin)
    gallery.compact()
    assert content(gallery.path).equals(twin)
    found = gallery.search_id("own", top_k=3)  # what was added is searched at once
    assert len(found) == 3


DRIVER = """
import sys
from phpq.cluster.encoding import ray_engine
from phpq.gallery import Gallery, ingest
ingest.COMMIT_IMAGES = 2
gallery = Gallery.open(sys.argv[1], device="cpu")
with ray_engine(gallery.path, sys.argv[3]) as engine:
    gallery.add(sys.argv[2], batch_size=int(sys.argv[4]), engine=engine)
"""


@pytest.mark.rare
def test_the_driver_is_killed_and_a_second_run_goes_on(cluster: Any, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    folder = Gallery.create(tmp_path / "ray", run, keep_embeddings=True).path
    with GatedImages(COUNT, gated=GATED).serving() as images:
        source = write_source(tmp_path, images)
        words = [sys.executable, "-c", DRIVER, folder, source, cluster.address, BATCH]
        driver = subprocess.Popen([str(word) for word in words], start_new_session=True)
        images.wait_for(1)
        while driver.poll() is None and not len(GalleryStore.open(folder)):
            time.sleep(0.1)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        kept = len(GalleryStore.open(folder))
        assert 0 < kept < GATED
        images.gate.set()
        options = ["--ray", cluster.address, "--batch-size", str(BATCH), "--json"]
        outcome = phpq("index", folder, source, *options)
        assert outcome.code == 0, outcome.err
        answer = outcome.json()
        wanted, twin = local_twin(run, source, tmp_path / "local")
    assert answer["unchanged"] == kept
    assert answer["added"] + kept == wanted.added
    assert [image["id"] for image in answer["skipped"]] == ["lost", "bad"]
    assert content(folder).equals(twin)


class _RayError(Exception):
    """What a cluster raises."""


class _Failing(RayEngine):
    """Breaks before some stretches, as often as it is told."""

    def __init__(self, breaks: dict[int, int], error: Exception | None = None) -> None:
        fake = SimpleNamespace(
            put=lambda thing: thing,
            nodes=lambda: [{"Alive": True, "Resources": {"CPU": 1}}, {"Alive": False}],
            exceptions=SimpleNamespace(RayError=_RayError),
        )
        super().__init__(fake, Path("/none"))
        self.breaks = breaks
        self.error = error or _RayError("a node died\nmore")
        self.closed = 0

    def _rows(
        self, stretches: list[Any], first: int, work: Any
    ) -> Generator[tuple[int, Stretch], None, None]:
        try:
            for number in range(first, len(stretches)):
                if self.breaks.get(number):
                    self.breaks[number] -= 1
                    raise self.error
                done = [Encoded(item) for item in stretches[number]]
                yield number, Stretch((done,))
        finally:
            self.closed += 1


def encoded_ids(engine: RayEngine, count: int) -> list[int]:
    items = (Item(str(number), b"") for number in range(count))
    batches = engine.encode(items, FakeModel().model, batch_size=4)
    return [int(encoded.item.id) for batch in batches for encoded in batch]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_PAUSE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_work_goes_on_from_the_first_stretch_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "_STRETCHES", 3)
    engine = _Failing({0: 5, 1: 1, 2: 3})
    assert encoded_ids(engine, 50) == list(range(50))
    assert engine.breaks == {0: 0, 1: 0, 2: 0}
    assert engine.closed > 9


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_only_fails_is_given_up() -> None:
    with pytest.raises(ConfigError, match=r"failed 6 times in a row: a node died\. What is done"):
        encoded_ids(_Failing({1: 6}), 50)


@pytest.mark.usefixtures("impatient")
def test_a_mistake_of_the_user_is_raised_as_it_is() -> None:
    error = _RayError("task failed")
    error.cause = DataError("bad table")  # type: ignore[attr-defined]
    wrapped = _RayError("pipeline failed")
    wrapped.__cause__ = error
    for seen in (error, wrapped):
        with pytest.raises(DataError, match="bad table"):
            encoded_ids(_Failing({1: 1}, seen), 50)


def test_work_that_is_dropped_stops_the_actors() -> None:
    engine = _Failing({})
    items = (Item(str(n), b"") for n in range(99))
    batches = engine.encode(items, FakeModel().model, batch_size=4)
    next(batches)
    batches.close()
    assert engine.closed == 1


def test_what_the_cluster_cannot_write_is_written_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise _RayError("gone")

    engine = _Failing({})
    task = SimpleNamespace(remote=lambda *_: None)
    engine._ray.remote = lambda _: SimpleNamespace(options=lambda **_: task)
    engine._ray.get = fail
    store = make_store(tmp_path / "g")
    store.put([make_record("a", 1)], write=engine.write)
    assert set(store.find(["a"])) == {"a"}
    assert "could not write 1 rows" in caplog.text


def test_what_ray_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="actors=-1"), ray_engine(tmp_path, actors=-1):
        pass
    with (
        pytest.raises(ConfigError, match=r"device='cuda:1'.*Use auto or cuda or cpu"),
        ray_engine(tmp_path, device="cuda:1"),
    ):
        pass
    engine = _Failing({})
    assert engine.workers == 1
    engine._device = "cuda"
    with pytest.raises(ConfigError, match=r"needs a GPU, and the Ray cluster of 1 nodes has none"):
        encoded_ids(engine, 3)


WORK, ACTORS = Work("/g", 4, False, "cpu", 1), Actors(2, 1, 0)


class _Ray:
    """Actors in this process: methods are called where they are asked for."""

    exceptions = SimpleNamespace(RayError=_RayError)

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def remote(self, kind: Any) -> Any:
        def make(*arguments: Any) -> Any:
            made = kind(*arguments)
            return SimpleNamespace(next=SimpleNamespace(remote=made.next))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def get(self, answer: Any) -> Any:
        return answer

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the pipeline by one that encodes nothing; returns how far each came."""
    ends: list[int] = []

    def encode(
        stretches: list[Any], first: int, work: Work, actors: Actors
    ) -> Generator[tuple[int, Stretch], None, None]:
        assert (work, actors) == (WORK, ACTORS)
        number = first
        try:
            for number in range(first, len(stretches)):
                if stretches[number] == "dead":
                    raise _RayError("a node died")
                yield number, Stretch(())
        finally:
            ends.append(number)

    monkeypatch.setattr(encoding, "encode_stretches", encode)
    return ends


def numbers(rows: Generator[tuple[int, Stretch], None, None]) -> Callable[[], list[int]]:
    return lambda: [number for number, _ in rows]


def test_a_conductor_hands_out_what_the_pipeline_yields(closed: list[int]) -> None:
    conductor = Conductor(["a", "b", "c"], 1, WORK, ACTORS)
    first = conductor.next()
    assert first is not None
    assert first[0] == 1
    assert [conductor.next() is None for _ in range(3)] == [False, True, True]
    assert closed == [2]


def test_a_client_sees_the_same_rows_and_leaves_nothing_behind(closed: list[int]) -> None:
    ray = _Ray()
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, ACTORS)
    assert numbers(rows)() == [0, 1, 2]
    assert len(ray.killed) == 1
    rows = through_conductor(ray, ["a", "b", "dead"], 1, WORK, ACTORS)
    with pytest.raises(_RayError, match="a node died"):
        numbers(rows)()
    assert len(ray.killed) == 2
    rows = through_conductor(ray, ["a", "b", "c"], 0, WORK, ACTORS)
    next(rows)
    rows.close()  # as after Ctrl-C
    assert closed[:2] == [2, 2]
    assert len(ray.killed) == 3


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"), keep_embeddings=True)


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    """References are the things themselves: no cluster is needed to look at one actor."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda thing: thing))


def images(folder: Path, count: int) -> list[Item]:
    files = [write_image(folder / f"{n}.png", (9 * n % 256, 40, 90)) for n in range(count)]
    files[1].write_bytes(b"no image")
    return [Item(file.name, file, "wren", {"n": n}) for n, file in enumerate(files)]


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("space", ["learned", "general"])
def test_an_actor_encodes_as_this_process_does(
    gallery: Gallery, tmp_path: Path, space: Space
) -> None:
    known = images(tmp_path, 11)
    stretches = [known[:8], known[8:]]
    work = Work(str(gallery.path / MODEL), 4, True, "cpu", 1, space)
    actor = EncodingActor(work, stretches)
    answer = actor({"number": np.array([1, 0])})
    assert answer["number"].tolist() == [1, 0]
    batches = [batch for place in (1, 0) for batch in answer["stretch"][place].batches]
    wanted = list(
        encode_items(known, gallery.model, batch_size=4, keep_embeddings=True, space=space)
    )
    assert [len(batch) for batch in batches] == [4, 4, 3]
    for got, here in zip(chain(*batches), chain(*wanted), strict=True):
        assert got.reason == here.reason
        assert (got.record is None) == (here.record is None)
        assert got.item.image == b""  # pixels do not travel back
        if got.record is not None and here.record is not None:
            assert _plain(got.record) == _plain(here.record)


def _plain(record: Any) -> tuple[Any, ...]:
    code, embedding = record.code.tobytes(), record.embedding.tobytes()
    about = (record.id, record.uri, record.label, record.sha256, dict(record.metadata))
    return (*about, code, embedding)


@pytest.mark.usefixtures("references")
def test_a_gallery_that_a_machine_does_not_see_is_named(tmp_path: Path) -> None:
    actor = EncodingActor(Work(str(tmp_path / "none"), 4, False, "cpu", 1), [[]])
    with pytest.raises(ConfigError, match=r"none' is not to be seen on .*all machines"):
        actor({"number": np.array([0])})


def test_one_actor_a_gpu_and_none_elsewhere() -> None:
    nodes = [{"CPU": 32, "GPU": 4}, {"CPU": 16, "GPU": 4}, {"CPU": 64}]
    assert fit_actors(nodes) == Actors(8, 4, 1)
    assert fit_actors(nodes, wanted=3) == Actors(3, 4, 1)
    assert fit_actors(nodes, wanted=30) == Actors(8, 4, 1)
    assert fit_actors([{"CPU": 64.0, "GPU": 1.0}]) == Actors(1, 8, 1)


def test_without_gpus_the_cpus_are_divided() -> None:
    assert fit_actors([{"CPU": 16}, {"CPU": 6}, {"CPU": 1}]) == Actors(5, 4, 0)
    assert fit_actors([{"CPU": 1}, {"CPU": 1}, {}]) == Actors(2, 1, 0)
    assert fit_actors([{"CPU": 2}], wanted=2) == Actors(2, 1, 0)
    assert fit_actors([{"CPU": 2}], wanted=1) == Actors(1, 2, 0)
    assert fit_actors([{"CPU": 8, "GPU": 2}], gpus=False) == Actors(2, 4, 0)


@pytest.mark.parametrize("cpus", range(1, 12))
@pytest.mark.parametrize("wanted", range(4))
def test_no_node_is_asked_for_more_than_it_has(cpus: int, wanted: int) -> None:
    actors = fit_actors([{"CPU": cpus}, {"CPU": 3}], wanted=wanted)
    assert 1 <= actors.count <= (cpus // actors.cpus) + (3 // actors.cpus)
    assert not wanted or actors.count <= wanted


def test_a_cluster_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no CPU to encode with: 2 nodes.*--num-cpus"):
        fit_actors([{}, {"memory": 3.0}])
