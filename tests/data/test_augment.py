"""Views of stored squares: the drawn parameters, the crops against a plain loop, the fixed view."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import DataConfig
from phpq.data.batches import PARAMETERS, Views, draw_augmentations
from reference import bilinear_loop

SIDE = 16


def squares(count: int = 2, side: int = SIDE) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


PLAIN = DataConfig(
    store_size=SIDE, crop_size=SIDE, crop_scale=0.5, jitter=0.0, eval_size=SIDE, eval_crop=1.0
)


def config(**changes: Any) -> DataConfig:
    return dataclasses.replace(PLAIN, **changes)


def parameters(*rows: tuple[float, ...]) -> Tensor:
    """Fill rows of (x, y, width, height, mirror, ...) with neutral colours."""
    return torch.tensor([(*row, 1.0, 1.0, 1.0)[:PARAMETERS] for row in rows])


WHOLE = (0.5, 0.5, 1.0, 1.0, 1.0)


def draw(count: int = 400, *, seed: int = 0, **changes: Any) -> NDArray[np.float32]:
    return draw_augmentations(np.random.default_rng(seed), count, config(**changes))


def test_crops_stay_inside_and_keep_their_share() -> None:
    drawn = draw(crop_scale=0.3, crop_ratio=1.5)
    assert drawn.shape == (400, PARAMETERS)
    assert drawn.dtype == np.float32
    x, y, width, height = drawn[:, :4].T
    for centre, size in ((x, width), (y, height)):
        assert (centre - size / 2 >= -1e-6).all()
        assert (centre + size / 2 <= 1 + 1e-6).all()
    assert (width * height >= 0.3 - 1e-5).all()
    ratio = width / height
    assert (ratio <= 1.5 + 1e-5).all()
    assert (ratio >= 1 / 1.5 - 1e-5).all()
    assert (width * height).std() > 0.1  # they do differ
    assert x.std() > 0.02


def test_mirrors_are_half_of_the_crops_or_none() -> None:
    drawn = draw(flip=True)
    assert set(drawn[:, 4]) == {-1.0, 1.0}
    assert 0.4 < (drawn[:, 4] < 0).mean() < 0.6
    assert set(draw(flip=False)[:, 4]) == {1.0}


def test_colours_change_by_the_jitter_at_most() -> None:
    colour = draw(jitter=0.3)[:, 5:]
    assert (np.abs(colour - 1) <= 0.3 + 1e-6).all()
    assert np.abs(colour - 1).max() > 0.2
    assert set(draw(jitter=0.0)[:, 5:].ravel()) == {1.0}


def test_the_generator_is_the_only_source_of_chance() -> None:
    np.testing.assert_array_equal(draw(seed=3), draw(seed=3))
    assert not np.array_equal(draw(seed=3), draw(seed=4))


def test_the_whole_square_is_the_identity() -> None:
    pixels = squares()
    images = Views(config()).train(pixels, parameters(WHOLE, WHOLE))
    assert images.dtype == torch.float32
    torch.testing.assert_close(images, pixels / 255, rtol=0, atol=1e-5)


def test_the_mirror_turns_left_and_right() -> None:
    pixels = squares(1)
    images = Views(config()).train(pixels, parameters((0.5, 0.5, 1.0, 1.0, -1.0)))
    torch.testing.assert_close(images, pixels.flip(-1) / 255, rtol=0, atol=1e-5)


def test_a_quarter_is_cut_out_to_the_pixel() -> None:
    pixels = squares(1)
    images = Views(config(crop_size=SIDE // 2)).train(
        pixels, parameters((0.75, 0.25, 0.5, 0.5, 1.0))
    )
    expected = pixels[:, :, : SIDE // 2, SIDE // 2 :] / 255
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize("size", [5, 16, 23])
def test_any_crop_equals_its_twin(size: int, mirror: float) -> None:
    pixels, (x, y, width, height) = squares(1), (0.4, 0.55, 0.63, 0.71)
    images = Views(config(crop_size=size)).train(pixels, parameters((x, y, width, height, mirror)))
    channel = (pixels[0, 1] / 255).tolist()
    for row in range(size):
        for column in range(size):
            right = mirror * ((column + 0.5) / size - 0.5)
            down = (row + 0.5) / size - 0.5
            expected = bilinear_loop(
                channel, SIDE * (x + width * right), SIDE * (y + height * down)
            )
            assert images[0, 1, row, column].item() == pytest.approx(expected, abs=1e-4)


def test_rows_of_a_batch_do_not_mix() -> None:
    pixels, drawn = squares(4), torch.from_numpy(draw(4, jitter=0.3))
    views = Views(config(jitter=0.3))
    together = views.train(pixels, drawn)
    for i in range(4):
        torch.testing.assert_close(views.train(pixels[i : i + 1], drawn[i : i + 1])[0], together[i])


def test_colours_equal_their_formula() -> None:
    pixels, (brightness, contrast, saturation) = squares(1), (0.8, 1.2, 0.5)
    row = torch.tensor([[*WHOLE, brightness, contrast, saturation]])
    image = Views(config(jitter=0.5)).train(pixels, row)[0]
    plain = (pixels[0] / 255).double()
    values = [(plain[c] * brightness).flatten().tolist() for c in range(3)]
    mean = sum(map(sum, values)) / (3 * SIDE * SIDE)
    for i in range(SIDE * SIDE):
        contrasted = [mean + (values[c][i] - mean) * contrast for c in range(3)]
        grey = 0.299 * contrasted[0] + 0.587 * contrasted[1] + 0.114 * contrasted[2]
        for c in range(3):
            expected = min(max(grey + (contrasted[c] - grey) * saturation, 0.0), 1.0)
            assert image[c].flatten()[i].item() == pytest.approx(expected, abs=1e-4)


def test_neutral_colours_change_nothing() -> None:
    pixels = squares()
    images = Views(config(jitter=0.5)).train(pixels, parameters(WHOLE, WHOLE))
    torch.testing.assert_close(images, pixels / 255, rtol=0, atol=1e-5)


def test_the_encoding_view_of_the_right_size_is_exact() -> None:
    pixels = squares()
    assert torch.equal(Views(config()).encode(pixels), pixels.float() / 255)


def test_the_encoding_view_is_the_centre() -> None:
    pixels = squares()
    images = Views(config(eval_crop=0.5, eval_size=SIDE // 2)).encode(pixels)
    assert torch.equal(images, pixels[..., 4:12, 4:12].float() / 255)


@pytest.mark.parametrize("size", [7, 40])
def test_the_encoding_view_is_resized_within_range(size: int) -> None:
    images = Views(config(eval_size=size)).encode(squares())
    assert images.shape == (2, 3, size, size)
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_encoding_view_has_no_chance_in_it() -> None:
    # A published protocol sends its gallery through the random training transform.
    views = Views(config(jitter=0.5, crop_scale=0.2, eval_size=11))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is what must not matter
    first = views.encode(squares())
    torch.manual_seed(1)
    assert torch.equal(views.encode(squares()), first)
