"""The recipes: what is drawn, and settings that do not depend on tuned defaults."""

from __future__ import annotations

import pytest

from phpq.demo import BITS, FULL, QUICK, DemoSize


@pytest.mark.parametrize("recipe", [FULL, QUICK])
@pytest.mark.parametrize("bits", BITS)
def test_settings_fit_what_is_drawn(recipe: DemoSize, bits: int) -> None:
    config = recipe.config(bits, seed=3)
    assert config.quantizer.bits == bits
    assert config.quantizer.codebook_size == 256  # as the post-hoc quantizer beside it
    assert config.data.store_size == config.data.crop_size == config.data.eval_size == recipe.size
    assert config.training.seed == 3
    assert config.model.weights == "none"  # from scratch, without a network
    assert config.data.holdout_per_class == 0  # the queries are the test split


def test_code_lengths_differ_in_the_number_of_codebooks_only() -> None:
    short, long = (FULL.config(bits, seed=0) for bits in (16, 32))
    assert (short.data, short.model) == (long.data, long.model)
    assert (short.loss, short.training) == (long.loss, long.training)


def test_birds_follow_the_recipe_and_the_seed() -> None:
    birds = QUICK.draw(1)
    assert len(birds.train) == QUICK.species * QUICK.images
    assert len(birds.test) == QUICK.species * QUICK.queries
    assert birds.train.read(0).size == (QUICK.size, QUICK.size)
    assert birds.class_names != QUICK.draw(2).class_names
    assert birds.source.endswith("seed=1")


def test_the_full_demo_is_larger_than_the_quick_one() -> None:
    assert FULL.species > QUICK.species
    assert FULL.epochs > QUICK.epochs
    # With more classes than codewords, or fewer images, PQ would have nothing to lose.
    assert FULL.species * FULL.images > 256
