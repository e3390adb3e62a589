"""A run in two parts: the backbone learns to classify, then the method goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phpq.config import RunConfig
from phpq.errors import ConfigError
from phpq.evaluation.history import read_rows
from phpq.model import load
from phpq.recipes import classifier_config
from phpq.training import Reporter, Trainer, build_trainer, learn_backbone, run
from phpq.training.state import STATE
from tiny_runs import tiny_birds, tiny_config, tiny_train

CPU = torch.device("cpu")


def two_parts(*assignments: str) -> RunConfig:
    """Return the settings of a run whose first half is the classifier's."""
    bits = ("quantizer.codebook_size=256", "quantizer.num_codebooks=2", "quantizer.kappa=5")
    return tiny_config("method.name=dth", "method.classifier_share=0.5", *bits, *assignments)


def built(config: RunConfig, *, begun: bool = False) -> Trainer:
    return build_trainer(tiny_birds(), config, device=CPU, reporter=Reporter(), begun=begun)


def test_the_method_goes_on_from_the_classifiers_backbone() -> None:
    config = two_parts()
    first = classifier_config(config)
    assert first is not None
    classifier = Trainer(tiny_birds(), first, device=CPU, reporter=Reporter())
    before = {k: v.clone() for k, v in classifier.network.backbone.state_dict().items()}
    learned = learn_backbone(classifier)
    assert any(not torch.equal(before[name], learned[name]) for name in learned)
    trainer = built(config)
    assert trainer.config.training.epochs == 2
    for network in (trainer.network, trainer.averaged):
        state = network.backbone.state_dict()
        assert all(torch.equal(state[name], learned[name]) for name in learned)


def test_epochs_are_counted_over_both_parts(tmp_path: Path) -> None:
    model = tiny_train(tmp_path, two_parts("training.evaluate_every=1"))
    assert [row["epoch"] for row in read_rows(tmp_path)] == [3, 4]
    assert model.epochs == 4 == load(tmp_path, device="cpu").epochs
    assert not (tmp_path / STATE).exists()


def test_a_method_that_has_begun_is_not_fine_tuned_again() -> None:
    config = two_parts()
    fresh = Trainer(tiny_birds(), config, device=CPU, reporter=Reporter())
    spared = built(config, begun=True)
    for name, value in fresh.network.backbone.state_dict().items():
        assert torch.equal(value, spared.network.backbone.state_dict()[name]), name


def test_bad_options_show_before_the_first_epoch(tmp_path: Path) -> None:
    class NeverStarted(Reporter):
        def step(self, epoch: int, number: int) -> None:
            pytest.fail("it learned")

    config = two_parts("method.options.margni=1")
    with pytest.raises(ConfigError, match="no option 'margni'"):
        tiny_train(tmp_path / "run", config, reporter=NeverStarted())
    assert not (tmp_path / "run").exists()


def test_a_run_killed_in_its_first_part_starts_again(tmp_path: Path) -> None:
    class Stop(Exception):
        """Ends a run in the middle."""

    class StopEarly(Reporter):
        def step(self, epoch: int, number: int) -> None:
            raise Stop

    with pytest.raises(Stop):
        tiny_train(tmp_path / "run", two_parts(), reporter=StopEarly())
    again = tiny_train(tmp_path / "run", two_parts(), resume=True)
    whole = tiny_train(tmp_path / "whole", two_parts())
    assert again.fingerprint() == whole.fingerprint()


def test_codes_that_are_fitted_last_are_not_called_collapsing(tmp_path: Path) -> None:
    bits = ("quantizer.codebook_size=256", "quantizer.num_codebooks=2", "quantizer.kappa=5")
    tiny_train(tmp_path, tiny_config("method.name=lsh", "training.epochs=2", *bits))
    assert [row["collapsing"] for row in read_rows(tmp_path)] == [False, False]


def test_a_machine_without_matplotlib_trains_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    tiny_train(tmp_path, tiny_config("training.epochs=1"))
    assert len(read_rows(tmp_path)) == 1
    assert not (tmp_path / "training.png").exists()
