"""A model folder: what is saved comes back to the bit, and damage is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from phpq.config import CONFIG_FILE
from phpq.errors import FormatError, NotTrainedError
from phpq.model import Network
from phpq.model.checkpoint import (
    CHANCES,
    WEIGHTS,
    ModelCard,
    copy_chances,
    describe_chances,
    read_card,
    read_chances,
    read_network,
    stored_fingerprint,
    write_card,
    write_weights,
)
from sure_galleries import sure_model
from tiny_runs import CLASSES, SIDE, tiny_config, tiny_network


def make_card(*assignments: str) -> ModelCard:
    names = tuple(f"bird {i} é" for i in range(CLASSES))
    return ModelCard(config=tiny_config(*assignments), class_names=names, dataset="birds/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "birds"
    write_card(path, make_card())
    write_weights(path, tiny_network(), epoch=7)
    return path


def change_card(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    content.update(changes)
    (folder / CONFIG_FILE).write_text(json.dumps(content), "utf-8")


def test_the_card_comes_back_whole(tmp_path: Path) -> None:
    card = make_card("model.rho=3.0,2.0,inf", "quantizer.query_norm=raw", "training.seed=9")
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    content = json.loads((tmp_path / CONFIG_FILE).read_text("utf-8"))
    assert content["bits"] == 12
    assert content["config"]["training"]["seed"] == 9


def test_a_round_trip_changes_no_bit_of_the_embeddings(folder: Path) -> None:
    network = tiny_network().eval()
    loaded, epochs = read_network(folder, read_card(folder))
    assert epochs == 7
    assert not loaded.training
    pixels = torch.rand(3, 3, SIDE, SIDE)
    with torch.no_grad():
        assert torch.equal(network.embed(pixels), loaded.embed(pixels))


def test_running_statistics_are_kept(folder: Path) -> None:
    network = tiny_network().train()
    with torch.no_grad():
        network.embed(torch.rand(8, 3, SIDE, SIDE))
    write_weights(folder, network, epoch=8)
    loaded, _ = read_network(folder, read_card(folder))
    for key, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key


def test_the_weights_file_of_the_backbone_is_not_needed_again(folder: Path) -> None:
    card = read_card(folder)
    model = dataclasses.replace(card.config.model, weights="long/gone.pth")
    moved = dataclasses.replace(card, config=dataclasses.replace(card.config, model=model))
    assert isinstance(read_network(folder, moved)[0], Network)


def test_a_folder_without_a_card_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"is not a model folder: it has no config\.json"):
        read_card(tmp_path)


def test_a_run_before_its_first_checkpoint_is_not_ready(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(NotTrainedError, match=r"has no weights\.safetensors.*--resume"):
        read_network(folder, read_card(folder))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format_version": 1}', "\x00\xff"])
def test_a_damaged_card_is_named(folder: Path, text: str) -> None:
    (folder / CONFIG_FILE).write_text(text, "utf-8")
    with pytest.raises(FormatError, match=r"config\.json' is damaged: .*Restore it"):
        read_card(folder)


def test_settings_that_do_not_exist_are_damage(folder: Path) -> None:
    change_card(folder, config={"model": {"backbonee": "resnet18"}})
    with pytest.raises(FormatError, match=r"is damaged: Unknown option 'model\.backbonee'"):
        read_card(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_version_is_refused(folder: Path, version: object) -> None:
    change_card(folder, format_version=version)
    with pytest.raises(FormatError, match=rf"format version {version!r}; this phpq reads 1"):
        read_card(folder)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_truncated_weights_are_refused(folder: Path, keep: float) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FormatError, match=r"weights\.safetensors' is damaged"):
        read_network(folder, read_card(folder))


@pytest.mark.parametrize(
    "other", ["model.embedding_dim=64", "quantizer.codebook_size=16", "model.backbone=test_vit"]
)
def test_a_mismatched_pair_is_refused(folder: Path, other: str) -> None:
    write_card(folder, make_card(other))
    with pytest.raises(FormatError, match=r"does not fit the config beside it: \d+ tensors"):
        read_network(folder, read_card(folder))


def test_other_classes_are_a_mismatch_too(folder: Path) -> None:
    change_card(folder, class_names=["one", "two"])
    with pytest.raises(FormatError, match=r"first: classifier\.bias"):
        read_network(folder, read_card(folder))


def test_a_crash_while_writing_the_card_keeps_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_card(folder, make_card("training.seed=5"))
    monkeypatch.undo()
    assert read_card(folder) == make_card()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG_FILE, WEIGHTS]


def test_chances_come_back_and_are_told(folder: Path) -> None:
    mine = stored_fingerprint(folder / WEIGHTS)
    assert read_chances(folder, mine) is None
    assert describe_chances(folder)["known"] is False
    assert "phpq train" in describe_chances(folder)["why_not"]
    said = sure_model(folder, 0)
    assert read_chances(folder, mine) == said
    told = describe_chances(folder)
    assert (told["known"], told["by"], told["images"], told["named"]) == (True, "model", 100, 0.5)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sharpness": 1, "chances": 2}'])
def test_damaged_chances_are_named(folder: Path, text: str) -> None:
    (folder / CHANCES).write_text(text)
    with pytest.raises(FormatError, match=r"chances\.json' is damaged.*or delete it"):
        read_chances(folder, "any")


def test_chances_go_with_their_weights_alone(folder: Path, tmp_path: Path) -> None:
    said, mine = sure_model(folder, 0), stored_fingerprint(folder / WEIGHTS)
    with pytest.raises(FormatError, match="does not belong to the weights beside it"):
        read_chances(folder, "others")
    copy_chances(folder, tmp_path, mine)
    assert read_chances(tmp_path, mine) == said
    copy_chances(folder, tmp_path, "others")  # what was there is of no use any more
    assert not (tmp_path / CHANCES).exists()
    copy_chances(None, tmp_path, mine)
    assert not (tmp_path / CHANCES).exists()
