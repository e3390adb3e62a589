"""A run in two parts, and its state: every bit restored, and clear words where it does not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from phpq.codes import Space
from phpq.config import RunConfig, TrainingConfig
from phpq.data import plumage
from phpq.errors import ConfigError, DataError, FormatError
from phpq.evaluation.history import read_rows
from phpq.model import TorchModel, export, load
from phpq.model.checkpoint import CHANCES, GENERAL, STATE, read_chances
from phpq.model.onnx_file import read_facts, seal
from phpq.recipes import classifier_config
from phpq.training import Reporter, Trainer, build_trainer, learn_backbone, run
from phpq.training.run import RunState
from phpq.training.step import build_optimizer, set_rates
from tiny_runs import SIDE, tiny_birds, tiny_config, tiny_network, tiny_train

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


@pytest.mark.slow
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
    assert not (tmp_path / CHANCES).exists()  # of so few images


@pytest.mark.parametrize(("strangers", "trainable"), [(0, "all"), (8, "all"), (8, "last")])
def test_a_run_knows_how_likely_its_answers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strangers: int, trainable: str
) -> None:
    """Fitted to the test split, and to classes that were held out where they are enough."""
    for module in ("phpq.additive.calibrate", "phpq.training.run"):
        monkeypatch.setattr(f"{module}.MIN_IMAGES", 10)
    settings = ("data.holdout_classes=0.25",) if strangers else ()
    birds = plumage(8, 6, test_per_species=2, size=SIDE)
    config = tiny_config("training.epochs=1", f"training.trainable={trainable}", *settings)
    model = run.train_run(birds, config, tmp_path, device="cpu")
    said = read_chances(tmp_path, model.fingerprint())
    assert said is not None
    assert said.probabilities is not None
    assert said.probabilities.images == (12 if strangers else 16)
    assert (said.probabilities.weights[2] == 0) is not bool(strangers)  # classes were left out
    # What an evaluation embeds gives the same again: nothing was embedded otherwise.
    (tmp_path / CHANCES).unlink()
    (tmp_path / GENERAL).unlink()
    run.train_run(birds, config, tmp_path, device="cpu", resume=True)
    again = read_chances(tmp_path, model.fingerprint())
    assert again is not None
    assert again.probabilities is not None
    assert again.probabilities.weights == pytest.approx(said.probabilities.weights, rel=1e-2)


def test_bad_files_of_held_out_classes_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DataError("an image is bad")

    for module in ("phpq.additive.calibrate", "phpq.training.run"):
        monkeypatch.setattr(f"{module}.MIN_IMAGES", 10)
    monkeypatch.setattr(run, "embed_readable", refuse)
    birds = plumage(8, 6, test_per_species=2, size=SIDE)
    config = tiny_config("training.epochs=1", "data.holdout_classes=0.25")
    model = run.train_run(birds, config, tmp_path, device="cpu")
    assert read_chances(tmp_path, model.fingerprint()) is not None


def make_state(*assignments: str, optimizer: str = "adam", seed: int = 0) -> RunState:
    network = tiny_network(*assignments, seed=seed)
    averaged = tiny_network(*assignments, seed=seed + 50)
    config = TrainingConfig(optimizer=optimizer, learning_rate=0.01)  # type: ignore[arg-type]
    return RunState(network, averaged, build_optimizer(network, config))


def take_steps(state: RunState, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        pixels = torch.rand(4, 3, SIDE, SIDE, generator=generator)
        state.optimizer.zero_grad()
        torch.autograd.backward(state.network.train()(pixels).logits.square().sum())
        state.optimizer.step()


def same_weights(first: RunState, second: RunState) -> bool:
    return all(
        torch.equal(value, theirs.state_dict()[key])
        for ours, theirs in (
            (first.network, second.network),
            (first.averaged, second.averaged),
        )
        for key, value in ours.state_dict().items()
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_restored_state_goes_on_as_the_saved_one(tmp_path: Path, optimizer: str) -> None:
    state = make_state(optimizer=optimizer)
    take_steps(state, 2)
    state.save(tmp_path, 5)
    restored = make_state(optimizer=optimizer, seed=1)
    take_steps(restored, 1)  # whatever it held before is forgotten
    assert restored.load(tmp_path) == 5
    assert same_weights(state, restored)
    for each in (state, restored):
        take_steps(each, 2, seed=9)
    assert same_weights(state, restored)


def test_a_restored_optimizer_lies_in_memory_as_the_weights_do(tmp_path: Path) -> None:
    state = make_state()
    state.network.to(memory_format=torch.channels_last)
    take_steps(state, 1)
    before = [
        [v.stride() for v in entry.values() if v.ndim] for entry in state.optimizer.state.values()
    ]
    assert any(len(set(strides[0])) > 1 and strides[0][1] == 1 for strides in before)
    state.save(tmp_path, 1)
    state.load(tmp_path)
    for weight, entry in state.optimizer.state.items():
        moments = [value for value in entry.values() if value.ndim]
        assert moments
        assert all(value.stride() == weight.stride() for value in moments)


def test_a_state_before_the_first_step_is_restored(tmp_path: Path) -> None:
    make_state().save(tmp_path, 0)
    restored = make_state(seed=1)
    assert restored.load(tmp_path) == 0
    assert same_weights(make_state(), restored)


def test_rates_stay_those_of_the_running_schedule(tmp_path: Path) -> None:
    state = make_state()
    take_steps(state, 1)
    state.save(tmp_path, 1)
    set_rates(state.optimizer, 0.25)
    rates = [group["lr"] for group in state.optimizer.param_groups]
    state.load(tmp_path)
    assert [group["lr"] for group in state.optimizer.param_groups] == rates
    assert all("base_rate" in group for group in state.optimizer.param_groups)


@pytest.mark.parametrize(
    "other", ["model.embedding_dim=64", "model.backbone=test_vit", "quantizer.codebook_size=16"]
)
def test_a_state_of_another_run_is_refused(tmp_path: Path, other: str) -> None:
    make_state(other).save(tmp_path, 1)
    with pytest.raises(FormatError, match=r"state\.safetensors' does not fit this run"):
        make_state().load(tmp_path)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    make_state().save(tmp_path, 1)
    content = (tmp_path / STATE).read_bytes()
    (tmp_path / STATE).write_bytes(content[:-100])
    with pytest.raises(FormatError, match=r"state\.safetensors' is damaged"):
        make_state().load(tmp_path)


class _KilledAtOnnx(Reporter):
    """Ends the run where its last files are about to be written."""

    def message(self, text: str) -> None:
        if "ONNX" in text:
            raise KeyboardInterrupt


class _Messages(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def test_a_run_that_is_killed_before_its_onnx_files_gets_them_on_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stand_in(model: TorchModel, path: Path, *, space: Space = "learned") -> Path:
        general = space == "general"
        path.touch()
        seal(path, {"fingerprint": (model.general_fingerprint if general else model.fingerprint)()})
        return path

    monkeypatch.setattr(export, "export_onnx", stand_in)
    config = tiny_config("training.onnx=true")
    with pytest.raises(KeyboardInterrupt):
        tiny_train(tmp_path, config, reporter=_KilledAtOnnx())
    weights = (tmp_path / "weights.safetensors").read_bytes()
    told = _Messages()
    tiny_train(tmp_path, config, resume=True, reporter=told)
    assert told.texts == ["writing the ONNX files"]  # nothing is decoded, learned or fitted again
    assert (tmp_path / "weights.safetensors").read_bytes() == weights
    for name in ("encoder.onnx", "general.onnx"):
        assert read_facts(tmp_path / name)["fingerprint"]
    with pytest.raises(ConfigError, match="is finished"):
        tiny_train(tmp_path, config, resume=True)


def test_missing_packages_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    told = _Messages()
    tiny_train(tmp_path, tiny_config("training.onnx=true"), reporter=told)
    assert f"phpq export {tmp_path}" in told.texts[-1]
    assert "phpq[train]" in told.texts[-1]
    assert "\n" not in told.texts[-1]
