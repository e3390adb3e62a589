from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from phpq.data import decode_all
from phpq.errors import ConfigError, MissingExtraError
from phpq.model import TorchModel, load
from phpq.model.checkpoint import ModelCard
from phpq.model.int8 import export_int8
from phpq.model.interface import INT8
from phpq.model.onnx_file import read_facts
from tiny_runs import tiny_birds, tiny_config, tiny_network


def _model() -> TorchModel:
    birds = tiny_birds()
    card = ModelCard(config=tiny_config(), class_names=birds.class_names, dataset="plumage")
    return TorchModel(tiny_network(), card, device=torch.device("cpu"), epochs=0)


@pytest.mark.slow
def test_small_convolutions_embed_nearly_as_the_model(tmp_path: Path) -> None:
    model, birds = _model(), tiny_birds()
    folder = model.save(tmp_path / "run")
    export_int8(model, birds.train, folder / INT8)
    assert read_facts(folder / INT8)["precision"] == "int8"
    small = load(folder, runtime="int8")
    assert small.fingerprint() == model.fingerprint()
    pixels = decode_all(birds.test, model.card.config.data).pixels
    found, wanted = small.embed_pixels(pixels), model.embed_pixels(pixels)
    assert not np.array_equal(found, wanted)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    assert ((found * wanted).sum(axis=1) / lengths).min() > 0.9
    np.testing.assert_array_equal(small.codebooks.codewords, model.codebooks.codewords)


def test_what_it_cannot_work_with_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--images"):
        export_int8(_model(), tiny_birds().train.subset([]), tmp_path / INT8)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="Writing ONNX files"):
        export_int8(_model(), tiny_birds().train, tmp_path / INT8)
    assert not list(tmp_path.iterdir())
