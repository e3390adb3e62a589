"""Whole runs: resuming equals never having stopped, whatever the moment of the kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phpq.config import RunConfig
from phpq.errors import ConfigError
from phpq.evaluation.history import METRICS
from phpq.model import Network, load
from phpq.model.checkpoint import STATE
from phpq.model.weights import read_tensors
from phpq.training import Reporter, Trainer
from tiny_runs import colours, tiny_birds, tiny_config, tiny_train

CPU = torch.device("cpu")
FILES = [
    "config.json",
    "general.safetensors",
    "metrics.jsonl",
    "training.png",
    "weights.safetensors",
]


class Kill(BaseException):
    """Stands for the end of the process."""


class KillAt(Reporter):
    """Ends the run in the middle of an epoch (from 0)."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch
        self.finished = False

    def step(self, epoch: int, number: int) -> None:
        if (epoch, number) == (self.at, 1):
            raise Kill

    def finish(self) -> None:
        self.finished = True


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Read the metrics without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text("utf-8").splitlines()]
    for row in rows:
        assert row.pop("seconds") > 0
        assert row.pop("images_per_second") > 0
    return rows


def assert_same_run(folder: Path, other: Path) -> None:
    """Compare losses, codes, weights and the general embedding to the bit."""
    assert rows_of(folder) == rows_of(other)
    for name in ("weights.safetensors", "general.safetensors"):
        first, second = (read_tensors(path / name) for path in (folder, other))
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.equal(value, second[key]), (name, key)


@pytest.fixture(autouse=True)
def no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "straight" not in request.fixturenames:
        monkeypatch.setattr("phpq.training.run.find_spec", lambda _: None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four epochs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    tiny_train(folder, tiny_config())
    return folder


def test_a_run_leaves_its_files(straight: Path) -> None:
    assert sorted(path.name for path in straight.iterdir()) == FILES


def test_every_epoch_has_one_row_and_some_are_evaluated(straight: Path) -> None:
    rows = rows_of(straight)
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert [row["epoch"] for row in rows if "map" in row] == [2, 4]
    for row in rows:
        assert row["loss"] == pytest.approx(row["classification"] + row["contrastive"], rel=1e-5)
        assert row["embedding"] > 0  # logged, though tiny runs give it no weight
        assert 1 <= row["distinct_codes"] <= 24
        assert 0 <= row["dead_codewords"] < 32
        assert 0 <= row["entropy_bits"] <= 3
    assert 0 < rows[-1]["map"] <= 100


def test_the_saved_model_is_the_one_returned(tmp_path: Path) -> None:
    model = tiny_train(tmp_path / "run", tiny_config("training.epochs=1"))
    loaded = load(tmp_path / "run", device="cpu")
    assert loaded.fingerprint() == model.fingerprint()
    assert loaded.epochs == model.epochs == 1
    assert loaded.class_names == tiny_birds().class_names
    np.testing.assert_array_equal(
        loaded.encode(tiny_birds().train), model.encode(tiny_birds().train)
    )


def test_the_last_row_is_what_evaluating_the_saved_model_gives(straight: Path) -> None:
    model = load(straight, device="cpu")
    gallery = model.encode(tiny_birds().train)
    assert len(np.unique(gallery, axis=0)) == rows_of(straight)[-1]["gallery_distinct_codes"]


def test_equal_seeds_repeat_a_run_and_others_do_not(straight: Path, tmp_path: Path) -> None:
    tiny_train(tmp_path / "again", tiny_config())
    assert_same_run(straight, tmp_path / "again")
    tiny_train(tmp_path / "other", tiny_config("training.seed=1", "training.epochs=1"))
    assert rows_of(tmp_path / "other")[0]["loss"] != rows_of(straight)[0]["loss"]


@pytest.mark.parametrize(
    "epoch", [pytest.param(0, marks=pytest.mark.rare), 2, pytest.param(3, marks=pytest.mark.rare)]
)
def test_resuming_equals_an_uninterrupted_run(straight: Path, tmp_path: Path, epoch: int) -> None:
    folder, reporter = tmp_path / "run", KillAt(epoch)
    with pytest.raises(Kill):
        tiny_train(folder, tiny_config(), reporter=reporter)
    assert reporter.finished  # the terminal was given back
    assert (folder / STATE).is_file() == (epoch > 0)
    if epoch:
        assert [row["epoch"] for row in rows_of(folder)] == list(range(1, epoch + 1))
        with (folder / METRICS).open("a") as file:
            file.write('{"epoch": 9, "lo')  # a torn line
    (folder / ".weights.safetensors.abc.tmp").touch()  # left by the kill
    tiny_train(folder, tiny_config(), resume=True)
    assert_same_run(straight, folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.parametrize(
    "assignments",
    [
        pytest.param(("training.codebook_epoch=1",), marks=pytest.mark.rare, id="codebooks later"),
        pytest.param(
            ("training.codebook_epoch=2", "quantizer.init=xavier", "training.ema_decay=0"),
            id="later without average",
        ),
        pytest.param(("training.optimizer=sgd", "training.sampler=classes"), id="sgd"),
        pytest.param(
            ("training.optimizer=adamw", "training.weight_decay=0.1", "data.jitter=0.2"),
            marks=pytest.mark.rare,
            id="adamw",
        ),
    ],
)
def test_resuming_holds_for_other_settings(tmp_path: Path, assignments: tuple[str, ...]) -> None:
    config = tiny_config("training.epochs=3", "training.evaluate_every=3", *assignments)
    tiny_train(tmp_path / "straight", config)
    for kill in (1, 2):  # on both sides of the epoch in which the codebooks start
        folder = tmp_path / f"killed in {kill}"
        with pytest.raises(Kill):
            tiny_train(folder, config, reporter=KillAt(kill))
        tiny_train(folder, config, resume=True)
        assert_same_run(tmp_path / "straight", folder)


@pytest.mark.slow
def test_a_crash_at_any_file_operation_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("training.epochs=2", "training.evaluate_every=9")
    replace, written = Path.replace, 0
    crash_at = -1

    def counting(self: Path, target: Path) -> Path:
        nonlocal written
        written += 1
        if written == crash_at:
            raise Kill
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", counting)
    tiny_train(tmp_path / "straight", config)
    total = written
    # The config; rows, state and weights; rows and weights; the general embedding.
    assert total == 7
    for crash_at in range(2, total + 1):
        written, folder = 0, tmp_path / f"crash at {crash_at}"
        with pytest.raises(Kill):
            tiny_train(folder, config)
        written = -1000
        tiny_train(folder, config, resume=True)
        assert_same_run(tmp_path / "straight", folder)


class Slow(Reporter):
    """Gives the kill some time to come in between."""

    def step(self, epoch: int, number: int) -> None:
        time.sleep(0.2)


def start_process(folder: Path) -> int:
    """Train in another process; returns its id."""
    with warnings.catch_warnings():
        # Newer Pythons warn of threads that a fork leaves behind, and Lance, if some test has
        # imported it, of its own; the child needs neither.
        warnings.simplefilter("ignore")
        process = os.fork()
    if process == 0:
        try:
            tiny_train(folder, tiny_config(), reporter=Slow())
        finally:
            os._exit(1)
    return process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_process_resumes(straight: Path, tmp_path: Path) -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("a process that has used CUDA cannot be forked")
    folder = tmp_path / "run"
    process = start_process(folder)
    deadline = time.monotonic() + 60
    while not (folder / METRICS).is_file() and time.monotonic() < deadline:
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended by itself"
        time.sleep(0.01)
    moment = random.uniform(0, 0.5)
    time.sleep(moment)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "it was over before the kill"
    assert (folder / METRICS).is_file()
    tiny_train(folder, tiny_config(), resume=True)
    assert_same_run(straight, folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES, f"killed after {moment} s"


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Kill):
        tiny_train(tmp_path, tiny_config(), reporter=KillAt(1))
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(ConfigError, match="The config differs from that of the run"):
        tiny_train(tmp_path, tiny_config("loss.gamma=0.5"), resume=True)
    assert (tmp_path / STATE).read_bytes() == before
    with pytest.raises(ConfigError, match=r"is not empty\..*--resume"):
        tiny_train(tmp_path, tiny_config())


def test_a_finished_run_is_left_alone(straight: Path) -> None:
    before = {path.name: path.read_bytes() for path in straight.iterdir()}
    with pytest.raises(ConfigError, match="is finished; there is nothing to resume"):
        tiny_train(straight, tiny_config(), resume=True)
    with pytest.raises(ConfigError, match="is not empty"):
        tiny_train(straight, tiny_config())
    assert {path.name: path.read_bytes() for path in straight.iterdir()} == before


def test_a_finished_run_without_a_general_embedding_gets_one(
    straight: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made by 0.1.0"
    shutil.copytree(straight, folder)
    (folder / "general.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = tiny_train(folder, tiny_config(), resume=True, reporter=KillAt(0))  # learns nothing
    assert_same_run(straight, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()}.items() >= before.items()
    assert model.general_fingerprint() == load(straight, device="cpu").general_fingerprint()
    assert model.epochs == 4


def test_folders_that_hold_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no run to resume"):
        tiny_train(tmp_path, tiny_config(), resume=True)
    (tmp_path / "holiday.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        tiny_train(tmp_path, tiny_config())
    with pytest.raises(ConfigError, match=r"holiday\.txt' is a file"):
        tiny_train(tmp_path / "holiday.txt", tiny_config())


def test_checkpoints_wait_for_their_time(tmp_path: Path) -> None:
    config = tiny_config("training.checkpoint_seconds=1000")
    with pytest.raises(Kill):
        tiny_train(tmp_path, config, reporter=KillAt(2))
    assert not (tmp_path / STATE).is_file()
    assert len(rows_of(tmp_path)) == 2  # seen while it runs, gone on resuming
    tiny_train(tmp_path, config, resume=True)
    assert [row["epoch"] for row in rows_of(tmp_path)] == [1, 2, 3, 4]


def make_trainer(config: RunConfig) -> Trainer:
    return Trainer(tiny_birds(), config, device=CPU, reporter=Reporter())


def learn(trainer: Trainer, epochs: int) -> list[float]:
    losses = []
    for epoch in range(epochs):
        trainer.prepare_epoch(epoch)
        losses.append(trainer.train_epoch(epoch).losses["loss"])
    return losses


def test_learning_finds_classes_that_are_easy_to_tell() -> None:
    config = tiny_config("training.epochs=6", "training.learning_rate=0.003")
    trainer = Trainer(colours(), config, device=CPU, reporter=Reporter())
    losses = learn(trainer, 6)
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.evaluate()["map"] > 70  # of four classes; chance is 25


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_evaluating_twice_gives_the_same_and_disturbs_nothing(decay: float) -> None:
    config = tiny_config(f"training.ema_decay={decay}")
    calm, watched = make_trainer(config), make_trainer(config)
    for trainer in (calm, watched):
        trainer.prepare_epoch(0)
        trainer.train_epoch(0)
    state = {key: value.clone() for key, value in watched.network.state_dict().items()}
    embeddings = watched.pixels.embed_train(watched.evaluated_network)
    assert watched.evaluate() == watched.evaluate()
    np.testing.assert_array_equal(watched.pixels.embed_train(watched.evaluated_network), embeddings)
    for key, value in watched.network.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert watched.train_epoch(1).losses == calm.train_epoch(1).losses


def network_of(trainer: Trainer) -> Network:
    assert isinstance(trainer.network, Network)
    return trainer.network


def averaged_of(trainer: Trainer) -> Network:
    assert isinstance(trainer.averaged, Network)
    return trainer.averaged


def test_codebooks_start_among_the_data_and_move() -> None:
    trainer = make_trainer(tiny_config())
    drawn = network_of(trainer).quantizer.codebooks.detach().clone()
    trainer.prepare_epoch(0)
    started = network_of(trainer).quantizer.codebooks.detach().clone()
    assert not torch.equal(started, drawn)
    assert torch.equal(averaged_of(trainer).quantizer.codebooks, started)
    trainer.train_epoch(0)
    moved = network_of(trainer).quantizer.codebooks.detach()
    assert ((moved - started).norm(dim=2) > 0).float().mean() > 0.5
    assert not torch.equal(averaged_of(trainer).quantizer.codebooks, started)


def test_codebooks_may_start_later() -> None:
    trainer = make_trainer(tiny_config("training.codebook_epoch=2"))
    drawn = network_of(trainer).quantizer.codebooks.detach().clone()
    for epoch in range(2):
        trainer.prepare_epoch(epoch)
        trainer.train_epoch(epoch)
        assert torch.equal(network_of(trainer).quantizer.codebooks, drawn)
        assert not network_of(trainer).quantized
    trainer.prepare_epoch(2)
    assert network_of(trainer).quantized
    started = network_of(trainer).quantizer.codebooks.detach().clone()
    assert not torch.equal(started, drawn)
    trainer.train_epoch(2)
    assert not torch.equal(network_of(trainer).quantizer.codebooks, started)


# torch itself looks at gradients that are not there while it traces.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_run_learns_and_is_evaluated_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Traced as for the compiler, then run as it is: making code takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    # Adam would make full steps of rounding, where a norm leaves a bias before it no gradient.
    config = tiny_config("training.optimizer=sgd", "training.learning_rate=0.01")
    plain = make_trainer(config)
    monkeypatch.setattr("phpq.training.step.acceleration", lambda config, device: "full")
    compiled = make_trainer(config)
    assert learn(compiled, 2) == pytest.approx(learn(plain, 2), rel=1e-4)
    compiled.compile_evaluation()
    np.testing.assert_allclose(
        compiled.pixels.embed_test(compiled.evaluated_network),
        plain.pixels.embed_test(plain.evaluated_network),
        rtol=1e-3,
        atol=1e-5,
    )


def test_the_head_keeps_its_factor_through_a_real_run() -> None:
    seen: list[tuple[float, float]] = []

    class Watch(Reporter):
        def step(self, epoch: int, number: int) -> None:
            trunk, head = (group["lr"] for group in trainer.optimizer.param_groups)
            seen.append((trunk, head))

    trainer = Trainer(tiny_birds(), tiny_config(), device=CPU, reporter=Watch())
    for epoch in range(2):
        trainer.train_epoch(epoch)
    assert len({trunk for trunk, _ in seen}) > 3
    for trunk, head in seen:
        assert head == pytest.approx(3.0 * trunk, rel=1e-9)


def test_a_set_smaller_than_a_batch_is_enough(tmp_path: Path) -> None:
    config = tiny_config("training.batch_size=64", "training.epochs=1")
    tiny_train(tmp_path, config)
    assert np.isfinite(rows_of(tmp_path)[0]["loss"])


def test_half_precision_trains_on_the_cpu(tmp_path: Path) -> None:
    tiny_train(tmp_path, tiny_config("training.precision=bf16", "training.epochs=1"))
    assert np.isfinite(rows_of(tmp_path)[0]["loss"])


def test_held_out_images_are_queries_and_never_trained_on() -> None:
    trainer = make_trainer(tiny_config("data.holdout_per_class=2"))
    train, queries = trainer.pixels.train, trainer.pixels.test
    assert (len(train), len(queries)) == (16, 8)
    assert not set(train.ids) & set(queries.ids)
    assert set(train.ids) | set(queries.ids) == set(tiny_birds().train.ids)


@pytest.mark.rare
def test_streaming_gives_the_losses_of_resident_pixels(tmp_path: Path) -> None:
    for where in ("on", "off"):
        config = tiny_config("training.epochs=2", f"training.images_on_device={where}")
        tiny_train(tmp_path / where, config)
    assert_same_run(tmp_path / "on", tmp_path / "off")
