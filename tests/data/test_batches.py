"""The plan of an epoch, and the two ways its pixels reach the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from phpq.config import DataConfig, TrainingConfig
from phpq.data import LabelledImages, decode_all, open_dataset
from phpq.data.batches import (
    EpochPlan,
    ResidentPixels,
    StreamedPixels,
    fits_on,
    plan_epoch,
    steps_per_epoch,
)

CPU = torch.device("cpu")


def plan(
    labels: list[int],
    epoch: int = 0,
    *,
    batch_size: int = 4,
    per_class: int | None = None,
    seed: int = 0,
) -> EpochPlan:
    training = TrainingConfig(
        batch_size=batch_size,
        sampler="classes" if per_class else "shuffle",
        images_per_class=per_class or 1,
        seed=seed,
    )
    return plan_epoch(np.array(labels, np.int64), epoch, data=DataConfig(), training=training)


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    labels = [0, 1, 2] * 7
    for per_class in (None, 2):
        first, again = (plan(labels, 3, seed=5, per_class=per_class) for _ in range(2))
        np.testing.assert_array_equal(first.indices, again.indices)
        np.testing.assert_array_equal(first.parameters, again.parameters)
        for other in (plan(labels, 4, seed=5), plan(labels, 3, seed=6)):
            assert not np.array_equal(first.indices, other.indices)
            assert not np.array_equal(first.parameters, other.parameters)


def test_the_plan_ignores_the_global_state() -> None:
    torch.manual_seed(1)
    first = plan([0, 1] * 8)
    torch.manual_seed(2)
    np.testing.assert_array_equal(plan([0, 1] * 8).indices, first.indices)


@settings(max_examples=40)
@given(count=st.integers(1, 40), batch_size=st.integers(1, 12), epoch=st.integers(0, 5))
def test_a_shuffle_takes_each_image_at_most_once(count: int, batch_size: int, epoch: int) -> None:
    drawn = plan([i % 3 for i in range(count)], epoch, batch_size=batch_size)
    steps = steps_per_epoch(count, batch_size)
    assert drawn.indices.shape == (steps, batch_size)
    assert drawn.indices.dtype == np.int64
    assert drawn.parameters.shape == (steps, batch_size, 8)
    times = np.bincount(drawn.indices.ravel(), minlength=count)
    assert len(times) == count
    if count >= batch_size:
        assert times.max() == 1
        assert times.sum() > count - batch_size  # no more than a remainder is left out
    else:  # a set smaller than a batch fills it, evenly
        assert times.max() - times.min() <= 1


def test_what_one_epoch_leaves_out_another_takes() -> None:
    taken = {int(i) for epoch in range(6) for i in plan([0] * 11, epoch).indices.ravel()}
    assert taken == set(range(11))


def test_classes_fill_a_batch_p_by_k() -> None:
    labels = np.repeat(np.arange(5), 6)
    drawn = plan(labels.tolist(), batch_size=12, per_class=4)
    assert drawn.indices.shape == (2, 12)
    for row in drawn.indices:
        classes, times = np.unique(labels[row], return_counts=True)
        assert len(classes) == 3
        assert (times == 4).all()
        assert len(np.unique(row)) == 12


def test_small_classes_and_few_classes_are_repeated() -> None:
    labels = [0, 0, 1]  # class 1 has one image, and two classes must fill three places
    drawn = plan(labels, batch_size=12, per_class=4)
    assert drawn.indices.shape == (1, 12)
    assert drawn.indices.max() < 3


def test_class_numbers_may_have_gaps() -> None:
    drawn = plan([7, 7, 7, 2, 2, 2], batch_size=4, per_class=2)
    labels = np.array([7, 7, 7, 2, 2, 2])[drawn.indices]
    assert [sorted(row) for row in labels.tolist()] == [[2, 2, 7, 7]]


@pytest.mark.parametrize(
    ("count", "batch", "steps"), [(64, 64, 1), (65, 64, 1), (3, 64, 1), (12, 4, 3)]
)
def test_steps_are_full_batches(count: int, batch: int, steps: int) -> None:
    assert steps_per_epoch(count, batch) == steps


def test_resident_pixels_are_gathered_in_the_order_of_the_plan() -> None:
    pixels = np.arange(5 * 3 * 2 * 2, dtype=np.uint8).reshape(5, 3, 2, 2)
    pixels.flags.writeable = False  # as a memory-mapped cache is
    batches = list(ResidentPixels(pixels, CPU).batches(np.array([[4, 0], [1, 1]])))
    assert [tuple(batch.shape) for batch in batches] == [(2, 3, 2, 2)] * 2
    np.testing.assert_array_equal(batches[0].numpy(), pixels[[4, 0]])
    np.testing.assert_array_equal(batches[1].numpy(), pixels[[1, 1]])


def large_photos(root: Path) -> LabelledImages:
    """Write JPEGs so large that decoding may take the short cut of a smaller scale."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        for i in range(3):
            noise = rng.integers(0, 256, (160, 200, 3), dtype=np.uint8)
            path = root / "train" / name / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise).resize((400, 320)).save(path, quality=95)
            (root / "test" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise).save(root / "test" / name / f"t{i}.png")
    return open_dataset(str(root)).train


def test_streamed_pixels_equal_resident_ones_over_epochs(tmp_path: Path) -> None:
    images, config = large_photos(tmp_path), DataConfig(store_size=16)
    resident = ResidentPixels(decode_all(images, config, workers=1).pixels, CPU)
    streamed = StreamedPixels(images, config, device=CPU, workers=1)
    for indices in (np.array([[5, 0], [3, 3]]), np.array([[1, 2]])):
        pairs = zip(resident.batches(indices), streamed.batches(indices), strict=True)
        for kept, decoded in pairs:
            assert torch.equal(kept, decoded)


def test_memory_decides_what_stays_on_the_device() -> None:
    assert fits_on(CPU, 1)
    assert not fits_on(CPU, 1 << 60)


def test_a_system_that_does_not_tell_its_memory_gets_a_cautious_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sysconf_names", {})
    assert fits_on(CPU, 1 << 20)
    assert not fits_on(CPU, 1 << 40)
