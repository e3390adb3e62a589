"""What every method must do: learn, give codes of the stated bits, survive saving, rank fairly."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

import phpq
from phpq.config import RECIPES, RunConfig, override, to_dict
from phpq.errors import ConfigError
from phpq.evaluation import LabelledEmbeddings, evaluate_codes
from phpq.index import CodeIndex
from phpq.model import TorchModel, build_method
from phpq.model.checkpoint import ModelCard
from phpq.training import Reporter, Trainer
from reference import scan_codes
from tiny_runs import CLASSES, TINY, colours, tiny_birds, tiny_config, tiny_train

CPU = torch.device("cpu")
SHALLOW = tuple(name for name, recipe in RECIPES.items() if recipe.kind == "shallow")
DEEP = tuple(name for name in RECIPES if name not in SHALLOW)
RESUMED = ("phpq", "adsh", "dpsh")  # by every run of the tests; the others with the rare ones
BITS = 16


def config_of(method: str, *assignments: str) -> RunConfig:
    """Return the tiny settings with the method's own, and 16 bits."""
    # Batches stay tiny, as the set is.
    sizes = ("training.images", "training.batch")
    chosen = [text for text in RECIPES[method].settings if not text.startswith(sizes)]
    bits = ["quantizer.codebook_size=256", "quantizer.num_codebooks=2", "quantizer.kappa=5"]
    return tiny_config(f"method.name={method}", *bits, *chosen, *assignments)


def trainer_of(config: RunConfig) -> Trainer:
    """Return a trainer that begins with the method itself."""
    return Trainer(colours(), config, device=CPU, reporter=Reporter())


def train(trainer: Trainer, epochs: int) -> list[float]:
    losses = []
    for epoch in range(epochs):
        trainer.prepare_epoch(epoch)
        losses.append(trainer.train_epoch(epoch).losses["loss"])
    trainer.complete()
    return losses


@functools.cache  # the tests look at it and change nothing
def trained(method: str) -> tuple[Trainer, TorchModel]:
    config = config_of(method, "training.epochs=2")
    trainer = trainer_of(config)
    train(trainer, 2 if trainer.network.learns else 0)
    names = trainer.pixels.train.class_names
    card = ModelCard(config=config, class_names=names, dataset="colours")
    return trainer, TorchModel(trainer.evaluated_network, card, device=CPU, epochs=2)


@pytest.mark.parametrize("method", DEEP)
def test_learning_lowers_the_loss_and_finds_the_classes(method: str) -> None:
    trainer = trainer_of(config_of(method, "training.epochs=8", "training.learning_rate=0.003"))
    losses = train(trainer, 8)
    assert all(np.isfinite(losses))
    assert np.mean(losses[-2:]) < 0.9 * np.mean(losses[:2])
    assert trainer.evaluate()["map"] > 60  # of four classes; chance is 25


@pytest.mark.parametrize("method", RECIPES)
def test_codes_have_the_stated_bits_and_are_searched_alike(method: str) -> None:
    trainer, model = trained(method)
    assert model.bits == BITS == model.codebooks.bits
    embeddings = trainer.pixels.embed_train(trainer.evaluated_network)
    codes = model.codebooks.encode(embeddings)
    assert codes.shape == (len(trainer.labels), BITS // 8)
    assert codes.dtype == np.uint8
    tables = model.codebooks.lookup_tables(embeddings, norm=model.query_norm)
    found = CodeIndex(model.codebooks, codes).search(embeddings, 5, query_norm=model.query_norm)
    np.testing.assert_array_equal(found.ids, scan_codes(tables, codes, 5)[0])


@pytest.mark.parametrize("method", RECIPES)
def test_saving_and_loading_changes_nothing(method: str, tmp_path: Path) -> None:
    _, model = trained(method)
    copy = phpq.load(model.save(tmp_path / "model"), device="cpu")
    images = [colours().test.read(row) for row in range(6)]
    # The layout of weights in memory differs, and with it the rounding.
    np.testing.assert_allclose(copy.embed(images), model.embed(images), atol=1e-5)
    np.testing.assert_array_equal(copy.encode(images), model.encode(images))
    assert copy.query_norm == model.query_norm
    assert copy.fingerprint() == model.fingerprint()
    assert copy.card.config.method.name == method


@pytest.mark.parametrize("method", RECIPES)
def test_the_order_of_the_database_does_not_change_the_map(method: str) -> None:
    trainer, model = trained(method)
    queries = trainer.pixels.embed_test(trainer.evaluated_network)
    gallery = model.codebooks.encode(trainer.pixels.embed_train(trainer.evaluated_network))
    labels = np.asarray(trainer.labels)
    maps = set()
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(labels))
        scores = evaluate_codes(
            LabelledEmbeddings(queries, trainer.pixels.test.labels),
            gallery[order],
            labels[order],
            model.codebooks,
            query_norm=model.query_norm,
        )
        maps.add(round(scores.map, 10))
    assert len(maps) == 1


@pytest.mark.parametrize("method", RECIPES)
def test_a_mirrored_view_changes_no_shape(method: str) -> None:
    _, model = trained(method)
    images = torch.rand(3, 3, 32, 32)
    plain = model.network.embed(images)
    both = model.network.embed(images, mirrored=True)
    assert plain.shape == both.shape == (3, model.network.embedding_dim)
    mirror = model.network.embed(images.flip(-1), mirrored=True)
    torch.testing.assert_close(both, mirror, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", RECIPES)
def test_bad_settings_are_named(method: str) -> None:
    with pytest.raises(ConfigError, match=r"no option 'no_such_number'"):
        build_method(config_of(method, "method.options.no_such_number=1"), CLASSES)
    with pytest.raises(ConfigError, match=r"Unknown option 'method\.nmae'"):
        override(config_of(method), ["method.nmae=x"])


@pytest.mark.parametrize(
    "method",
    [
        method if method in RESUMED else pytest.param(method, marks=pytest.mark.rare)
        for method in DEEP
    ],
)
def test_a_resumed_run_repeats_an_uninterrupted_one(method: str, tmp_path: Path) -> None:
    class Stop(Exception):
        """Ends a run in the middle."""

    class StopAtThree(Reporter):
        def epoch(self, row: dict[str, object]) -> None:
            if row["epoch"] == 3:
                raise Stop

    config = config_of(method, "training.epochs=4", "training.checkpoint_seconds=0")
    whole = tiny_train(tmp_path / "whole", config)
    with pytest.raises(Stop):
        tiny_train(tmp_path / "parts", config, reporter=StopAtThree())
    parts = tiny_train(tmp_path / "parts", config, resume=True)
    images = [tiny_birds().test.read(row) for row in range(4)]
    np.testing.assert_allclose(parts.embed(images), whole.embed(images), atol=1e-5)
    assert parts.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("method", [name for name, r in RECIPES.items() if r.learned_database])
def test_methods_that_learn_their_database_report_both(method: str) -> None:
    trainer, _ = trained(method)
    row = trainer.evaluate()
    assert {"map", "map_learned"} <= set(row)
    learned = trainer.network.learned_codes()
    assert learned is not None
    assert learned.shape == (len(trainer.labels), BITS // 8)


@pytest.mark.parametrize("method", RECIPES)
def test_a_gallery_takes_every_method(method: str, tmp_path: Path) -> None:
    _, model = trained(method)
    gallery = phpq.Gallery.create(tmp_path / "birds.gallery", model)
    images = colours().test
    gallery.add([{"image": images.read(row), "id": f"{row:02}"} for row in range(8)])
    hits = phpq.Gallery.open(tmp_path / "birds.gallery", device="cpu").search(images.read(3), 8)
    assert len(hits) == 8
    best = max(hit.score for hit in hits)
    assert {hit.id: hit.score for hit in hits}["03"] == pytest.approx(best)


def test_the_tiny_settings_know_no_method() -> None:
    assert "method" not in TINY  # so that these tests choose it
    assert to_dict(config_of("itq"))["method"]["name"] == "itq"
