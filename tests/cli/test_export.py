from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import pytest

from command_line import phpq, refused
from finished_runs import copy_run
from phpq.codes import normalise_sub_vectors
from phpq.data import decode_all
from phpq.gallery import Gallery, GalleryStore
from phpq.model import load
from phpq.model.onnx_model import OnnxModel
from reference import scan_codes
from served_galleries import copy_gallery
from tiny_runs import tiny_birds


def test_the_encoder_goes_to_onnx_with_the_codes_of_the_model(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    outcome = phpq("export", run, "--out", tmp_path / "birds.onnx", "--json")
    assert outcome.code == 0, outcome.err
    model = load(run)
    pixels = decode_all(tiny_birds().test, model.card.config.data).pixels
    session = onnxruntime.InferenceSession(outcome.json()["path"])
    codes = session.run(["codes"], {"pixels": pixels})[0]
    np.testing.assert_array_equal(codes, model.encode(tiny_birds().test))


@pytest.mark.rare  # tests/model/test_onnx_model.py embeds with the same file
def test_the_general_embedding_goes_to_onnx_alone(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    outcome = phpq("export", run, "--format", "general", "--json")
    assert outcome.code == 0, outcome.err
    model = load(run)
    facts = outcome.json()
    assert facts["outputs"] == f"embedding: (N, {model.embedding_dim('general')}) float32"
    pixels = decode_all(tiny_birds().test, model.card.config.data).pixels
    session = onnxruntime.InferenceSession(facts["path"])
    (embedding,) = session.run(None, {"pixels": pixels})
    np.testing.assert_allclose(
        embedding, model.embed_pixels(pixels, space="general"), rtol=0, atol=1e-4
    )
    (run / "general.safetensors").unlink()
    assert "phpq train --resume" in refused("export", run, "--format", "general")


def test_the_gallery_goes_to_faiss_with_its_ids(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    outcome = phpq("export", run, "--format", "faiss", "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json()
    index = faiss.read_index(facts["path"])
    names = json.loads(Path(facts["ids"]).read_text())
    assert index.ntotal == facts["rows"] == len(names["ids"]) == len(tiny_birds().train)
    model = load(run)
    queries = model.embed(tiny_birds().test)
    unit = normalise_sub_vectors(queries, model.codebooks.num_codebooks)
    scores, _ = index.search(unit, 5)
    codes = model.encode(tiny_birds().train)
    _, ours = scan_codes(model.codebooks.lookup_tables(queries), codes, 5)
    np.testing.assert_allclose(scores, ours, atol=1e-5)


def test_sizes_are_told_as_people_write_them(tmp_path: Path) -> None:
    told = phpq("export", copy_run(tmp_path / "run")).out
    assert re.search(r"^size +[\d.]+ (kB|MB)$", told, re.MULTILINE)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    assert "phpq evaluate" in refused("export", run, "--format", "faiss")
    assert "must end in .onnx" in refused("export", run, "--out", tmp_path / "model.txt")
    assert "is not a model folder" in refused("export", tmp_path)
    assert "--int8 is for" in refused("export", run, "--format", "faiss", "--int8")
    assert "--images for --int8" in refused("export", run, "--images", tmp_path)


def test_the_model_of_an_upgraded_gallery_is_that_of_its_newest_version(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    store = GalleryStore.open(folder)
    with store.changing():
        store.commit_manifest(replace(store.manifest, model="abc", format_version=3))
    assert str(folder / "models" / "abc") in refused("export", folder)


def test_images_to_calibrate_on_are_looked_for_among_the_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    message = refused("export", run, "--int8", "--images", "cub200")
    assert str(tmp_path / "home" / "cub200") in message


@pytest.mark.slow
def test_a_gallery_is_exported_too(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "birds.gallery", load(copy_run(tmp_path / "run")))
    birds = tiny_birds().train
    gallery.add(birds)
    outcome = phpq("export", gallery.path, "--format", "faiss", "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json()
    assert faiss.read_index(facts["path"]).ntotal == len(birds)
    assert sorted(json.loads(Path(facts["ids"]).read_text())["ids"]) == sorted(birds.ids)
    assert phpq("export", gallery.path, "--json").json()["path"].endswith("model/encoder.onnx")
    assert (gallery.path / "model" / "general.onnx").is_file()
    assert isinstance(Gallery.open(gallery.path, device="cpu").model, OnnxModel)
    assert phpq("info", gallery.path, "--json").json()["images"] == len(birds)
