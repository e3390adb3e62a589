"""Training on cached features equals training without a cache; a damaged file is made anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import phpq.training.features
from phpq.config import RunConfig
from phpq.data import Dataset, decode_square, open_dataset, write_plumage
from phpq.data.batches import Views, draw_augmentations
from phpq.errors import ConfigError, DataError
from phpq.evaluation.history import METRICS
from phpq.model import build_method, load
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.weights import read_tensors
from phpq.training import Reporter, Trainer, train_run
from phpq.training.distributed import Group
from phpq.training.features import (
    FeatureViews,
    MappedFeatures,
    count_uncached,
    load_features,
    select_features,
)
from tiny_runs import CLASSES, SIDE, tiny_birds, tiny_config

CPU = torch.device("cpu")
NOISY = ("training.feature_noise=0.5", "training.epochs=2")


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Drawn birds as files: only these are kept in a cache."""
    folder = tmp_path_factory.mktemp("birds")
    write_plumage(folder, tiny_birds())
    return open_dataset(str(folder))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phpq.training.features, "BLOCK", 10)  # 24 images: three files
    monkeypatch.setattr(phpq.training.features, "BATCH", 4)
    monkeypatch.setattr("phpq.training.run.find_spec", lambda _: None)  # no pictures


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each batch that went through the frozen part."""
    counts: list[int] = []
    normal = FrozenPart.features

    def counted(self: FrozenPart, images: torch.Tensor) -> torch.Tensor:
        if images.ndim == 4:
            counts.append(len(images))
        return normal(self, images)

    monkeypatch.setattr(FrozenPart, "features", counted)
    return counts


def frozen_part(config: RunConfig) -> FrozenPart:
    torch.manual_seed(0)
    return freeze_network(build_method(config, CLASSES), config)


def results(folder: Path) -> tuple[list[dict[str, object]], dict[str, torch.Tensor]]:
    rows = [json.loads(line) for line in (folder / METRICS).read_text("utf-8").splitlines()]
    for row in rows:
        del row["seconds"], row["images_per_second"]
    tensors = read_tensors(folder / "weights.safetensors")
    general = read_tensors(folder / "general.safetensors")
    return rows, tensors | {f"general.{k}": v for k, v in general.items()}


def assert_same(folder: Path, other: Path) -> None:
    (rows, tensors), (others, other_tensors) = results(folder), results(other)
    assert rows == others
    assert tensors.keys() == other_tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(value, other_tensors[name]), name


@pytest.mark.parametrize("part", ["head", "last"])
def test_training_from_a_cache_equals_training_without(
    birds: Dataset, tmp_path: Path, computed: list[int], part: str
) -> None:
    config = tiny_config(f"training.trainable={part}", *NOISY)
    train_run(birds, config, tmp_path / "plain", device="cpu")
    assert sum(computed) == 24 + 8
    for run in ("filling", "filled"):
        computed.clear()
        train_run(birds, config, tmp_path / run, device="cpu", cache=tmp_path / "cache")
        assert sum(computed) == (32 if run == "filling" else 0)
        assert_same(tmp_path / "plain", tmp_path / run)


@pytest.mark.parametrize("part", ["head", "last"])
def test_the_result_is_an_ordinary_model(birds: Dataset, tmp_path: Path, part: str) -> None:
    config = tiny_config(f"training.trainable={part}", "training.epochs=2")
    train_run(birds, config, tmp_path / "run", device="cpu")
    model = load(tmp_path / "run", device="cpu", runtime="torch")
    rows, tensors = results(tmp_path / "run")
    codes = model.encode(birds.train)  # from pixels, all the way
    assert abs(len(np.unique(codes, axis=0)) - int(str(rows[-1]["gallery_distinct_codes"]))) <= 2
    assert model.embed(birds.test, space="general").shape == (8, model.general.dim)
    # What was frozen is what it was before, and the same in both embeddings.
    backbone = model.network.backbone
    torch.manual_seed(0)
    before = build_method(config, CLASSES).backbone.state_dict()
    for name, value in backbone.state_dict().items():
        learned = part == "last" and backbone.in_last_stage(name)
        kept = torch.allclose(value.float(), before[name].float(), rtol=1e-3, atol=1e-6)
        assert kept != learned or "num_batches" in name or not value.is_floating_point(), name
        if not learned:
            assert torch.equal(value, tensors[f"general.backbone.{name}"].to(value.dtype)), name


def test_learned_views_are_boxes_of_the_map_or_noisy_features() -> None:
    generator = np.random.default_rng(0)
    drawn = torch.from_numpy(draw_augmentations(generator, 4, tiny_config().data))
    config = tiny_config("training.trainable=last", "data.crop_size=16")
    frozen = frozen_part(config)
    features = frozen.features(torch.rand(4, 3, SIDE, SIDE))
    views = FeatureViews(config.data, frozen, None)
    assert views.train(features, drawn).shape == (4, frozen.feature_dims[1])
    assert frozen.feature_dims[1] < frozen.feature_dims[0]
    # The whole box, not mirrored, in its own size is the map itself.
    whole = torch.tensor([[0.5, 0.5, 1, 1, 1, 1, 1, 1.0]]).expand(4, -1)
    same = frozen_part(tiny_config("training.trainable=last"))
    torch.testing.assert_close(
        FeatureViews(config.data, same, None).train(features, whole),
        features.float(),
        atol=1e-3,
        rtol=1e-3,
    )
    frozen = frozen_part(tiny_config("training.trainable=head"))
    features = frozen.features(torch.rand(4, 3, SIDE, SIDE))
    assert torch.equal(
        FeatureViews(config.data, frozen, None).train(features, drawn), features.float()
    )
    deviation = torch.zeros(features.shape[1])
    deviation[0] = 3.0
    noisy = FeatureViews(config.data, frozen, deviation).train(features, drawn)
    assert torch.equal(noisy[:, 1:], features[:, 1:].float())
    assert (noisy[:, 0] != features[:, 0]).all()


class Kill(BaseException):
    """Stands for the end of the process."""


def test_a_kill_costs_a_block_and_damage_no_more_than_that(
    birds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    config, cache = tiny_config("training.trainable=head"), tmp_path / "cache"
    frozen = frozen_part(config)
    counted = FrozenPart.features

    def killed(self: FrozenPart, images: torch.Tensor) -> torch.Tensor:
        if sum(computed) >= 14:
            raise Kill
        return counted(self, images)

    monkeypatch.setattr(FrozenPart, "features", killed)
    with pytest.raises(Kill):
        load_features(birds, config, frozen, reporter=Reporter(), cache=cache)
    assert len(list(cache.glob("*.npy"))) == 1
    monkeypatch.setattr(FrozenPart, "features", counted)
    computed.clear()
    pixels = load_features(birds, config, frozen, reporter=Reporter(), cache=cache)
    assert sum(computed) == 32 - 10
    features = pixels.train_pixels[:].copy()
    damaged = sorted(cache.glob("*train*-head-10.*.npy"))[0]
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 64
    damaged.write_bytes(content)
    computed.clear()
    again = load_features(birds, config, frozen, reporter=Reporter(), cache=cache)
    assert sum(computed) == 10
    np.testing.assert_array_equal(again.train_pixels[:], features)
    # Other weights are other features.
    torch.manual_seed(1)
    other = freeze_network(build_method(config, CLASSES), config)
    computed.clear()
    load_features(birds, config, other, reporter=Reporter(), cache=cache)
    assert sum(computed) == 32


def test_a_full_disk_is_a_clear_error(
    birds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    config = tiny_config("training.trainable=head")
    with pytest.raises(DataError, match=r"No space left on device \(0 MB are needed\). Make room"):
        load_features(birds, config, frozen_part(config), reporter=Reporter(), cache=tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_bad_images_are_left_out_and_remembered(tmp_path: Path) -> None:
    write_plumage(tmp_path / "birds", tiny_birds())
    birds = open_dataset(str(tmp_path / "birds"))
    path = birds.train.path(12)
    assert path is not None
    path.write_bytes(b"no picture")
    config = tiny_config("training.trainable=head")
    frozen = frozen_part(config)
    for _ in range(2):
        found = load_features(birds, config, frozen, reporter=Reporter(), cache=tmp_path / "cache")
        assert len(found.train) == len(found.train_pixels) == 23
        assert birds.train.ids[12] not in found.train.ids
    # In the order of the images that are left.
    expected = frozen.features(
        Views(config.data).encode(torch.from_numpy(squares(birds, config, 13)))
    )
    np.testing.assert_allclose(found.train_pixels[12:13], expected, atol=2e-3)


def squares(birds: Dataset, config: RunConfig, row: int) -> np.ndarray:
    path = birds.train.path(row)
    assert path is not None
    return decode_square(path, config.data)[None]


def test_features_are_found_across_blocks() -> None:
    blocks = [np.full((n, 2), i, np.float16) for i, n in enumerate((3, 1, 4))]
    features = MappedFeatures(blocks, CPU)
    assert len(features) == 8
    assert features[np.array([7, 0, 3, 2])][:, 0].tolist() == [2, 0, 1, 0]
    assert features[2:5][:, 0].tolist() == [0, 1, 2]
    [batch] = features.batches(np.array([[0, 3, 4]]))
    assert batch[:, 0].tolist() == [0, 1, 2]


def test_several_processes_are_refused() -> None:
    config = tiny_config("training.trainable=head")
    with pytest.raises(ConfigError, match="one process"):
        Trainer(tiny_birds(), config, device=CPU, reporter=Reporter(), group=Group(size=2))


def test_cached_features_are_not_computed_again_and_some_can_be_selected(
    birds: Dataset, tmp_path: Path
) -> None:
    config = tiny_config("training.trainable=head")
    frozen = freeze_network(build_method(config, CLASSES), config)
    assert count_uncached(birds, config, frozen, tmp_path) == len(birds.train) + len(birds.test)
    pixels = load_features(birds, config, frozen, reporter=Reporter(), cache=tmp_path)
    assert count_uncached(birds, config, frozen, tmp_path) == 0
    assert count_uncached(birds, config, frozen, None) == len(birds.train) + len(birds.test)
    train, test = (np.flatnonzero(part.labels < 2) for part in (birds.train, birds.test))
    some = select_features(pixels, config, frozen, train=train, test=test, classes=2)
    assert some.train.class_names == birds.class_names[:2]
    assert some.train.ids == tuple(birds.train.ids[row] for row in train)
    np.testing.assert_array_equal(some.train_pixels[:], pixels.train_pixels[train])
    np.testing.assert_array_equal(some.test_pixels[:], pixels.test_pixels[test])
