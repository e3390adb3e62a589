from __future__ import annotations

from pathlib import Path

from command_line import phpq
from finished_runs import copy_run
from phpq import __version__
from phpq.config import TERMS, TRUNKS
from picture_files import write_classes


def test_the_machine() -> None:
    assert phpq("info", "--json").json()["phpq"] == __version__
    shown = phpq("info").out
    assert "torch" in shown
    assert "cpu" in shown


def test_a_run(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    shown = phpq("info", run).out
    content = phpq("info", run, "--json").json()
    last, best = content["map"]["last"], content["map"]["best"]
    assert f"{last['map']:.2f} last (epoch 4), {best['map']:.2f} best" in shown
    assert "4 of 4, finished" in shown
    assert "dead codewords" in shown.replace("\n", " ")
    assert "backbone=test_resnet" in shown
    (run / "metrics.jsonl").unlink()
    assert "0 of 4" in phpq("info", run).out


def test_a_data_set(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"owl": 5, "wren": 3})
    (root / "owl" / "0.png").write_bytes(b"")
    shown = phpq("info", root).out
    assert "wren: 2 training images" in shown
    assert "--check-images" in shown
    assert "0 bytes" in phpq("info", root, "--check-images").out
    content = phpq("info", root, "--check-images", "--json").json()
    assert [image["id"] for image in content["bad_images"]] == ["owl/0.png"]


def test_trunks_with_their_licences_and_sizes() -> None:
    rows = phpq("info", "--trunks", "--json").json()["trunks"]
    assert [row["name"] for row in rows] == list(TRUNKS)
    small = next(row for row in rows if row["name"] == "dinov3-small")
    assert small["licence"] == "dinov3-license"
    assert "Meta" in small["terms"]
    assert (small["megabytes"], small["pixels"], small["dim"]) == (86, 256, 384)
    shown = phpq("info", "--trunks").out
    assert all(name in shown for name in TRUNKS)
    assert all(text in shown for text in TERMS.values())
    assert phpq("info", "birds", "--trunks").code == 2
