"""The general embedding: formulas by plain loops, weights mixed by hand, files that come back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from phpq.config import RunConfig
from phpq.data import decode_all
from phpq.errors import DivergedError, FormatError, NotTrainedError, UnknownNameError
from phpq.model import TorchModel, build_method, general, load
from phpq.model.backbone import build_backbone
from phpq.model.checkpoint import GENERAL, ModelCard
from phpq.model.general import (
    PLAIN,
    GeneralEmbedding,
    fit_general,
    frozen_features,
    read_general,
    whiten,
    write_general,
)
from phpq.model.method import TrainingSet
from phpq.model.retrieval import apply_to_pixels
from phpq.model.weights import read_safetensors, read_tensors
from tiny_runs import CLASSES, tiny_birds, tiny_config, tiny_network

CPU = torch.device("cpu")
BIRDS = tiny_birds()


def pixels(config: RunConfig) -> NDArray[np.uint8]:
    return decode_all(BIRDS.train, config.data, workers=1).pixels


def training_set(config: RunConfig) -> TrainingSet:
    def apply(function: Callable[[Tensor], Tensor]) -> Tensor:
        return apply_to_pixels(function, pixels(config), config.data, device=CPU)

    return TrainingSet(
        labels=torch.from_numpy(BIRDS.train.labels.copy()),
        num_classes=CLASSES,
        seed=0,
        epochs=1,
        embed=lambda: torch.empty(0),
        apply=apply,
    )


def fitted(*assignments: str) -> tuple[RunConfig, GeneralEmbedding]:
    config = tiny_config(*assignments)
    network = tiny_network(*assignments, seed=1)
    return config, fit_general(network, config, training_set(config))


def test_a_transformer_is_described_by_its_last_map_and_its_class_token() -> None:
    tokens = ("model.backbone=test_vit", "model.blocks=2,5", "model.rho=1,1,1")
    trunk = tiny_network(*tokens).eval().backbone
    made = GeneralEmbedding(trunk)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        _, last, token = trunk(images)
        features = made.describe(images)
    assert features.shape == (2, 2 * 64) == (2, len(made.mean))
    places = last.flatten(2)
    mean = torch.stack([places[:, :, i] for i in range(4)]).sum(0) / 4
    parts = (token[:, :, 0, 0], mean)
    expected = torch.cat([part / part.norm(dim=1, keepdim=True) for part in parts], 1)
    torch.testing.assert_close(features, expected)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a general embedding."""
    config, made = fitted()
    card = ModelCard(config=config, class_names=BIRDS.class_names, dataset="birds")
    model = TorchModel(tiny_network(seed=1), card, device=CPU, epochs=2)
    assert not model.has_general
    model.general = made
    return model.save(tmp_path_factory.mktemp("model"))


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / float(np.sqrt((vector**2).sum()))


def plain_pooling(level: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted mean of fourth powers of a map (C, h, w), and its fourth root."""
    total, (_, height, width) = 0.0, level.shape
    means = np.zeros(len(level))
    for row in range(height):
        for column in range(width):
            down, right = (
                (at + 0.5) / side * 2 - 1 for at, side in ((row, height), (column, width))
            )
            weight = np.exp(-(down**2 + right**2) / (2 * 0.65**2))
            means += weight * np.maximum(level[:, row, column], 1e-6) ** 4
            total += weight
    return (means / total) ** 0.25


@torch.no_grad()
def plain_embedding(made: GeneralEmbedding, image: Tensor) -> NDArray[np.float64]:
    """Return the embedding of one image (3, H, W) by loops over channels."""
    assert made.head is not None
    views = []
    for view in (image, image.flip(-1)):
        pyramid = made.backbone(view[None])
        *_, before, last = (level[0].double().numpy() for level in pyramid)
        features = np.concatenate([unit(plain_pooling(level)) for level in (last, before)])
        whitened = (features - made.mean.double().numpy()) @ made.projection.double().numpy()
        learned = made.head.norm(made.head.transform(made.head.pooling(pyramid)))[0]
        along = unit(learned.double().numpy()) @ made.head.axes.double().numpy()
        views.append(unit(np.concatenate([unit(whitened), 0.3 * along])))
    return unit(views[0] + views[1])


def test_the_embedding_is_what_plain_loops_give() -> None:
    config, made = fitted()
    channels = made.backbone.channels
    assert made.backbone.levels == config.model.levels == 3
    assert made.projection.shape == (sum(channels[-2:]),) * 2
    assert made.dim == sum(channels[-2:]) + 32  # all axes of so short an embedding
    images = torch.from_numpy(pixels(config)[:3]).float() / 255
    with torch.no_grad():
        got = made(images)
    assert got.dtype == torch.float32
    expected = np.stack([plain_embedding(made, image) for image in images])
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-4)


def test_the_head_is_that_of_the_network_along_the_principal_axes_of_what_it_learned() -> None:
    config, made = fitted("model.weights=none")  # the trunk is that of the network, rounded
    network = tiny_network(seed=1).eval()
    assert made.head is not None
    images = torch.from_numpy(pixels(config)).float() / 255
    with torch.no_grad():
        found = made.head.embed(made.backbone(images))
        expected = torch.nn.functional.normalize(network.embed(images), dim=1)
        kept = made.head(made.backbone(images))
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)
    values = torch.linalg.eigvalsh(torch.cov(found.T.double(), correction=0)).flip(0)
    variances = kept.double().var(0, correction=0)
    torch.testing.assert_close(variances, values.clamp(min=0), rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("assignment", ["model.general_learned=0", "method.name=orthohash"])
def test_no_head_without_its_weight_or_for_another_method(assignment: str, tmp_path: Path) -> None:
    config = tiny_config(assignment, "quantizer.codebook_size=256")
    made = fit_general(build_method(config, CLASSES), config, training_set(config))
    assert made.head is None
    assert made.backbone.levels == 2
    assert made.dim == sum(made.backbone.channels)
    write_general(tmp_path, made)
    assert read_general(tmp_path, config.model).head is None


def test_a_single_level_is_used_alone() -> None:
    _, made = fitted("model.levels=1", "model.rho=2.0")
    assert made.mean.shape == (made.backbone.channels[0],)
    with torch.no_grad():
        lengths = made(torch.rand(2, 3, 32, 32)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(2))


@pytest.mark.parametrize("backbone", ["test_vit", "test_convnext"])
def test_other_families_have_one_too(backbone: str) -> None:
    _, made = fitted(f"model.backbone={backbone}")
    with torch.no_grad():
        got = made(torch.rand(3, 3, 32, 32))
    torch.testing.assert_close(got.norm(dim=1), torch.ones(3))
    assert float(got.std(0).max()) > 1e-3  # images differ


def clouds(dims: int = 5, classes: int = 4, each: int = 30) -> tuple[Tensor, Tensor]:
    """Return features (N, F) of classes that vary much in some directions, and labels."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(dims, dims, generator=generator)
    centres = 3 * torch.randn(classes, dims, generator=generator)
    labels = torch.arange(classes).repeat_interleave(each)
    noise = torch.randn(len(labels), dims, generator=generator)
    return centres[labels] + noise @ spread, labels


def plain_covariance(features: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return the covariance within classes of two images or more, pair of features by pair."""
    rows, owners = features.double().numpy(), labels.numpy()
    dims = rows.shape[1]
    total, count = np.zeros((dims, dims)), 0
    for label in sorted(set(owners.tolist())):
        members = rows[owners == label]
        if len(members) < 2:
            continue
        centre = members.mean(0)
        for row in members:
            count += 1
            for i in range(dims):
                for j in range(dims):
                    total[i, j] += (row[i] - centre[i]) * (row[j] - centre[j])
    return total / count


def test_whitening_is_the_inverse_root_and_then_the_leading_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(general, "LARGEST_DIM", 3)
    monkeypatch.setattr(general, "_BLOCK", 7)  # several blocks, the last one smaller
    features, labels = clouds()
    mean, projection = whiten(features, labels)
    assert projection.shape == (5, 3)
    assert mean.dtype == projection.dtype == torch.float32
    centred = features.double().numpy() - features.double().numpy().mean(0)
    covariance = plain_covariance(features, labels)
    covariance += 0.3 * np.trace(covariance) / 5 * np.eye(5)
    values, vectors = np.linalg.eigh(covariance)
    whitened = centred @ (vectors / np.sqrt(values)) @ vectors.T
    leading = np.linalg.svd(whitened, full_matrices=False)[2][:3]
    expected = whitened @ leading.T  # each direction up to its sign
    got = (features - mean).double().numpy() @ projection.double().numpy()
    np.testing.assert_allclose(np.abs(got), np.abs(expected), atol=1e-4)


def test_whitened_classes_vary_alike_in_all_directions() -> None:
    features, labels = clouds()
    before = plain_covariance(features, labels)
    assert np.linalg.cond(before) > 10
    mean, projection = whiten(features, labels, shrink=1e-9)
    after = plain_covariance((features - mean) @ projection, labels)
    np.testing.assert_allclose(after, np.eye(5), atol=1e-3)


def test_classes_of_one_image_say_nothing_unless_there_are_no_others() -> None:
    features, labels = clouds()
    outlier = torch.full((1, 5), 100.0)
    more = torch.cat([features, outlier]), torch.cat([labels, torch.tensor([9])])
    _, projection = whiten(*more, shrink=1e-9)
    within = plain_covariance(features @ projection, labels)
    np.testing.assert_allclose(within, np.eye(5), atol=1e-3)
    alone = torch.arange(len(features))
    mean, projection = whiten(features, alone, shrink=1e-9)
    total = torch.cov(((features - mean) @ projection).double().T, correction=0)
    torch.testing.assert_close(total, torch.eye(5, dtype=torch.float64), atol=1e-3, rtol=0)


def test_features_that_never_vary_are_kept_as_they_are() -> None:
    mean, projection = whiten(torch.ones(6, 3), torch.arange(6) % 2)
    assert torch.equal(mean, torch.ones(3))
    torch.testing.assert_close(projection.T @ projection, torch.eye(3))


def test_features_that_are_no_numbers_are_refused() -> None:
    features, labels = clouds()
    features[3, 2] = torch.nan
    with pytest.raises(DivergedError, match="general embedding cannot be fitted: 'features' has 1"):
        whiten(features, labels)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_trunk_lies_between_pretrained_and_learned_weights(
    tmp_path: Path, share: float
) -> None:
    torch.manual_seed(7)
    plain = tiny_config()
    start = build_backbone(plain.model).pyramid.state_dict()
    start = {
        key: value + 0.1 * torch.rand(value.shape) if value.is_floating_point() else value + 5
        for key, value in start.items()
    }
    save_file(start, tmp_path / "start.safetensors")
    model = dataclasses.replace(
        plain.model, weights=str(tmp_path / "start.safetensors"), general_share=share
    )
    network = tiny_network(seed=1)
    config = dataclasses.replace(plain, model=model)
    trunk = fit_general(network, config, training_set(config)).backbone.pyramid.state_dict()
    learned = network.backbone.pyramid.state_dict()
    assert trunk.keys() == learned.keys() == start.keys()
    assert any("running_var" in key for key in trunk)
    for key, value in trunk.items():
        expected = (1 - share) * learned[key] + share * start[key]
        if not value.is_floating_point():
            expected = learned[key]
        # Kernels are kept in half precision.
        torch.testing.assert_close(value, expected.to(value.dtype), rtol=1e-3, atol=1e-6, msg=key)


def test_without_pretrained_weights_the_trunk_is_the_learned_one() -> None:
    _, made = fitted("model.general_share=0.9")
    for key, value in tiny_network(seed=1).backbone.state_dict().items():
        torch.testing.assert_close(made.backbone.state_dict()[key], value, rtol=1e-3, atol=1e-6)


def test_what_is_loaded_is_what_was_used(saved: Path) -> None:
    config, made = fitted()
    model = load(saved, device="cpu")
    assert "general" not in vars(model)  # read when it is asked for
    squares = pixels(config)
    got = model.embed_pixels(squares, space="general")
    with torch.no_grad():
        expected = made(torch.from_numpy(squares).float() / 255).numpy()
    np.testing.assert_array_equal(got, expected)
    assert got.shape == (24, model.embedding_dim("general"))
    assert model.embedding_dim() == 32
    files = read_tensors(saved / GENERAL)
    assert files["projection"].dtype == torch.float32
    kernels = [value for key, value in files.items() if "conv" in key and value.ndim == 4]
    assert kernels
    assert all(value.dtype == torch.float16 for value in kernels)
    assert files["head.transform.weight"].dtype == torch.float16


def test_saving_carries_it_on_and_fingerprints_know_it(saved: Path, tmp_path: Path) -> None:
    first = load(saved, device="cpu")
    second = load(first.save(tmp_path / "copy"), device="cpu", runtime="torch")
    written = [read_safetensors(folder / GENERAL)[1] for folder in (tmp_path / "copy", saved)]
    assert written[0] == written[1]  # the hash of its tensors is one of the facts
    assert second.general_fingerprint() == first.general_fingerprint()
    assert second.fingerprint() == first.fingerprint() != first.general_fingerprint()
    second.general.projection[0, 0] += 1
    assert second.general_fingerprint() != first.general_fingerprint()


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_every_way_in_gives_unit_vectors_whatever_the_batch(saved: Path, batch_size: int) -> None:
    model = load(saved, device="cpu")
    expected = model.embed_pixels(pixels(model.card.config), space="general")
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    got = model.embed(BIRDS.train, batch_size=batch_size, space="general")
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert model.embed([], space="general").shape == (0, expected.shape[1])
    nothing = np.empty((0, 3, 32, 32), np.uint8)
    assert model.embed_pixels(nothing, space="general").shape == (0, expected.shape[1])


def test_an_image_and_its_mirror_are_the_same(saved: Path) -> None:
    model = load(saved, device="cpu")
    squares = pixels(model.card.config)
    mirrored = np.ascontiguousarray(squares[..., ::-1])
    one, other = (model.embed_pixels(p, space="general") for p in (squares, mirrored))
    np.testing.assert_allclose(one, other, atol=1e-4)
    learned, turned = (model.embed_pixels(p) for p in (squares, mirrored))
    assert np.abs(learned - turned).max() > 1e-2


def test_a_folder_of_0_1_0_says_how_to_get_one(saved: Path, tmp_path: Path) -> None:
    old = load(saved, device="cpu").save(tmp_path / "old")
    (old / GENERAL).unlink()
    model = load(old, device="cpu")
    assert not model.has_general
    assert len(model.embed(BIRDS.train)) == 24
    message = rf"no general embedding.*phpq train --resume {re.escape(str(old))}"
    with pytest.raises(NotTrainedError, match=message):
        model.embed(BIRDS.train, space="general")
    with pytest.raises(NotTrainedError, match="no general embedding"):
        model.general_fingerprint()
    model.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / GENERAL).exists()


def test_a_model_in_no_folder_and_a_space_that_does_not_exist(saved: Path) -> None:
    there = load(saved, device="cpu", runtime="torch")
    model = TorchModel(there.network, there.card, device=CPU, epochs=0)
    with pytest.raises(NotTrainedError, match="in no folder"):
        model.embedding_dim("general")
    with pytest.raises(UnknownNameError, match="Did you mean 'general'"):
        model.embed([], space="generel")  # type: ignore[arg-type]


def test_a_file_of_another_run_or_without_numbers_is_refused(saved: Path, tmp_path: Path) -> None:
    config, made = fitted("model.levels=1", "model.rho=2.0")
    write_general(tmp_path, made)
    with pytest.raises(FormatError, match=r"general\.safetensors' does not fit the config"):
        read_general(tmp_path, tiny_config().model)
    made.mean[0] = torch.inf
    with pytest.raises(FormatError, match="was not written: 'mean' has 1"):
        write_general(tmp_path, made)
    (tmp_path / GENERAL).write_bytes(b"no tensors")
    with pytest.raises(FormatError, match=r"general\.safetensors' is damaged"):
        read_general(tmp_path, config.model)


def test_a_file_tells_how_it_is_pooled_and_files_of_before_are_pooled_plainly(
    saved: Path, tmp_path: Path
) -> None:
    config, made = fitted()
    tensors, facts = read_safetensors(saved / GENERAL)
    assert (facts["focus"], facts["centre"]) == ("4.0", "0.65")
    assert read_general(saved, config.model).pooling == made.pooling
    assert facts["learned"] == "0.3"
    for name in ("focus", "centre", "learned"):
        del facts[name]
    tensors = {name: value for name, value in tensors.items() if not name.startswith("head.")}
    save_file(tensors, tmp_path / GENERAL, facts)
    old = read_general(tmp_path, config.model)
    assert old.head is None
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        found, (before, last) = old.describe(images), old.backbone(images)
    means = [level.clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3) for level in (last, before)]
    expected = torch.cat([each / each.norm(dim=1, keepdim=True) for each in means], 1)
    torch.testing.assert_close(found, expected)
    write_general(tmp_path, old)
    assert read_general(tmp_path, config.model).pooling == PLAIN


def test_frozen_features_are_those_of_the_weights_that_training_began_with(tmp_path: Path) -> None:
    torch.manual_seed(7)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    config = tiny_config(f"model.weights={tmp_path / 'w.safetensors'}").model
    images = torch.rand(2, 3, 32, 32)
    found = frozen_features(config, CPU)(images)
    expected = GeneralEmbedding(build_backbone(config), PLAIN).eval().describe(images)
    torch.testing.assert_close(found, expected)
    torch.manual_seed(8)  # weights are read, not drawn
    other = frozen_features(dataclasses.replace(config, weights="none"), CPU)(images)
    assert not torch.allclose(found, other)
