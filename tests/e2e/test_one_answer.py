"""One question, one answer: library, command line, server and shards find the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from command_line import phpq
from finished_runs import copy_run
from phpq import Client, Gallery
from phpq.api import evaluate
from phpq.data import open_dataset, write_plumage
from phpq.gallery.shards import LocalShards, Shards
from phpq.hits import Found
from phpq.serve.ray_shards import ray_shards
from phpq.serve.settings import Sharding
from served_galleries import running, served
from shard_twins import twin_shards
from sure_galleries import FAMILY, sure_at
from tiny_runs import tiny_birds

Ask = Callable[[Path, dict[str, Any]], dict[str, Any]]
FILTER = "label <> '{label}' OR id LIKE '%1%'"
PAGES: tuple[dict[str, Any], ...] = (
    {"top_k": 7},
    {"top_k": 24},
    {"top_k": 5, "offset": 3},
    {"top_k": 6, "where": FILTER},
    {"top_k": 6, "where": "label = 'no such label'"},
    {"top_k": 4, "rerank": 20},
    {"top_k": 4, "offset": 2, "where": FILTER, "rerank": 9},
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `birds/`, an evaluated `run/` and a `birds.gallery` of the same run."""
    home = tmp_path_factory.mktemp("one-answer")
    birds = open_dataset(write_plumage(home / "birds", tiny_birds()))
    run = copy_run(home / "run", evaluated=False)
    evaluate(run, birds, device="cpu")
    gallery = Gallery.create(home / "birds.gallery", run, keep_embeddings=True)
    gallery.add(home / "birds")
    first, *_, last = (hit.id for hit in gallery.search(photos(home)[0], 100))
    gallery.delete(first)
    gallery.upsert([{"path": photos(home)[1], "id": last}])  # now the scan order is another one
    return home


def photos(home: Path) -> list[Path]:
    return sorted((home / "birds" / "test").rglob("*.png"))[::2]


def plain(found: Found) -> dict[str, Any]:
    """Return what every way must tell; a server does not tell where files are."""
    content = found.to_dict()
    for hit in content["hits"]:
        del hit["uri"]
    return content


def by_library(target: Path) -> Ask:
    gallery = Gallery.open(target, device="cpu")
    return lambda photo, page: plain(gallery.search(photo, **page))


def by_command(target: Path) -> Ask:
    def ask(photo: Path, page: dict[str, Any]) -> dict[str, Any]:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in page.items()]
        outcome = phpq("search", target, photo, *options, "--device=cpu", "--json")
        assert outcome.code == 0, outcome.err
        query: dict[str, Any] = outcome.json()["queries"][0]
        del query["query"]
        for hit in query["hits"]:
            del hit["uri"]
        return query

    return ask


def by_client(client: Client) -> Ask:
    return lambda photo, page: plain(client.search(photo, **page))


def by_wire(http: TestClient) -> Ask:
    def ask(photo: Path, page: dict[str, Any]) -> dict[str, Any]:
        files = {"image": photo.read_bytes()}
        answer = http.post("/api/v1/search", data=page, files=files)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        hits = [
            {k: v for k, v in hit.items() if k not in ("thumbnail", "has_original")}
            for hit in content["hits"]
        ]
        return {name: content[name] for name in ("total", "best", "verdict")} | {"hits": hits}

    return ask


@contextmanager
def shards_of(target: Path, kind: str) -> Iterator[Shards]:
    gallery = Gallery.open(target, device="cpu")
    books = gallery.model.codebooks
    if kind == "ray":
        with ray_shards(gallery.path, books, Sharding(shards=2, retry_seconds=600)) as shards:
            yield shards
    elif kind == "twins":
        twins, _ = twin_shards(gallery.path, books, Sharding(shards=2, retry_seconds=30))
        yield twins
        twins.close()
    else:
        yield LocalShards(int(kind))


def assert_same(ours: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [hit["id"] for hit in ours["hits"]] == [hit["id"] for hit in expected["hits"]]
    assert ours["verdict"] == unrounded(expected["verdict"])
    assert ours["total"] == expected["total"]
    assert ours["best"] == pytest.approx(expected["best"], abs=1e-5)
    for one, other in zip(ours["hits"], expected["hits"], strict=True):
        for name in ("score", "share"):  # an upload may be embedded beside others, and round so
            assert one.pop(name) == pytest.approx(other[name], abs=1e-5)
        assert one == unrounded({k: v for k, v in other.items() if k not in ("score", "share")})


def unrounded(value: Any) -> Any:
    """Return plain data without what an upload, embedded beside others, may round otherwise."""
    if isinstance(value, dict):
        return {name: unrounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [unrounded(one) for one in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


@pytest.mark.parametrize("name", ["birds.gallery", pytest.param("run", marks=pytest.mark.slow)])
def test_every_way_gives_one_answer(home: Path, name: str) -> None:
    target = home / name
    library = by_library(target)
    label = library(photos(home)[0], {"top_k": 1})["hits"][0]["label"]
    pages = [
        page | ({"where": page["where"].format(label=label)} if "where" in page else {})
        for page in PAGES
    ]
    with ExitStack() as stack:
        ways = [by_command(target)]
        for kind in ("1", "3", "twins"):
            shards = stack.enter_context(shards_of(target, kind))
            http = stack.enter_context(served(target, shards=shards))
            ways.append(by_wire(http))
        address = stack.enter_context(running(target))
        ways.append(by_client(stack.enter_context(Client(address))))
        ties, verdicts = 0, set()
        for photo in photos(home):
            for page in pages:
                expected = library(photo, page)
                scores = [hit["score"] for hit in expected["hits"]]
                ties += len(scores) - len(set(scores))
                verdicts.add(str(expected["verdict"]))
                for way in ways:
                    assert_same(way(photo, page), expected)
    assert ties > 20
    assert len(verdicts) > 3
    assert "None" in verdicts


@pytest.mark.slow
@pytest.mark.parametrize(("level", "name"), [(0, None), (1, FAMILY), (None, None)])
def test_every_way_is_as_sure(home: Path, level: int | None, name: str | None) -> None:
    target = home / "own.gallery"
    if not target.exists():
        Gallery.create(target, home / "run", codebooks="own", bits=16).add(home / "birds")
    sure_at(target, level)
    library, photo = by_library(target), photos(home)[0]
    with ExitStack() as stack:
        ways = [by_command(target)]
        for kind in ("1", "3"):
            shards = stack.enter_context(shards_of(target, kind))
            ways.append(by_wire(stack.enter_context(served(target, shards=shards))))
        address = stack.enter_context(running(target))
        ways.append(by_client(stack.enter_context(Client(address))))
        for page in ({"top_k": 6}, {"top_k": 4, "where": "id LIKE '%1%'"}):
            expected = library(photo, page)
            sure = expected["verdict"]["sure"]
            assert sure["level"] == level
            assert sure["label"] == (name if level else sure["label"])
            for way in ways:
                assert_same(way(photo, page), expected)


@pytest.mark.rare  # tests/serve/test_ray_shards.py compares a cluster with one server
def test_a_cluster_gives_the_answer_of_the_library(home: Path) -> None:
    target = home / "birds.gallery"
    library = by_library(target)
    with shards_of(target, "ray") as shards, served(target, shards=shards) as http:
        way = by_wire(http)
        for photo in photos(home):
            for page in PAGES:
                if "where" not in page:
                    assert_same(way(photo, page), library(photo, page))
