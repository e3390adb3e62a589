"""The quick demo, run once: every figure is the one that the runs it kept give again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phpq
from phpq.codes import normalise_sub_vectors
from phpq.config import RunConfig
from phpq.data import Dataset, open_dataset
from phpq.demo import BITS, QUICK, DemoResult, run_demo
from phpq.demo import run as module
from phpq.demo.run import learning_beside
from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes, evaluate_float
from phpq.evaluation.search import evaluate_pq
from phpq.model import Model
from phpq.training import Reporter, train_run

pytestmark = pytest.mark.slow  # two trainings


class Heard(Reporter):
    """Keeps what the epochs of all runs said, and which runs learned in this process."""

    def __init__(self) -> None:
        self.epochs: list[tuple[int, float]] = []
        self.learned: list[str] = []

    def epoch(self, row: dict[str, Any]) -> None:
        self.epochs.append((row["epoch"], row["loss"]))

    def train(self, dataset: Dataset, config: RunConfig, folder: Path, **options: Any) -> Model:
        self.learned.append(folder.name)
        return train_run(dataset, config, folder, **options)


def quick_demo(folder: Path, heard: Heard) -> DemoResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train_run", heard.train)
        return run_demo(folder, seed=5, quick=True, reporter=heard)


@pytest.fixture(scope="module")
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, heard: Heard) -> DemoResult:
    return quick_demo(tmp_path_factory.mktemp("demo") / "out", heard)


@pytest.fixture(scope="module")
def metrics(result: DemoResult) -> dict[str, Any]:
    content = json.loads((result.folder / "metrics.json").read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def test_metrics_say_what_was_measured(result: DemoResult, metrics: dict[str, Any]) -> None:
    assert metrics == json.loads(json.dumps(result.to_dict()))
    assert set(metrics["map"]) == {"16", "32"}
    assert all(0 < value <= 100 for value in metrics["map"].values())
    assert metrics["map_float"] == metrics["map_float_by_bits"]["32"]
    assert metrics["map_pq"] == metrics["map_pq_by_bits"]["32"]
    assert metrics["quick"] is True
    assert metrics["seed"] == 5


@pytest.mark.parametrize("bits", BITS)
def test_the_kept_runs_give_the_same_figures(
    result: DemoResult, metrics: dict[str, Any], bits: int
) -> None:
    """One model, one set of embeddings, several ways to search them."""
    model = phpq.load(result.folder / "runs" / str(bits), device="cpu")
    assert model.bits == bits
    birds = open_dataset(model.card.dataset)  # from the card alone, with the seed
    gallery = LabelledEmbeddings(model.embed(birds.train), birds.train.labels)
    queries = LabelledEmbeddings(model.embed(birds.test), birds.test.labels)
    codes = model.codebooks.encode(gallery.embeddings)
    books = bits // 8
    learned = evaluate_codes(queries, codes, gallery.labels, model.codebooks)
    exhaustive = evaluate_float(queries, gallery, sub_vectors=books)
    units, rows = (
        LabelledEmbeddings(normalise_sub_vectors(one.embeddings, books), one.labels)
        for one in (queries, gallery)
    )
    fitted = evaluate_pq(units, rows, num_codebooks=books)
    assert metrics["map"][str(bits)] == pytest.approx(learned.map_percent)
    assert metrics["map_float_by_bits"][str(bits)] == pytest.approx(exhaustive.map_percent)
    assert metrics["map_pq_by_bits"][str(bits)] == pytest.approx(fitted.map_percent)


def test_queries_are_the_test_images(result: DemoResult) -> None:
    birds = QUICK.draw(5)
    files = sorted((result.folder / "queries").iterdir())
    assert [path.stem for path in files] == sorted(birds.class_names)
    from PIL import Image

    label = birds.class_names.index(files[0].stem)
    first = int(np.flatnonzero(birds.test.labels == label)[0])
    assert np.array_equal(np.asarray(Image.open(files[0])), np.asarray(birds.test.read(first)))


def test_the_report_stands_alone_and_says_that_it_was_quick(result: DemoResult) -> None:
    text = (result.folder / "report.html").read_text("utf-8")
    assert "A QUICK RUN" in text
    assert f"{result.longest.codes.map_percent:.1f}" in text
    assert "http://" not in text
    assert "https://" not in text
    assert 'src="data:image/png;base64,' in text


def test_one_of_the_two_runs_learns_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: DemoResult, heard: Heard
) -> None:
    """Where it cannot, it learns here: the same weights, to the bit, and reported alike."""
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    alone = Heard()
    again = quick_demo(tmp_path / "demo", alone)
    assert heard.learned == ["16"]
    assert alone.learned == ["16", "32"]
    assert heard.epochs == alone.epochs
    for bits in BITS:
        assert result.evaluations[bits].fingerprint == again.evaluations[bits].fingerprint


def test_the_other_process_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    with learning_beside(tmp_path / "run", 16, seed=0, quick=False) as other:
        assert other.stdin is not None
        other.stdin.close()  # as when this process is killed
        assert other.wait() != 0
    with learning_beside(tmp_path / "run", 16, seed=0, quick=False) as other:
        pass
    assert other.returncode != 0
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_nothing_else_is_left(result: DemoResult) -> None:
    names = {path.name for path in result.folder.iterdir()}
    assert names == {"runs", "queries", "report.html", "metrics.json"}


def test_a_crash_leaves_the_earlier_demo_and_the_threads(
    result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError("the power failed")

    before = {path: path.stat().st_mtime_ns for path in result.folder.rglob("*") if path.is_file()}
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(module, "train_run", crash)
        with pytest.raises(RuntimeError, match="the power failed"):
            run_demo(result.folder, quick=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    after = {path: path.stat().st_mtime_ns for path in result.folder.rglob("*") if path.is_file()}
    assert after == before


def test_commands_name_files_that_exist(result: DemoResult) -> None:
    search, info, _ = (command.split() for command, _ in result.commands())
    assert search[:2] == ["phpq", "search"]
    assert (Path(search[2]) / "evaluation" / "gallery.npz").is_file()
    assert Path(search[3]).is_file()
    assert Path(info[2]).is_dir()
