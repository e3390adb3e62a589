"""Two and four processes learn what one learns, and leave the files that one leaves."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch

import process_groups
from phpq.config import RunConfig
from phpq.errors import ConfigError, PhpqError
from phpq.evaluation.history import read_rows
from phpq.model import load
from phpq.model.weights import read_safetensors
from phpq.training.distributed import ALONE, Group, PeerError
from process_groups import together
from tiny_runs import tiny_config, tiny_train


def member(rank: int, size: int) -> Group:
    return Group(rank, size)


# Plain descent: Adam turns the rounding of a gradient that is zero, as of a bias before a batch
# norm, into steps of full length.
def settings(method: str, *assignments: str) -> RunConfig:
    bits = () if method == "phpq" else ("quantizer.codebook_size=256",)
    name = f"method.name={method}"
    return tiny_config(name, "training.optimizer=sgd", *bits, *assignments)


RUNS = {
    "phpq": settings("phpq", "training.epochs=3", "training.codebook_epoch=1"),
    "dpsh": settings("dpsh", "training.epochs=3"),
    "orthohash": settings("orthohash", "training.epochs=3", "training.ema_decay=0"),
}


def losses(folder: Path) -> torch.Tensor:
    """Return every number of metrics.jsonl that does not measure time."""
    rows = read_rows(folder)
    names = [name for name in rows[0] if name not in ("seconds", "images_per_second")]
    return torch.tensor([[float(row[name]) for name in names] for row in rows])


def assert_same_weights(first: Path, second: Path) -> None:
    one, _ = read_safetensors(first)
    other, _ = read_safetensors(second)
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-2, atol=2e-3, msg=key)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for name, config in RUNS.items():
        tiny_train(folder / name, config)
    return folder


@pytest.mark.parametrize(
    "size",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.rare)],
)
def test_processes_have_the_loss_curve_and_the_weights_of_one(
    alone: Path, tmp_path: Path, size: int
) -> None:
    assert together(size, process_groups.train, RUNS, tmp_path) == [0] * size
    for name in RUNS:
        torch.testing.assert_close(
            losses(tmp_path / name), losses(alone / name), rtol=5e-3, atol=1e-3
        )
        files = sorted(path.name for path in (alone / name).iterdir())
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == files
        weights = tmp_path / name / "weights.safetensors"
        assert_same_weights(alone / name / "weights.safetensors", weights)
        # Every process ends with the same model to the bit, of plain modules that load anywhere.
        written = load(tmp_path / name, device="cpu", runtime="torch").network.state_dict()
        for rank in range(size):
            own, _ = read_safetensors(tmp_path / f"{name}-{rank}.safetensors")
            assert own.keys() == written.keys()
            assert all(torch.equal(own[key], written[key]) for key in own), (name, rank)


@pytest.mark.rare  # the weights after some steps are compared above
def test_gradients_are_those_of_one_process_in_float64(tmp_path: Path) -> None:
    configs = {
        "phpq": settings("phpq"),
        "before_codebooks": settings("phpq", "training.codebook_epoch=1"),  # unused parameters
        "dpsh": settings("dpsh"),  # a buffer of all outputs
        "orthohash": settings("orthohash"),  # batch norm on codes
        "cfh": settings("cfh"),  # batch norm within the loss
        "exchnet": settings("exchnet"),  # several tensors, and sums over classes
    }
    for size in (1, 2, 4):
        codes = together(size, process_groups.gradients, configs, tmp_path)
        assert codes == [0] * size
    one, _ = read_safetensors(tmp_path / "1.safetensors")
    for size in (2, 4):
        other, _ = read_safetensors(tmp_path / f"{size}.safetensors")
        assert other.keys() == one.keys()
        for key, value in one.items():
            torch.testing.assert_close(other[key], value, rtol=1e-6, atol=1e-9, msg=f"{size} {key}")
    unused = "quantizer.codebooks"
    assert f"phpq.0.{unused}" in one
    assert f"before_codebooks.0.{unused}" not in one


@pytest.mark.slow
def test_a_run_of_two_is_resumed_by_one_and_by_four(alone: Path, tmp_path: Path) -> None:
    config = RUNS["dpsh"]
    stopped = tmp_path / "stopped" / "dpsh"
    assert together(2, process_groups.train_until, config, stopped, 2) == [0, 0]
    names = {path.name for path in stopped.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "state.safetensors", "weights.safetensors"}
    for size in (1, 4):
        folder = tmp_path / str(size)
        shutil.copytree(stopped.parent, folder)
        if size == 1:
            tiny_train(folder / "dpsh", config, resume=True)
        else:
            runs = {"dpsh": config}
            assert together(size, process_groups.train, runs, folder, True) == [0] * size
        torch.testing.assert_close(
            losses(folder / "dpsh"), losses(alone / "dpsh"), rtol=5e-3, atol=1e-3
        )
        weights = folder / "dpsh" / "weights.safetensors"
        assert_same_weights(alone / "dpsh" / "weights.safetensors", weights)


@pytest.mark.slow
def test_what_is_exchanged(tmp_path: Path) -> None:
    assert together(3, process_groups.exchange, tmp_path / "found") == [0, 0, 0]
    for rank in range(3):
        found, _ = read_safetensors(tmp_path / f"found.{rank}")
        for count in (1, 3, 8):
            rows = torch.arange(float(count))
            assert torch.equal(found[f"rows.{count}"], torch.stack([rows, rows + 0.5], 1))
        assert found["gather"].tolist() == [[float(r)] * 3 for r in (0, 0, 1, 1, 2, 2)]
        assert found["bytes"].tolist() == [0, 1, 2]
        assert set(found["sum"].flatten().tolist()) == {3.0}
        assert set(found["broadcast"].tolist()) == {0.0}
        assert set(found["from_last"].flatten().tolist()) == {2.0}
        assert found["texts"].tolist() == [0, 1, 2]
        assert found["every"].tolist() == [True, False]


@pytest.mark.slow
def test_the_first_that_fails_reports_for_all(tmp_path: Path) -> None:
    assert together(3, process_groups.report, tmp_path) == [0, 0, 0]
    [said] = tmp_path.iterdir()
    assert said.name in ("1", "2")  # the first process waits for a message of another


def test_a_failure_of_the_first_is_a_failure_of_all(tmp_path: Path) -> None:
    assert together(2, process_groups.fail_together, tmp_path) == [0, 0]
    assert (tmp_path / "0").read_text() == "ConfigError: no"
    assert (tmp_path / "1").read_text().startswith("PeerError: ")
    assert issubclass(PeerError, PhpqError)


def test_a_process_that_dies_does_not_leave_the_others_waiting() -> None:
    codes = together(2, process_groups.die_alone)
    assert codes[1] == 7
    assert codes[0] not in (0, -9)  # it failed by itself: the test did not have to kill it


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_make_up_the_batch(size: int) -> None:
    batch = list(range(8))
    parts = [batch[member(rank, size).batch_slice(8)] for rank in range(size)]
    assert list(itertools.chain(*parts)) == batch
    assert {len(part) for part in parts} == {8 // size}


def test_an_indivisible_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_size=10 cannot be shared equally by 4"):
        member(0, 4).batch_slice(10)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_every_process_has_rows(count: int) -> None:
    for rank in range(4):
        rows = range(count)[member(rank, 4).rows(count)]
        assert 1 <= len(rows) <= -(-count // 4)


def test_a_group_of_one_exchanges_nothing() -> None:
    values = torch.arange(6.0).view(3, 2)
    assert ALONE.gather(values) is values
    assert ALONE.gather_rows(values, 3) is values
    assert ALONE.sum(values) is values
    assert ALONE.gather_objects("all") == ["all"]
    ALONE.broadcast([values])
    assert ALONE.every(True)
    assert not ALONE.every(False)
    assert ALONE.first
    assert not ALONE.sharded
    with pytest.raises(ConfigError, match="no"):
        ALONE.on_first(process_groups.refuse)


def test_one_device_does_not_serve_several_processes() -> None:
    with pytest.raises(ConfigError, match="does not serve several"):
        member(0, 2).join("meta")
