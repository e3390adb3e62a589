"""Samples of large data sets; models that were tuned elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phpq.compare.embed import embed_with_models, round_down, sample_dataset, sample_for_time
from phpq.data import Dataset, LabelledImages
from phpq.training import train_run
from tiny_runs import ColourReader, tiny_birds, tiny_config


def many(classes: int, per_class: int) -> Dataset:
    """Return a data set whose images nobody reads."""

    def split(name: str, count: int) -> LabelledImages:
        ids = tuple(f"{name}{i}" for i in range(classes * count))
        labels = np.repeat(np.arange(classes), count)
        names = tuple(f"class {number}" for number in range(classes))
        return LabelledImages(name, ids, labels, names, ColourReader(0, count))

    return Dataset("many", split("train", per_class), split("test", max(1, per_class // 4)))


def test_a_set_that_fits_is_taken_as_it_is() -> None:
    dataset = many(5, 8)
    assert sample_dataset(dataset, 50) == (dataset, "")


def test_classes_keep_ten_images_before_any_class_goes() -> None:
    sampled, note = sample_dataset(many(20, 80), 500)
    sizes = sampled.train.class_sizes() + sampled.test.class_sizes()
    assert len(sampled.class_names) == 20
    assert (sizes >= 10).all()
    assert sizes.sum() <= 600
    assert note.startswith(f"{sizes.sum()} of 2,000 images, of 20 of 20 classes")


def test_of_very_many_classes_some_are_taken_whole() -> None:
    sampled, note = sample_dataset(many(1000, 8), 500)
    assert 40 <= len(sampled.class_names) <= 60
    assert (sampled.train.class_sizes() == 8).all()
    assert sampled.train.class_names[0] == "class 0"
    kept = sampled.train
    for row in (0, len(kept) - 1):  # labels are those of the new names
        number = int(kept.ids[row].removeprefix("train")) // 8
        assert kept.class_names[kept.labels[row]] == f"class {number}"
    assert "of 10,000 images" in note


def test_a_sample_is_the_same_on_a_machine_that_is_a_little_slower() -> None:
    assert [round_down(count) for count in (0.3, 1, 4, 9.9, 19_999, 20_000, 56_000)] == [
        *(1, 1, 2, 5),
        *(10_000, 20_000, 50_000),
    ]


def test_minutes_bound_what_is_embedded_and_what_is_measured() -> None:
    dataset = many(20, 80)  # 2,000 images
    assert sample_for_time(dataset, 100, rate=100, waiting=2000) == (dataset, "")
    slow, note = sample_for_time(dataset, 100, rate=10, waiting=2000)
    assert len(slow.train) + len(slow.test) <= 600
    assert "of 2,000 images" in note
    assert sample_for_time(dataset, 100, rate=10, waiting=0) == (
        dataset,
        "",
    )  # all are kept on disk
    short, _ = sample_for_time(dataset, 1, rate=1e9, waiting=2000)
    assert len(short.train) + len(short.test) <= 600


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "run"
    config = tiny_config("training.epochs=1", "data.holdout_classes=0.25")
    train_run(tiny_birds(), config, folder, device="cpu")
    return folder


def test_a_model_brings_its_spaces_and_the_classes_that_it_held_out(run: Path) -> None:
    from phpq.model import load

    embedded = embed_with_models(tiny_birds(), [load(run)], seconds=1000)
    assert embedded.images.unseen.tolist() == [False, False, False, True]
    assert embedded.frozen is None  # it began from nothing
    assert embedded.general is not None
    assert embedded.general.gallery.shape[0] == 24
    (learned,) = embedded.learned
    assert learned.codebooks is not None
    assert learned.minutes is not None
    assert embedded.facts["models"][0]["bits"] == 12
    assert not embedded.skipped


def test_queries_that_a_model_learned_do_not_ask(run: Path) -> None:
    from phpq.model import load

    model = load(run)
    data = replace(model.card.config.data, learned_images="all")
    model.card = replace(model.card, config=replace(model.card.config, data=data))
    embedded = embed_with_models(tiny_birds(), [model], seconds=1000)
    assert len(embedded.images.unseen_queries)
    assert not len(embedded.images.seen_queries)
    assert len(np.unique(embedded.images.gallery)) == 4
    assert any("queries of learned classes" in note for note in embedded.notes)
    # Of learned classes alone nothing else could ask.
    model.card = replace(model.card, class_names=tiny_birds().class_names)
    embedded = embed_with_models(tiny_birds(), [model], seconds=1000)
    assert len(embedded.images.seen_queries)
    assert any("flatter" in note for note in embedded.notes)
