"""An evaluated run is a gallery, also one of version 0.1.0; a crash leaves what was there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.api import evaluate
from phpq.codes import Codebooks
from phpq.data import open_dataset, write_plumage
from phpq.errors import BadImageError, ConfigError, FormatError, NotTrainedError
from phpq.evaluation.coded import CODED, write_coded
from phpq.gallery import Gallery, GalleryStore
from phpq.gallery.models import is_run, model_folder
from phpq.gallery.of_run import build_gallery, open_run
from phpq.gallery.view import GalleryView, Page
from phpq.model import load
from tiny_runs import tiny_birds, tiny_config, tiny_train

OLD = Path(__file__).parent / "made_by_0_1_0"


def old_model() -> Any:
    """Return what is needed of the model of the old files; its weights are too large to keep."""
    recorded = json.loads((OLD / "answers.json").read_text())
    return SimpleNamespace(
        codebooks=Codebooks(np.load(OLD / "codebooks.npy")),
        fingerprint=lambda: recorded["fingerprint"],
        query_norm="unit",
    )


def queries() -> Any:
    return np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)


def test_hits_equal_a_plain_loop_over_decoded_rows(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    gallery, model = Gallery.open(run, device="cpu"), load(run)
    birds = tiny_birds()
    codes = model.encode(birds.train)
    rows = model.codebooks.decode(codes).reshape(len(codes), 4, -1)
    for number in (0, 3):
        image = birds.test.read(number)
        vector = model.embed(image)[0].reshape(4, -1)
        scores = [
            sum(float(z @ row[m]) / float(np.linalg.norm(z)) for m, z in enumerate(vector))
            for row in rows
        ]
        found = gallery.search(image, 6)
        best = sorted(scores, reverse=True)[:6]
        assert [hit.score for hit in found] == pytest.approx(best, abs=1e-4)
        for hit in found:
            place = birds.train.ids.index(hit.id)
            assert hit.score == pytest.approx(scores[place], abs=1e-4)
            assert hit.label == birds.class_names[birds.train.labels[place]]
    assert len(gallery.search(birds.test.read(0), 1000)) == 24


def test_a_run_is_reranked_filtered_and_named(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    gallery = Gallery.open(run, device="cpu")
    (name,) = {hit.label for hit in gallery.search(queries()[0], 1)}
    found = gallery.search(queries()[0], 3, where=f"label = '{name}'", rerank=6)
    assert {hit.label for hit in found} == {name}
    assert found.total == 6
    assert gallery.name == "run"
    assert gallery.path == run / "evaluation" / "gallery"
    assert model_folder(gallery.path, gallery.manifest) == run
    assert len(Gallery.open(gallery.path, device="cpu")) == 24  # by its own name too
    assert gallery.verify().sound
    assert is_run(run)
    assert not is_run(gallery.path)
    assert not list(run.rglob("gallery/model"))


def test_files_are_named_and_hashed(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    birds = open_dataset(write_plumage(tmp_path / "birds", tiny_birds()))
    evaluate(run, birds, device="cpu")
    gallery = Gallery.open(run, device="cpu")
    indexed = Gallery.create(tmp_path / "g", run)
    indexed.add(tmp_path / "birds")
    for id in birds.train.ids:
        ours, theirs = gallery.get(id), indexed.get(id)
        assert (ours.uri, ours.sha256) == (theirs.uri, theirs.sha256)
        assert ours.code.tolist() == theirs.code.tolist()


def test_errors_name_what_cannot_be_opened(tmp_path: Path) -> None:
    bare = copy_run(tmp_path / "bare", evaluated=False)
    with pytest.raises(NotTrainedError, match=r"no gallery to search.*phpq evaluate .*bare"):
        Gallery.open(bare)
    with pytest.raises(FormatError, match=r"The gallery .*nowhere' does not exist"):
        Gallery.open(tmp_path / "nowhere")
    run = copy_run(tmp_path / "run")
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(BadImageError, match=r"text.jpg': it is not an image"):
        Gallery.open(run).search(tmp_path / "text.jpg")


@pytest.mark.parametrize("gathered", [True, False])
def test_codes_of_another_model_are_refused(tmp_path: Path, gathered: bool) -> None:
    run = copy_run(tmp_path / "run")
    if not gathered:
        shutil.rmtree(run / "evaluation")
        coded(run)
    tiny_train(tmp_path / "again", tiny_config("training.epochs=1"))
    shutil.copy(tmp_path / "again" / "weights.safetensors", run)
    with pytest.raises(FormatError, match=r"trained again since.*phpq evaluate"):
        Gallery.open(run)


def coded(run: Path) -> None:
    """Leave what an evaluation leaves where Lance is not installed: of 5 images."""
    model = load(run, device="cpu")
    images = tiny_birds().train.subset(np.arange(5))
    vectors = model.embed(images)
    (run / "evaluation").mkdir(exist_ok=True)
    write_coded(
        run / "evaluation",
        images,
        model.codebooks.encode(vectors),
        vectors,
        fingerprint=model.fingerprint(),
    )


@pytest.mark.parametrize("step", ["create", "put", "rename", "unlink"])
def test_a_crash_leaves_an_evaluation_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    run = copy_run(tmp_path / "run")
    coded(run)

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the power failed")

    owner = GalleryStore if step in ("create", "put") else Path
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, crash)
        with pytest.raises(RuntimeError, match="the power failed"):
            build_gallery(run, load(run, device="cpu"))
    assert len(Gallery.open(run, device="cpu")) == 5
    assert {path.name for path in (run / "evaluation").iterdir()} >= {"gallery", "metrics.json"}
    assert not (run / "evaluation" / CODED).exists()
    assert not list((run / "evaluation").glob(".gallery*"))


def test_a_crash_before_the_codes_are_written_leaves_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(tmp_path / "run")

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", crash)
        with pytest.raises(RuntimeError, match="the power failed"):
            evaluate(run, tiny_birds(), device="cpu")
    assert len(Gallery.open(run, device="cpu")) == 24


def test_a_run_of_0_1_0_is_opened(tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD / "run", tmp_path / "run"))
    model = old_model()
    for _ in range(2):  # the second time it is a gallery already
        store = open_run(run, model)
        found = GalleryView(store, model.codebooks).search_many(queries(), Page(top_k=6))
        expected = json.loads((OLD / "answers.json").read_text())["run"]
        for ours, theirs in zip(found, expected, strict=True):
            assert [[hit.id, hit.label] for hit in ours] == [[i, label] for i, _, label in theirs]
            assert [hit.score for hit in ours] == pytest.approx([s for _, s, _ in theirs])
    assert (run / "evaluation" / "gallery.json").is_file()  # the old version still reads it
    with pytest.raises(ConfigError, match=r"rerank=9 needs float embeddings.*phpq evaluate RUN"):
        GalleryView(store, model.codebooks).search(queries()[0], Page(top_k=3, rerank=9))


def test_a_gallery_of_0_1_0_is_opened(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(OLD / "birds.gallery", tmp_path / "birds.gallery"))
    recorded = json.loads((OLD / "answers.json").read_text())
    view = GalleryView(GalleryStore.open(folder), old_model().codebooks)
    # It keeps embeddings, by which equal scores are put in order now; 0.1.0 took them as added.
    found = view.search_many(queries(), Page(top_k=50))
    for ours, theirs in zip(found, recorded["plain"], strict=True):
        told_scores = [score for _, score, *_ in theirs]
        assert [hit.score for hit in ours[:6]] == pytest.approx(told_scores)
        by_id = {hit.id: hit for hit in ours}
        assert [[by_id[id].label, by_id[id].metadata["year"]] for id, *_ in theirs] == [
            [label, year] for _, _, label, year in theirs
        ]
        assert [by_id[id].score for id, *_ in theirs] == pytest.approx(told_scores)
    found = view.search_many(queries(), Page(top_k=4, where="year > 2001", rerank=6))
    for ours, theirs in zip(found, recorded["reranked"], strict=True):
        assert [hit.id for hit in ours] == [id for id, _ in theirs]
        assert [hit.score for hit in ours] == pytest.approx([score for _, score in theirs])
