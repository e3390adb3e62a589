from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from command_line import phpq, tiny_toml
from finished_runs import copy_run
from phpq.data import write_plumage
from tiny_runs import tiny_birds, tiny_config, tiny_train


def test_the_table_names_the_three_ways_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = copy_run(tmp_path / "run", evaluated=False)
    outcome = phpq("evaluate", run, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text("utf-8"))
    for name in ("PHPQ codes", "float search", "post-hoc PQ"):
        assert name in outcome.out
    for score in (metrics["map"]["12"], metrics["map_float"], metrics["map_pq"]):
        assert f"{score:.2f}" in outcome.out
    assert "after the last epoch (4); best" in outcome.out
    assert "report.html" in outcome.out
    assert "served" in outcome.out  # a narrow terminal breaks the heading
    assert "…" not in outcome.out  # and cuts nothing off
    assert f"{metrics['scores']['codes']['precision_at_1_served']:.2f}" in outcome.out
    assert not (run / "evaluation").exists()
    lowest, highest = metrics["scores"]["codes"]["map_range"]
    assert f"MAP from {lowest:.2f} to {highest:.2f}" in outcome.out


def test_another_source_and_its_bad_images(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    birds = write_plumage(tmp_path / "birds", tiny_birds())
    for name in tiny_birds().train.ids[1:13]:
        (birds / name).write_text("no image")
    outcome = phpq("evaluate", run, birds, "--json")
    content = outcome.json()
    assert content["dataset"] == "birds"
    assert len(content["skipped"]) == 12
    assert outcome.err.count("left out: Cannot read the image") == 10
    assert "... and 2 more" in outcome.err


def test_new_kinds_have_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.evaluation.run.UNSEEN_BITS", (16,))
    tiny_train(tmp_path / "run", tiny_config("data.holdout_classes=0.5", "training.epochs=1"))
    (tmp_path / "run" / "general.safetensors").unlink()  # as in runs of version 0.1.0
    outcome = phpq("evaluate", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    metrics = json.loads((tmp_path / "run" / "evaluation" / "metrics.json").read_text("utf-8"))
    assert "New kinds" in outcome.out
    assert f"{metrics['unseen']['labelled']['16']['all_map']:.2f}" in outcome.out
    assert "with labels" in " ".join(outcome.out.split())
    assert "the general embedding: this model has none" in " ".join(outcome.out.split())


def test_a_folder_that_has_changed_since_training_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    birds = write_plumage(tmp_path / "birds", tiny_birds())
    options = ("--config", tiny_toml(tmp_path), "--epochs", "1", "--out", "run")
    assert phpq("train", birds, *options).code == 0
    assert "has changed" not in phpq("evaluate", "run").err
    for side in ("train", "test"):
        folder = min((birds / side).iterdir())
        shutil.copytree(folder, birds / side / "another")
    assert "has changed since training" in phpq("evaluate", "run").err
