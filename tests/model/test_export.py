from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from phpq.codes import Space
from phpq.data import decode_all
from phpq.data.batches import Views
from phpq.errors import ConfigError, FormatError, MissingExtraError
from phpq.model import TorchModel, export
from phpq.model.checkpoint import ModelCard
from phpq.model.export import OnnxEncoder, export_onnx, lacks_onnx, write_onnx
from phpq.model.onnx_file import read_facts, seal
from tiny_runs import SIDE, tiny_birds, tiny_config, tiny_network


def _model(*assignments: str) -> TorchModel:
    config = tiny_config(*assignments)
    card = ModelCard(config=config, class_names=("a", "b", "c", "d"), dataset="birds")
    return TorchModel(tiny_network(*assignments), card, device=torch.device("cpu"), epochs=0)


def _pixels(model: TorchModel) -> NDArray[np.uint8]:
    return decode_all(tiny_birds().train, model.card.config.data).pixels


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), marks=pytest.mark.rare),
        ("data.eval_size=24", "data.eval_crop=0.9", "data.eval_flip=true"),
    ],
)
def test_onnx_gives_the_same_codes_as_the_model(tmp_path: Path, changes: tuple[str, ...]) -> None:
    model = _model(*changes)
    path = export_onnx(model, tmp_path / "birds.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    pixels = _pixels(model)
    wanted = model.embed_pixels(pixels)
    for count in (1, 3, len(pixels)):
        codes, embedding = session.run(None, {"pixels": pixels[:count]})
        assert codes.dtype == np.uint8
        np.testing.assert_array_equal(codes, model.codebooks.encode(wanted)[:count])
        np.testing.assert_allclose(embedding, wanted[:count], atol=2e-4)


@pytest.mark.slow
def test_onnx_file_says_what_it_is_and_stands_alone(tmp_path: Path) -> None:
    model = _model()
    path = export_onnx(model, tmp_path / "birds.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["birds.onnx"]
    facts = {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}
    assert facts["bits"] == str(model.bits)
    assert facts["fingerprint"] == model.fingerprint()


@pytest.mark.slow
def test_a_transformer_has_its_positions_in_the_file_and_resamples_none(tmp_path: Path) -> None:
    # Built for the 32 pixels that encoding sees; timm's own size is 160.
    model = _model(
        *("model.backbone=test_vit", "model.blocks=2,5", "model.rho=1,1,1", "model.image_size=32"),
        *("model.pixel_mean=0.4,0.5,0.6", "model.pixel_std=0.2,0.3,0.4"),
    )
    path = export_onnx(model, tmp_path / "birds.onnx")
    assert "Resize" not in {node.op_type for node in onnx.load(str(path)).graph.node}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    pixels = _pixels(model)
    wanted = model.embed_pixels(pixels)
    for count in (1, len(pixels)):
        codes, embedding = session.run(None, {"pixels": pixels[:count]})
        np.testing.assert_array_equal(codes, model.codebooks.encode(wanted)[:count])
        np.testing.assert_allclose(embedding, wanted[:count], atol=2e-4)


@pytest.mark.parametrize(("size", "share"), [(32, 1.0), (48, 1.0), (20, 1.0), (24, 0.8)])
def test_resize_by_matrix_equals_the_encoding_view(size: int, share: float) -> None:
    config = tiny_config(f"data.eval_size={size}", f"data.eval_crop={share}").data
    encoder = OnnxEncoder(tiny_network(), config)
    pixels = torch.randint(0, 256, (3, 3, SIDE, SIDE), dtype=torch.uint8)
    seen: list[torch.Tensor] = []

    def embed(images: torch.Tensor, *, mirrored: bool = False) -> torch.Tensor:
        seen.append(images)
        return torch.zeros(3, 32)

    encoder.network.embed = embed  # type: ignore[method-assign]
    encoder(pixels)
    torch.testing.assert_close(seen[0], Views(config).encode(pixels), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_file_that_differs_from_the_model_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model()
    original = export._trace

    def tamper(encoder: OnnxEncoder, side: int, path: Path) -> None:
        original(encoder, side, path)
        content = onnx.load(str(path))
        for tensor in content.graph.initializer:
            if "codewords" in tensor.name:
                values = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(values[:, ::-1].copy(), tensor.name))
        onnx.save(content, str(path))

    monkeypatch.setattr(export, "_trace", tamper)
    with pytest.raises(FormatError, match="does not reproduce the model"):
        export_onnx(model, tmp_path / "birds.onnx")
    assert not list(tmp_path.iterdir())


def test_wrong_name_and_missing_folder_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.onnx"):
        export_onnx(_model(), tmp_path / "birds.pb")
    with pytest.raises(ConfigError, match="Make it first"):
        export_onnx(_model(), tmp_path / "nowhere" / "birds.onnx")


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"phpq\[train\]"):
        export_onnx(_model(), tmp_path / "birds.onnx")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that would have been exported: in their place are some bytes with the facts."""
    names = []

    def stand_in(model: TorchModel, path: Path, *, space: Space = "learned") -> Path:
        names.append(path.name)
        path.write_bytes(b"\x08\x0a")
        seal(path, {"fingerprint": model.fingerprint()})
        return path

    monkeypatch.setattr(export, "export_onnx", stand_in)
    return names


def test_a_folder_gets_its_files_once_and_copies_bring_theirs(
    tmp_path: Path, exported: list[str]
) -> None:
    model = _model("training.onnx=true")
    first = model.save(tmp_path / "first")
    assert exported == ["encoder.onnx"]
    model.folder = first
    assert read_facts(model.save(tmp_path / "second") / "encoder.onnx")
    assert write_onnx(model, first) == ""
    assert exported == ["encoder.onnx"]  # copied, and found to be there
    (first / "encoder.onnx").write_bytes(b"cut off by a full disk")
    write_onnx(model, first)
    other = tiny_network(seed=3)
    card = ModelCard(config=model.card.config, class_names=model.class_names, dataset="birds")
    TorchModel(other, card, device=torch.device("cpu"), epochs=0, folder=first).save(first)
    assert exported == ["encoder.onnx"] * 3  # damaged; then of other weights
    _model("training.onnx=false").save(tmp_path / "third")
    assert not (tmp_path / "third" / "encoder.onnx").exists()


def test_a_folder_without_its_files_lacks_them_where_they_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tiny_config("training.onnx=true")
    assert lacks_onnx(tmp_path, wanted)
    assert not lacks_onnx(tmp_path, tiny_config("training.onnx=false"))
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert not lacks_onnx(tmp_path, wanted)


def test_missing_packages_and_networks_without_onnx_are_told_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    model = _model("training.onnx=true")
    assert "phpq[train]" in write_onnx(model, tmp_path)
    folder = model.save(tmp_path / "run")  # is saved all the same
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "weights.safetensors"]
