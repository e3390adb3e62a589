"""A whole evaluation of a tiny model: what is measured, what is written, what is left out."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from finished_runs import copy_run
from phpq.additive import fit_additive
from phpq.codes import FloatArray
from phpq.data import open_dataset, write_plumage
from phpq.errors import ConfigError
from phpq.evaluation import LabelledEmbeddings, evaluate_codes
from phpq.evaluation.coded import read_coded
from phpq.evaluation.history import EpochScore, EpochScores
from phpq.evaluation.protocol import evaluate_soft
from phpq.evaluation.run import Evaluation, evaluate_model
from phpq.evaluation.search import SearchSetup, evaluate_pq, search
from phpq.model import Model, load
from tiny_runs import tiny_birds, tiny_config, tiny_train

FILES = {
    "gallery.npz",
    "metrics.json",
    "precision_at.png",
    "precision_recall.png",
    "report.html",
    "top10.png",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(copy_run(tmp_path_factory.mktemp("runs") / "run", evaluated=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation") / "new" / "folder"


@pytest.fixture(scope="module")
def evaluation(model: Model, folder: Path) -> Evaluation:
    epochs = EpochScores(last=EpochScore(4, 40.0), best=EpochScore(2, 44.4), evaluated=2)
    return evaluate_model(model, tiny_birds(), out=folder, epochs=epochs)


def test_the_scores_are_those_of_the_protocol(model: Model, evaluation: Evaluation) -> None:
    birds = tiny_birds()
    queries = LabelledEmbeddings(model.embed(birds.test), birds.test.labels)
    expected = evaluate_codes(
        queries, model.encode(birds.train), birds.train.labels, model.codebooks, cutoffs=(1, 5, 10)
    )
    assert evaluation.codes.map == pytest.approx(expected.map)
    assert evaluation.codes.precision_at[10] == pytest.approx(expected.precision_at[10])
    assert list(evaluation.codes.precision_at) == [1, 5, 10, 20]  # none beyond the 24 images
    assert evaluation.float_search.method == "float"
    assert evaluation.posthoc_pq.bits == evaluation.bits == 12
    gallery = LabelledEmbeddings(model.embed(birds.train), birds.train.labels)
    quantizer = model.card.config.quantizer
    soft = evaluate_soft(
        queries, gallery, model.codebooks, alpha=quantizer.alpha, kappa=quantizer.kappa
    )
    assert evaluation.soft is not None
    assert evaluation.soft.map == pytest.approx(soft.map)
    fitted = evaluate_pq(queries, gallery, num_codebooks=4, largest=8)
    assert evaluation.posthoc_pq.map == pytest.approx(fitted.map, abs=0.05)
    assert evaluation.timing.queries == 1000
    assert evaluation.fingerprint == model.fingerprint()


def test_the_gallery_is_also_searched_by_codebooks_of_its_own(model: Model, tmp_path: Path) -> None:
    birds = tiny_birds()
    found = evaluate_model(model, birds, out=tmp_path, own_codebooks=True)
    names = [birds.train.class_names[label] for label in birds.train.labels]
    rows = model.embed(birds.train, space="general")
    queries = LabelledEmbeddings(model.embed(birds.test, space="general"), birds.test.labels)
    for way, labels in (("without labels", [None] * len(names)), ("with its labels", names)):
        books = fit_additive(rows, labels, num_codebooks=1)
        codes = books.encode(rows, labels)
        expected = evaluate_codes(queries, codes, birds.train.labels, books, cutoffs=(1,))
        scores = found.own[f"gallery's own codebooks, {way}"]
        assert scores.map == pytest.approx(expected.map, abs=0.02)
        assert scores.bits == 8
    assert list(found.ways)[-2:] == list(found.own)
    assert "with its labels" in (tmp_path / "report.html").read_text("utf-8")
    stored = json.loads((tmp_path / "metrics.json").read_text("utf-8"))
    assert list(stored["own_codebooks"]) == list(found.own)


def test_every_file_is_there_and_whole(model: Model, evaluation: Evaluation, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    for path in folder.glob("*.png"):
        Image.open(io.BytesIO(path.read_bytes())).verify()
    content = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert content == json.loads(json.dumps(evaluation.to_dict()))
    assert content["map"] == {"12": evaluation.codes.map_percent}
    assert content["epochs"]["last"]["map"] == 40.0
    assert content["epochs"]["best"]["map"] == 44.4
    gallery = read_coded(folder, remedy="")
    birds = tiny_birds()
    assert gallery.ids == birds.train.ids
    assert np.array_equal(gallery.codes, model.encode(birds.train))


def test_the_page_shows_last_and_best_together_and_asks_for_nothing(
    evaluation: Evaluation, folder: Path
) -> None:
    page = (folder / "report.html").read_text("utf-8")
    assert f"{evaluation.codes.map_percent:.2f}" in page
    assert f"{evaluation.posthoc_pq.map_percent:.2f}" in page
    lowest, highest = evaluation.codes.map_range_percent
    assert f"in the worst order it would be {lowest:.2f}, in the best {highest:.2f}" in page
    assert "last evaluated epoch" in page
    assert "40.00" in page
    assert "best evaluated epoch" in page
    assert "44.40" in page
    assert page.count("data:image/png;base64,") == 3
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


def test_bad_images_are_skipped_and_reported(tmp_path: Path, model: Model) -> None:
    root = write_plumage(tmp_path / "birds", tiny_birds())
    bad = [tiny_birds().train.ids[2], tiny_birds().test.ids[5]]
    for name in bad:
        (root / name).write_bytes((root / name).read_bytes()[:60])
    found = evaluate_model(model, open_dataset(root), out=tmp_path / "out")
    assert [image.id for image in found.skipped] == bad
    assert (found.codes.gallery, found.codes.queries) == (23, 7)
    assert [image["id"] for image in found.to_dict()["skipped"]] == bad
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "2 images could not be read" in page
    assert len(read_coded(tmp_path / "out", remedy="").ids) == 23


def test_a_model_with_held_out_queries_is_measured_on_those(tmp_path: Path) -> None:
    config = tiny_config("data.holdout_per_class=2", "training.epochs=1")
    held = tiny_train(tmp_path / "run", config)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    found = evaluate_model(held, tiny_birds())
    assert found.held_out == 2
    assert (found.codes.gallery, found.codes.queries) == (16, 8)
    assert found.codes.map_percent == pytest.approx(json.loads(rows[-1])["map"])
    # Another data set has no images that the model held out.
    other = replace(tiny_birds(), name="other", source="other")
    assert evaluate_model(held, other).codes.gallery == 24


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Half of the species, the last two, were not learned."""
    config = tiny_config("data.holdout_classes=0.5", "training.epochs=1")
    return tiny_train(tmp_path_factory.mktemp("held") / "run", config)


def test_classes_that_were_held_out_are_measured_as_new_kinds(
    tmp_path: Path, held: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.evaluation.run.UNSEEN_BITS", (16,))
    birds = tiny_birds()
    assert held.class_names == birds.class_names[:2]

    def frozen(pixels: NDArray[np.uint8]) -> FloatArray:
        means: FloatArray = pixels.mean(axis=(2, 3), dtype=np.float32) + 1
        return means

    monkeypatch.setattr(type(held), "has_general", False)
    found = evaluate_model(held, birds, out=tmp_path, frozen=frozen)
    assert (found.codes.gallery, found.codes.queries) == (12, 4)  # of the learned classes
    assert found.unseen is not None
    own = found.unseen.find("seen@seen", "PHPQ codes", "without")
    assert own is not None
    assert own.values["map"] == pytest.approx(found.codes.map_percent, abs=1e-6)
    among = found.unseen.find("unseen", "PHPQ codes", "without")
    assert among is not None
    assert (among.gallery, among.queries) == (16, 16)
    new = np.flatnonzero(birds.train.labels >= 2), np.flatnonzero(birds.test.labels >= 2)
    images = np.concatenate(
        [held.embed(birds.train.subset(new[0])), held.embed(birds.test.subset(new[1]))]
    )
    labels = np.concatenate([birds.train.labels[new[0]], birds.test.labels[new[1]]])
    books, rows = held.codebooks, np.arange(16)
    way = SearchSetup("", images, lambda *_: books, norm=held.query_norm)
    assert among.values == search(way, labels, "", gallery=rows, queries=rows).values
    assert found.unseen.find("unseen", "frozen features, float", "without") is not None
    assert any("general embedding" in reason for reason in found.unseen.left_out)
    content = json.loads((tmp_path / "metrics.json").read_text("utf-8"))
    assert content["unseen"] == json.loads(json.dumps(found.unseen.to_dict()))
    page = (tmp_path / "report.html").read_text("utf-8")
    for text in ("New kinds", "codes, 2 bytes, with labels", "unseen@all", "five labelled"):
        assert text in page
    assert len(read_coded(tmp_path, remedy="").ids) == 12


def test_a_general_embedding_is_used_for_new_kinds(
    held: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.evaluation.run.UNSEEN_BITS", (16,))
    birds = tiny_birds()
    found = evaluate_model(held, birds).unseen
    assert found is not None
    images = np.concatenate(
        [
            held.embed(part.subset(part.labels >= 2), space="general")
            for part in (birds.train, birds.test)
        ]
    )
    labels = np.concatenate([part.labels[part.labels >= 2] for part in (birds.train, birds.test)])
    rows, way = np.arange(16), SearchSetup("float", images)
    expected = search(way, labels, "", gallery=rows, queries=rows)
    general = found.find("unseen", "float", "without")
    assert general is not None
    assert general.values == pytest.approx(expected.values, abs=1e-4)
    own = found.find("own look", "float", "without")
    assert own is not None
    assert (own.queries, own.gallery) == (12, 12)
    assert own.values["r10"] > 90
    assert found.find("own look", "codes", "with") is not None
    assert found.find("unseen", "PHPQ float", "without") is not None  # the learned one, beside it
    assert not any("general embedding" in reason for reason in found.left_out)


def test_other_data_sets_have_no_classes_that_were_held_out(held: Model) -> None:
    found = evaluate_model(held, replace(tiny_birds(), name="other", source="other"))
    assert found.unseen is None
    assert found.codes.gallery == 24


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path: Path, model: Model) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"Cannot make the folder .*file.*--out DIR"):
        evaluate_model(model, tiny_birds(), out=tmp_path / "file")


def test_the_module_needs_neither_torch_nor_lance() -> None:
    code = "import sys, phpq.evaluation.run; print({'torch', 'lance', 'faiss'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_codes_that_hold_everything_are_not_compared_with_themselves(tmp_path: Path) -> None:
    bits = ("quantizer.codebook_size=256", "quantizer.num_codebooks=2", "quantizer.kappa=5")
    model = tiny_train(tmp_path / "run", tiny_config("method.name=csq", "training.epochs=1", *bits))
    evaluation = evaluate_model(model, tiny_birds(), out=tmp_path / "evaluation")
    assert evaluation.lossless
    assert list(evaluation.ways) == ["CSQ codes"]
    assert evaluation.codes.map == pytest.approx(evaluation.float_search.map)
    assert "post-hoc" not in (tmp_path / "evaluation" / "report.html").read_text("utf-8")


def test_learned_quantizers_are_compared_with_float_search(evaluation: Evaluation) -> None:
    assert not evaluation.lossless
    soft = "float against soft reconstructions"
    assert list(evaluation.ways) == ["PHPQ codes", "float search", soft, "post-hoc PQ"]


def test_without_faiss_and_matplotlib_everything_else_is_measured(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = ("faiss", "matplotlib")
    monkeypatch.setattr(
        "phpq.evaluation.run.find_spec", lambda name: None if name in hidden else object()
    )
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    found = evaluate_model(model, tiny_birds(), out=tmp_path)
    names = ("PHPQ codes", "float search", "float against soft reconstructions", "post-hoc PQ")
    assert tuple(found.ways) == names
    assert {path.name for path in tmp_path.iterdir()} == {"gallery.npz", "metrics.json"}
    content = json.loads((tmp_path / "metrics.json").read_text("utf-8"))
    assert content["map_pq"] == found.posthoc_pq.map_percent  # faiss is not needed for it
    assert content["map_soft"] == content["scores"]["soft"]["map"]
    with pytest.raises(ConfigError, match=r"Post-hoc PQ was not measured.*phpq or pqn"):
        _ = replace(found, pq=None).posthoc_pq
