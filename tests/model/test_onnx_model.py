"""A model on onnxruntime gives what torch gives, and refuses files that are not its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from finished_runs import copy_onnx_run
from phpq.codes import Codebooks
from phpq.data import decode_all
from phpq.errors import ConfigError, FormatError, NotTrainedError, UnknownNameError
from phpq.gallery import Gallery
from phpq.model import Model, TorchModel, load, onnx_model
from phpq.model.checkpoint import (
    GENERAL,
    WEIGHTS,
    describe_chances,
    read_card,
    read_chances,
    write_weights,
)
from phpq.model.onnx_model import OnnxModel, codebook_facts
from sure_galleries import sure_model
from tiny_runs import SIDE, tiny_birds, tiny_network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_onnx_run(tmp_path_factory.mktemp("onnx") / "run")


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(folder, tmp_path / "run"))


@pytest.fixture(scope="module")
def model(folder: Path) -> OnnxModel:
    return OnnxModel(folder, read_card(folder))


@pytest.fixture(scope="module")
def twin(folder: Path) -> Model:
    return load(folder, device="cpu", runtime="torch")


@pytest.fixture(scope="module")
def pixels(model: Model) -> NDArray[np.uint8]:
    return decode_all(tiny_birds().train, model.card.config.data).pixels


def test_it_is_the_model_that_torch_has(model: Model, twin: Model) -> None:
    np.testing.assert_array_equal(model.codebooks.codewords, twin.codebooks.codewords)
    for name in ("card", "epochs", "bits", "query_norm", "class_names", "has_general"):
        assert getattr(model, name) == getattr(twin, name), name
    assert model.fingerprint() == twin.fingerprint()
    assert model.general_fingerprint() == twin.general_fingerprint()
    assert [model.embedding_dim(), twin.embedding_dim()] == [32, 32]
    assert model.embedding_dim("general") == twin.embedding_dim("general")


def test_embeddings_and_codes_are_those_of_torch(
    model: Model, twin: Model, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_model, "_BATCH", 5)
    wanted = twin.embed_pixels(pixels)
    np.testing.assert_allclose(model.embed_pixels(pixels), wanted, atol=2e-4)
    np.testing.assert_array_equal(
        model.encode(tiny_birds().train, batch_size=7), twin.codebooks.encode(wanted)
    )
    general = model.embed_pixels(pixels, space="general")
    np.testing.assert_allclose(general, twin.embed_pixels(pixels, space="general"), atol=2e-4)
    nothing = np.empty((0, 3, SIDE, SIDE), np.uint8)
    assert model.embed_pixels(nothing).shape == (0, 32)
    with pytest.raises(UnknownNameError, match="'sparse'"):
        model.embed_pixels(pixels, space="sparse")  # type: ignore[arg-type]


def test_a_copy_needs_no_weights(run: Path, tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    said = sure_model(run, 0)
    model = OnnxModel(run, read_card(run))
    copy = model.save(tmp_path / "copy")
    assert (copy / WEIGHTS).read_bytes() == (run / WEIGHTS).read_bytes()
    for name in (WEIGHTS, GENERAL):
        (copy / name).unlink()
    again = load(copy, device="cpu")
    assert isinstance(again, OnnxModel)
    np.testing.assert_array_equal(again.embed_pixels(pixels), model.embed_pixels(pixels))
    assert again.fingerprint() == model.fingerprint()
    assert read_chances(copy, again.fingerprint()) == said
    assert describe_chances(copy)["known"] is True


def test_answers_are_as_likely_as_with_torch(run: Path, tmp_path: Path) -> None:
    sure_model(run, 0)
    birds = tiny_birds()
    made = Gallery.create(tmp_path / "g", OnnxModel(run, read_card(run)))
    names = [birds.class_names[label] for label in birds.train.labels]
    rows = [{"id": f"{n}", "image": birds.train.read(n), "label": names[n]} for n in range(24)]
    made.add(rows)
    verdicts = []
    for runtime in ("torch", "onnx"):
        opened = Gallery.open(tmp_path / "g", device="cpu", runtime=runtime)
        found = opened.search(birds.test.read(0), 5)
        assert found.verdict is not None
        assert found.verdict.sure is not None
        assert found[0].probability is not None
        verdicts.append(found.verdict)
    assert verdicts[0].label == verdicts[1].label
    assert verdicts[0].probability == pytest.approx(verdicts[1].probability, abs=2e-3)


def test_a_file_of_other_weights_is_refused(run: Path) -> None:
    write_weights(run, tiny_network(seed=5), epoch=4)
    with pytest.raises(FormatError, match=r"encoder\.onnx' does not belong.*phpq export"):
        load(run, device="cpu")
    (run / "general.onnx").write_bytes((run / "encoder.onnx").read_bytes())
    (run / WEIGHTS).unlink()
    with pytest.raises(FormatError, match=r"general\.onnx' does not belong"):
        load(run, device="cpu").embedding_dim("general")


def test_a_damaged_file_is_refused_before_it_computes(run: Path, pixels: NDArray[np.uint8]) -> None:
    path = run / "encoder.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    model = load(run, device="cpu")
    with pytest.raises(FormatError, match="checksum is wrong"):
        model.embed_pixels(pixels)


def test_what_is_missing_is_named_with_the_command_that_writes_it(run: Path) -> None:
    (run / "general.onnx").unlink()
    model = load(run, device="cpu", runtime="onnx")
    assert not model.has_general
    with pytest.raises(NotTrainedError, match=r"no general\.onnx.*phpq export"):
        model.embedding_dim("general")
    with pytest.raises(NotTrainedError, match=r"no encoder\.int8\.onnx.*phpq export .* --int8"):
        load(run, runtime="int8")
    with pytest.raises(ConfigError, match="'cuda' is for torch"):
        load(run, device="cuda", runtime="onnx")


def test_torch_is_at_hand_for_what_needs_slopes(model: OnnxModel, twin: Model) -> None:
    assert isinstance(model.with_torch, TorchModel)
    assert model.with_torch.fingerprint() == twin.fingerprint()


def test_codebooks_pass_through_texts() -> None:
    words = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    books = Codebooks(words, unit=False)
    again = onnx_model._codebooks(codebook_facts(books))
    np.testing.assert_array_equal(again.codewords, books.codewords)
    assert again.unit is False
    assert replace(again, codewords=words).fingerprint() == books.fingerprint()


@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("9999", 0), ("", 0), ("many", 0)])
def test_threads_are_those_that_the_process_may_use(
    asked: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert onnx_model._threads() == (threads or 3)
