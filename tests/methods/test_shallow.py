"""What all shallow methods share: features, fitting, saving, and principal axes."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phpq.errors import ConfigError, NotTrainedError, ShapeError
from phpq.methods._shallow import (
    AXES,
    SHRINK,
    ShallowHashing,
    ShallowMethod,
    principal_axes,
)
from phpq.methods.lsh import LSH
from phpq.model import build_method, load
from phpq.model.method import TrainingSet
from phpq.model.weights import read_safetensors, write_safetensors
from reference import cross_entropy_loop, linear_loop
from shallow_features import CHANNELS, codes_of, made_up_features, shallow, unit_features
from tiny_hashing import BITS, part_of
from tiny_runs import CLASSES, SIDE, tiny_config, tiny_train

NAMES = ("lsh", "sh", "pq", "itq", "opq")
FINE = ("quantizer.codebook_size=256", "quantizer.num_codebooks=1", "method.features=finetuned")


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.rand(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def training_set(pixels: torch.Tensor) -> TrainingSet:
    return TrainingSet(
        labels=torch.arange(len(pixels)) % CLASSES,
        num_classes=CLASSES,
        seed=3,
        epochs=1,
        embed=lambda: torch.empty(0),
        apply=lambda function: function(pixels),
    )


@pytest.mark.parametrize("name", NAMES)
def test_fitted_buffers_alone_make_the_codes(name: str, tmp_path: Path) -> None:
    train, others = made_up_features(300), made_up_features(20, seed=1)
    method = shallow(name)
    method.fit_features(train, seed=0)
    codes = codes_of(method, others)
    assert codes.shape == (20, 2)
    assert method.export().bits == 16
    assert method.encode_features(others).shape == (20, method.embedding_dim)
    write_safetensors(tmp_path / "w.safetensors", method.state_dict(), {})
    again = shallow(name)
    again.load_state_dict(read_safetensors(tmp_path / "w.safetensors")[0])
    np.testing.assert_array_equal(codes_of(again, others), codes)
    assert torch.equal(again.encode_features(others), method.encode_features(others))
    assert again.export().fingerprint() == method.export().fingerprint()


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_fits_and_rows_do_not_meet(name: str) -> None:
    train, others = made_up_features(300), made_up_features(20, seed=1)
    first, second = shallow(name), shallow(name)
    first.fit_features(train, seed=5)
    second.fit_features(train, seed=5)
    np.testing.assert_array_equal(codes_of(first, others), codes_of(second, others))
    np.testing.assert_array_equal(codes_of(first, others[3:4]), codes_of(first, others)[3:4])
    if name == "lsh":
        second.fit_features(train, seed=6)
        assert (codes_of(first, others) != codes_of(second, others)).any()


@pytest.mark.parametrize("name", NAMES)
def test_offset_and_scale_of_the_features_do_not_matter(name: str) -> None:
    # Uncentred features of a ReLU would leave most bits constant.
    train = made_up_features(300)
    plain, moved = shallow(name), shallow(name)
    plain.fit_features(train, seed=0)
    moved.fit_features(4 * train + 2, seed=0)
    agreement = (codes_of(plain, train) == codes_of(moved, 4 * train + 2)).mean()
    assert agreement > 0.97  # rounding may turn a bit, or move a centroid a little
    if isinstance(plain, ShallowHashing):
        balance = (plain.encode_features(train) > 0).float().mean(0)
        assert ((balance > 0.1) & (balance < 0.9)).all()


def test_only_fitting_needs_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)  # importing it fails now
    for name in NAMES:
        method = shallow(name)
        assert "\nimport faiss" not in inspect.getsource(inspect.getmodule(type(method)) or sys)
        method.encode_features(made_up_features(3))
    with pytest.raises(ImportError):
        shallow("pq").fit_features(made_up_features(40), seed=0)


def test_features_are_the_mean_of_the_last_map(pixels: torch.Tensor) -> None:
    method = shallow("lsh")
    with torch.no_grad():
        seen = method.describe_features(pixels)
        (last,) = method.backbone(pixels)
        mirrored = method.describe_features(pixels, mirrored=True)
        flipped = method.describe_features(pixels.flip(-1))
    assert seen.shape == (6, CHANNELS)
    for image in range(2):
        for channel in range(0, CHANNELS, 31):
            values = last[image, channel].flatten().tolist()
            mean = sum(values) / len(values)
            assert seen[image, channel].item() == pytest.approx(mean, abs=1e-5)
    torch.testing.assert_close(mirrored, (seen + flipped) / 2)


def test_images_and_cached_features_give_the_same_embeddings(pixels: torch.Tensor) -> None:
    by_images, by_features = shallow("lsh"), shallow("lsh")
    with torch.no_grad():
        by_images.complete(training_set(pixels))
        features = by_features.describe_features(pixels)
        by_features.fit_features(features, seed=3)
        assert torch.equal(by_images.embed(pixels), by_features.encode_features(features))
        both = by_features.describe_features(pixels, mirrored=True)
        mirrored = by_images.embed(pixels, mirrored=True)
        assert torch.equal(mirrored, by_features.encode_features(both))
    assert by_images.fitted_last


def test_features_are_centred_then_scaled() -> None:
    train, others = made_up_features(50), made_up_features(5, seed=1)
    method = shallow("pq")
    method.fit_features(train, seed=0)
    blocks = method.encode_features(others).view(5, 2, -1)[:, :, :-1].flatten(1).numpy()
    np.testing.assert_allclose(blocks, unit_features(others, train), atol=1e-5)


def test_finetuning_is_smoothed_cross_entropy_of_the_features(pixels: torch.Tensor) -> None:
    torch.manual_seed(0)
    method = build_method(tiny_config(*FINE, "method.name=itq"), CLASSES)
    assert isinstance(method, ShallowMethod)
    assert method.learns
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    features = method.extract(pixels)
    learned = method.objective(features, labels, torch.arange(6))
    assert learned.parts == method.terms == ()
    assert learned.codes.shape == (6, 1)
    layer = method.classifier
    logits = [
        linear_loop(layer.weight.tolist(), layer.bias.tolist(), row) for row in features.tolist()
    ]
    expected = cross_entropy_loop(logits, labels.tolist(), tau=1.0, smoothing=0.1)
    assert learned.loss.item() == pytest.approx(expected, rel=1e-4)
    groups = method.parameter_groups(0.1, 10.0)
    assert groups[1]["params"] == list(layer.parameters())


def test_imagenet_features_have_nothing_to_learn() -> None:
    method = shallow("itq")
    assert not method.learns
    assert not [name for name in method.state_dict() if "classifier" in name]


DISCRIMINANT = "method.features=discriminant"


@pytest.mark.parametrize("name", NAMES)
def test_discriminant_features_are_axes_that_tell_classes_apart(name: str) -> None:
    """Against plain loops: within classes they have unit variance, between them the most."""
    train, labels = made_up_features(300), torch.arange(300) % CLASSES
    train[:, 7] += labels  # classes differ in a feature that varies little
    method = shallow(name, DISCRIMINANT)
    method.fit_features(train, seed=0, labels=labels)
    axes = method.discriminants.double().numpy()
    assert axes.shape == (16, CHANNELS)  # as many as bits, since there are few classes
    rows = train.double().numpy()
    scatter = np.zeros((CHANNELS, CHANNELS))
    for label in range(CLASSES):
        own = [row for row, number in zip(rows, labels.tolist(), strict=True) if number == label]
        mean = sum(own) / len(own)
        for row in own:
            scatter += np.outer(row - mean, row - mean) / len(rows)
    scatter += SHRINK * np.trace(scatter) / CHANNELS * np.eye(CHANNELS)
    np.testing.assert_allclose(axes @ scatter @ axes.T, np.eye(16), atol=1e-3)
    spread = np.var((rows - rows.mean(0)) @ axes.T, axis=0)
    assert spread.argmax() == 0
    assert spread[0] > 3 * spread[CLASSES:].max()  # only the classes make it so wide
    others = made_up_features(5, seed=1)
    expected = (others.double().numpy() - rows.mean(0)) @ axes.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    with torch.no_grad():
        seen = method.project(torch.from_numpy(expected.astype(np.float32)))
        torch.testing.assert_close(method.encode_features(others), seen, atol=1e-4, rtol=1e-4)
    assert method.learns


def test_discriminant_features_need_labels_and_fit_more_classes_with_more_axes() -> None:
    with pytest.raises(ShapeError, match=r"labels is missing.*method.features=finetuned"):
        shallow("lsh", DISCRIMINANT).fit_features(made_up_features(20), seed=0)
    setup = replace(shallow("lsh", DISCRIMINANT).setup, num_classes=200)
    assert LSH(setup).code_dim == AXES
    assert LSH(replace(setup, features="finetuned")).code_dim == CHANNELS


@pytest.mark.parametrize(("name", "features"), [("lsh", "imagenet"), ("opq", "discriminant")])
def test_a_run_fits_saves_and_loads(name: str, features: str, tmp_path: Path) -> None:
    config = tiny_config(
        f"method.name={name}",
        f"method.features={features}",
        "quantizer.codebook_size=256",
        "quantizer.num_codebooks=2",
        "training.epochs=1",
    )
    model = tiny_train(tmp_path / "run", config)
    again = load(tmp_path / "run", device="cpu")
    noise = np.random.default_rng(0).integers(0, 256, (5, 3, SIDE, SIDE), dtype=np.uint8)
    # The trained one has another memory layout, so that convolutions may round otherwise.
    np.testing.assert_allclose(model.embed_pixels(noise), again.embed_pixels(noise), atol=1e-5)
    assert model.fingerprint() == again.fingerprint()
    assert again.bits == again.codebooks.bits == 16


def test_codes_that_were_never_fitted_are_not_handed_out() -> None:
    with pytest.raises(NotTrainedError, match=r"'opq' are not fitted.*phpq train --resume"):
        shallow("opq").export()


def test_bad_features_and_options_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"features has shape \(4, 5\); expected \(N, 96\)"):
        shallow("lsh").fit_features(torch.zeros(4, 5), seed=0)
    with pytest.raises(ShapeError, match="features has no rows"):
        shallow("lsh").fit_features(torch.zeros(0, CHANNELS), seed=0)
    with pytest.raises(ConfigError, match=r"method 'sh' has no option 'rounds'\. It has none\."):
        shallow("sh", "method.options.rounds=3")


def test_principal_axes_diagonalise_the_covariance() -> None:
    rows = made_up_features(200).numpy()
    found = principal_axes(rows, 10)
    values = (rows - rows.mean(0)) @ found.axes.T
    covariance = values.T @ values / len(rows)
    spread = np.diag(covariance)
    assert (np.diff(spread) <= 0).all()
    np.testing.assert_allclose(covariance, np.diag(spread), atol=1e-5)
    np.testing.assert_allclose(found.axes @ found.axes.T, np.eye(10), atol=1e-9)
    assert (found.axes[np.arange(10), np.abs(found.axes).argmax(1)] > 0).all()
    assert found.rank == CHANNELS


def test_principal_axes_are_those_of_faiss() -> None:
    import faiss

    rows = made_up_features(200).numpy()
    matrix = faiss.PCAMatrix(CHANNELS, 5)
    matrix.train(rows)
    theirs = faiss.vector_to_array(matrix.A).reshape(-1, CHANNELS)[:5]
    cosines = np.abs((theirs * principal_axes(rows, 5).axes).sum(1))
    np.testing.assert_allclose(cosines, 1, atol=1e-4)


def test_axes_beyond_the_rank_are_zero() -> None:
    found = principal_axes(made_up_features(7).numpy(), 10)
    assert found.rank == 6  # the mean takes one
    assert (np.abs(found.axes).sum(1) > 0).tolist() == [True] * 6 + [False] * 4
    still = principal_axes(np.ones((3, 4), dtype=np.float32), 2)
    assert still.rank == 0
    assert not still.axes.any()


def test_too_few_directions_are_named() -> None:
    method = part_of(ShallowHashing, "sh")
    method.check_rank(BITS, of="30 images")
    message = r"'sh' with bits=16 .* features of 30 images have 15\. Use fewer bits"
    with pytest.raises(ConfigError, match=message):
        method.check_rank(BITS - 1, of="30 images")


def test_a_feature_at_the_mean_has_a_code() -> None:
    train = made_up_features(50)
    method = shallow("lsh")
    method.fit_features(train, seed=0)
    at_mean = method.get_buffer("mean")[None]
    assert method.encode_features(at_mean).isfinite().all()
