from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmark_layouts import write_cub200
from command_line import phpq, refused
from finished_runs import copy_run
from phpq.data import write_plumage
from phpq.gallery import Gallery
from tiny_runs import tiny_birds, tiny_config, tiny_train


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    return write_plumage(tmp_path / "birds", tiny_birds(3, 1))


def test_a_folder_in_one_command_and_again(birds: Path, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    (birds / "bad [x].png").write_bytes(b"no image")
    outcome = phpq("index", tmp_path / "g", birds, "--model", run)
    assert outcome.code == 0, outcome.err
    assert "16 added, 1 left out" in outcome.out
    assert "bad [x].png" in outcome.err
    assert "phpq search" in outcome.out
    sorted(birds.rglob("*.png"))[5].unlink()
    content = phpq("index", tmp_path / "g", birds, "--prune", "--json").json()
    assert content["gallery"] == str(tmp_path / "g")
    assert (content["added"], content["unchanged"], content["deleted"]) == (0, 15, 1)
    assert (content["images"], content["skipped"][0]["id"]) == (15, "bad [x].png")
    # The run is in the gallery: nothing else is needed.
    shutil.rmtree(run)
    assert phpq("search", tmp_path / "g", next(birds.rglob("0*.png"))).code == 0


def test_a_table_with_metadata(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.rglob("*.png"))[:4]
    rows = [f"{file.relative_to(tmp_path)},{2000 + n},n{n}" for n, file in enumerate(files)]
    (tmp_path / "t.csv").write_text("\n".join(["path,year,id", *rows, "none.png,2009,lost"]))
    run = copy_run(tmp_path / "run")
    made = phpq("index", tmp_path / "g", tmp_path / "t.csv", "--model", run, "--json").json()
    assert (made["added"], [image["id"] for image in made["skipped"]]) == (4, ["lost"])
    found = phpq("search", tmp_path / "g", files[0], "--where", "year > 2001", "--json").json()
    assert {hit["id"] for hit in found["queries"][0]["hits"]} == {"n2", "n3"}
    assert found["queries"][0]["hits"][0]["metadata"]["year"] in (2002, 2003)


def test_mistakes_leave_nothing_behind(birds: Path, tmp_path: Path) -> None:
    run, gallery = copy_run(tmp_path / "run"), tmp_path / "g"
    assert "There is no file or folder" in refused("index", gallery, "nowhere", "--model", run)
    assert "--model RUN" in refused("index", gallery, birds)
    assert "no folder" in refused("index", gallery, birds, "--model", "no-run")
    assert not gallery.exists()
    assert "is not a gallery, and not empty" in refused("index", birds, birds, "--model", run)
    assert phpq("index", gallery, birds, "--model", run).code == 0
    assert "for a new gallery" in refused("index", gallery, birds, "--keep-embeddings")
    other = tmp_path / "other"
    tiny_train(other, tiny_config("training.epochs=1"))
    assert "another model" in refused("index", gallery, birds, "--model", other)
    (gallery / "manifest.json").write_text("{")
    assert "phpq gallery verify --repair" in refused("index", gallery, birds)


def test_a_benchmark_is_looked_for_among_the_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    run, gallery = copy_run(tmp_path / "run", evaluated=False), tmp_path / "g"
    message = refused("index", gallery, "cub200", "--model", run)
    assert str(tmp_path / "home" / "cub200") in message
    write_cub200(tmp_path / "home" / "cub200" / "CUB_200_2011")
    content = phpq("index", gallery, "cub200", "--model", run, "--json").json()
    assert (content["added"], content["images"]) == (6, 6)


def test_ids_that_clash(birds: Path, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    phpq("index", tmp_path / "g", birds, "--model", run)
    more = write_plumage(tmp_path / "more", tiny_birds(3, 1))
    for file in more.rglob("*.png"):
        file.write_bytes(file.read_bytes() + b"changed")
    assert "already names" in refused("index", tmp_path / "g", more)
    beside = phpq("index", tmp_path / "g", more, "--prefix", "more/", "--json").json()
    assert (beside["added"], beside["images"]) == (16, 32)
    assert phpq("index", tmp_path / "g", more, "--replace", "--json").json()["replaced"] == 16


def test_an_interrupt_says_how_to_go_on(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gallery, "add", stop)
    outcome = phpq("index", tmp_path / "g", birds, "--model", copy_run(tmp_path / "run"))
    assert outcome.code == 130
    assert "0 images are in the gallery. Run the command again" in outcome.err


def test_embeddings_for_reranking(birds: Path, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    phpq("index", tmp_path / "g", birds, "--model", run, "--keep-embeddings")
    photo = sorted(birds.rglob("*.png"))[7]
    found = phpq("search", tmp_path / "g", photo, "--top-k", "1", "--rerank", "16", "--json")
    (hit,) = json.loads(found.out)["queries"][0]["hits"]
    assert birds / hit["id"] == photo


def test_a_list_of_uris_and_images_elsewhere(birds: Path, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    made = phpq("index", tmp_path / "g", f"file://{birds}", "--model", run, "--json").json()
    assert made["added"] == 16
    files = sorted(birds.rglob("*.png"))
    (tmp_path / "l.txt").write_text("".join(f"file://{file}\n" for file in files[:3]))
    made = phpq("index", tmp_path / "g", tmp_path / "l.txt", "--json").json()
    assert (made["added"], made["images"]) == (3, 19)
    assert "Protocol not known" in refused("index", tmp_path / "g", "nothing://bucket/")
    assert Gallery.open(tmp_path / "g").verify().sound


def test_ray_takes_an_address_or_none(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(tmp_path / "run")
    asked: list[tuple[str, str]] = []

    @contextmanager
    def engine(folder: Path, address: str, *, device: str) -> Iterator[None]:
        asked.append((address, device))
        yield None  # this process

    monkeypatch.setattr("phpq.cluster.encoding.ray_engine", engine)
    words: list[str | Path] = ["index", tmp_path / "g", birds, "--model", run]
    assert phpq(*words, "--ray").code == 0
    assert phpq(*words, "--ray", "head:6379", "--device", "cpu").code == 0
    assert phpq("index", "--ray", tmp_path / "g", birds).code == 0
    assert asked == [("local", "auto"), ("head:6379", "cpu"), ("local", "auto")]
    monkeypatch.undo()
    assert "not the address of a Ray cluster" in refused(*words, "--ray=birds/")


def test_a_gallery_that_owns_its_codebooks(birds: Path, tmp_path: Path) -> None:
    run, gallery = copy_run(tmp_path / "run"), tmp_path / "g"
    assert "--bits 32 is for --own-codebooks" in refused(
        "index", gallery, birds, "--model", run, "--bits", "32"
    )
    outcome = phpq("index", gallery, birds, "--model", run, "--own-codebooks", "--bits", "16")
    assert "16 bits each" in outcome.out, outcome.err
    assert phpq("index", gallery, birds, "--json").json()["unchanged"] == 16
    assert "phpq gallery refit" in refused("index", gallery, birds, "--bits", "8")
    assert "--no-embeddings" in refused("index", gallery, birds, "--no-embeddings")
    found = phpq("search", gallery, next(birds.rglob("0*.png")), "--json").json()
    assert len(found["queries"][0]["verdict"]["runners_up"]) == 3
    shown = phpq("search", gallery, next(birds.rglob("0*.png")), "--why").out
    assert "likely if it is one of the kinds that the gallery knows\nor " in shown
    where = f"label = '{found['queries'][0]['verdict']['label']}'"
    shown = phpq("search", gallery, next(birds.rglob("0*.png")), "--where", where).out
    assert "the only kind that passes the filter" in shown
    told = phpq("gallery", "refit", gallery, "--bits", "8", "--json").json()
    assert (told["images"], told["bits"], told["from_codes"]) == (16, 8, 0)
    plain = tmp_path / "plain"
    phpq("index", plain, birds, "--model", run)
    assert "--own-codebooks" in refused("index", plain, birds, "--own-codebooks")


def test_ids_that_are_not_unique_are_said(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.rglob("*.png"))[:4]
    lines = [f"{file.relative_to(tmp_path)},{n % 2}" for n, file in enumerate(files)]
    (tmp_path / "t.csv").write_text("\n".join(["path,id", *lines]))
    run = copy_run(tmp_path / "run")
    made = phpq("index", tmp_path / "g", tmp_path / "t.csv", "--model", run)
    assert "2 images had the id of an earlier one" in made.err
    assert "2 images, 0 labels" in made.out


def test_codebooks_for_kinds_that_the_model_learned(birds: Path, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    options = ("--model", run, "--own-codebooks")
    assert "very images" in phpq("index", tmp_path / "g", birds, *options).out
    for folder in [one for side in birds.iterdir() for one in side.iterdir()]:
        folder.rename(folder.with_name("not " + folder.name))
    assert "very images" not in phpq("index", tmp_path / "h", birds, *options).out


def test_where_nothing_could_be_read_there_is_nothing_to_search(tmp_path: Path) -> None:
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "a.png").write_bytes(b"no image")
    made = phpq("index", tmp_path / "g", tmp_path / "birds", "--model", copy_run(tmp_path / "run"))
    assert "1 left out" in made.out
    assert "next" not in made.out
