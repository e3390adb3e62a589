from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmark_layouts import write_cub200, write_dogs120
from made_up_grids import BIRDS
from phpq.errors import ConfigError
from phpq.reproduce.rows import rows_of
from phpq.reproduce.subject import identify_weights, open_subject, recall_subject


def test_drawn_birds_get_a_small_network_of_their_size() -> None:
    subject, dataset = open_subject(BIRDS)
    assert (subject.name, subject.classes, subject.gallery, subject.queries) == (
        "plumage",
        4,
        24,
        8,
    )
    assert subject.base.data.store_size == subject.base.data.eval_size == 32
    assert subject.base.model.backbone == "test_resnet"
    assert subject.weights == subject.base.model.weights == "none"
    assert subject.pixel_bytes == 32 * 3 * 32 * 32
    assert len(dataset.train) == 24


def test_plain_plumage_is_small() -> None:
    assert open_subject("plumage")[0].gallery <= 200


def test_photographs_keep_the_defaults(tmp_path: Path) -> None:
    subject, _ = open_subject(write_cub200(tmp_path))
    assert subject.name == "cub200"
    assert subject.base.loss.tau == 0.5
    assert subject.base.model.weights == "hub"
    assert subject.drawn == ""
    dogs, _ = open_subject(write_dogs120(tmp_path / "dogs"))
    assert (dogs.name, dogs.base.loss.tau) == ("dogs120", 0.25)


def test_a_data_set_is_known_by_content_not_by_place(tmp_path: Path) -> None:
    here, there = write_cub200(tmp_path / "a"), tmp_path / "b" / "c"
    shutil.copytree(here, there)
    weights = tmp_path / "w.bin"
    weights.write_bytes(b"weights")
    (tmp_path / "b" / "w.bin").write_bytes(b"weights")
    first = open_subject(here, weights=str(weights))[0]
    second = open_subject(there, weights=str(tmp_path / "b" / "w.bin"))[0]
    assert first.facts() == second.facts()
    assert str(tmp_path) not in str(first.facts())
    other = open_subject(BIRDS)[0], open_subject(BIRDS + ",seed=1")[0]
    assert other[0].fingerprint != other[1].fingerprint


def test_settings_and_epochs_come_last() -> None:
    subject, _ = open_subject(BIRDS, settings=["training.batch_size=4"], epochs=3)
    assert subject.base.training.batch_size == 4
    assert subject.base.training.epochs == 3
    assert subject.settings == ("training.batch_size=4", "training.epochs=3")


def test_a_subject_is_recalled_without_images() -> None:
    subject, _ = open_subject(BIRDS, settings=["loss.tau=1"], epochs=3)
    again = recall_subject(subject.facts(), settings=["loss.tau=1"], epochs=3)
    assert again == subject


def test_a_recalled_subject_names_its_rows_as_before(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"weights")
    subject, _ = open_subject(BIRDS, weights=str(file))
    again = recall_subject(subject.facts())
    titles = [[row.title for row in rows_of("table1", s.base)] for s in (subject, again)]
    assert titles[0] == titles[1]
    assert "PQ, ImageNet features" in titles[1]


def test_weights_by_content(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"one")
    one = identify_weights(str(file))
    file.write_bytes(b"two")
    assert one.startswith("net.safetensors:")
    assert identify_weights(str(file)) != one
    assert identify_weights("hub") == "hub"
    with pytest.raises(ConfigError, match=r"Cannot read the weights .*none\.bin.*--weights"):
        identify_weights(str(tmp_path / "none.bin"))
