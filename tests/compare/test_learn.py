"""What is learned in a comparison: nothing of queries or held-out classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from phpq.compare import learn
from phpq.compare.learn import learn_and_embed, other_species
from phpq.errors import DataError
from phpq.model.general import whiten
from phpq.training import Trainer
from tiny_runs import tiny_birds, tiny_config


def head() -> Any:
    return tiny_config("training.epochs=1", "training.trainable=head")


def test_other_species_are_of_another_seed() -> None:
    source = "plumage:species=20,images=40,test=10,size=96,seed=7"
    assert other_species(source) == "plumage:species=20,images=40,test=10,size=96,seed=8"


def test_heads_learn_from_training_images_of_learned_classes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    real = Trainer

    def watch(dataset: Any, *rest: Any, **options: Any) -> Any:
        trainer = real(dataset, *rest, **options)
        seen.append(trainer.pixels)
        return trainer

    monkeypatch.setattr(learn, "Trainer", watch)
    monkeypatch.setattr(learn, "LENGTHS", (12,))
    birds = tiny_birds()
    embedded = learn_and_embed(birds, head(), share=0.25, seconds=1000)
    (pixels,) = seen
    assert set(pixels.train.ids) == {
        i for i in birds.train.ids if i.split("/")[1] in birds.class_names[:3]
    }
    assert pixels.train.class_names == birds.class_names[:3]
    assert embedded.images.unseen.tolist() == [False, False, False, True]
    (learned,) = embedded.learned
    assert learned.gallery.shape == (24, 32)
    assert learned.queries.shape == (8, 32)
    assert learned.codebooks is not None
    assert learned.codebooks.num_codebooks == 4
    assert embedded.frozen is not None
    assert embedded.general is not None
    assert embedded.general.minutes is not None
    assert embedded.images_per_second > 0


def test_the_whitened_space_is_that_of_the_learned_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learn, "LENGTHS", ())
    given: list[tuple[Any, Any]] = []
    real = whiten

    def watch(features: Any, labels: Any) -> Any:
        given.append((features, labels))
        return real(features, labels)

    monkeypatch.setattr(learn, "whiten", watch)
    embedded = learn_and_embed(tiny_birds(), head(), share=0.25, seconds=1000)
    ((features, labels),) = given
    assert len(features) == 18
    assert torch.unique(labels).tolist() == [0, 1, 2]
    assert embedded.general is not None
    lengths = np.linalg.norm(embedded.general.gallery, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-4)


def test_too_few_classes_leave_the_unseen_columns_empty_unless_asked_for() -> None:
    birds = tiny_birds()
    assert learn._learned_count(birds, 0)[0] == 4
    assert learn._learned_count(birds, None) == (3, "")
    with pytest.raises(DataError, match="at least two are needed"):
        learn._learned_count(birds, 0.9)


def test_a_share_that_cannot_be_held_out_is_told_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the trunk was built")

    monkeypatch.setattr(learn, "build_method", never)
    with pytest.raises(DataError, match="at least two are needed"):
        learn_and_embed(tiny_birds(), head(), share=0.9, seconds=1000)
