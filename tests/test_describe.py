from __future__ import annotations

import json
from pathlib import Path

from finished_runs import copy_run
from phpq import __version__
from phpq.api import describe_dataset, describe_run
from phpq.data import open_dataset
from phpq.machine import describe_machine
from picture_files import write_classes
from tiny_runs import tiny_birds


def test_the_machine(tmp_path: Path) -> None:
    content = describe_machine(home=tmp_path)
    assert content["phpq"] == __version__
    assert all(content["packages"].values())
    assert content["devices"][0]["name"] == "cpu"
    assert content["data_home"] == str(tmp_path)
    json.dumps(content)


def test_a_run_with_and_without_evaluation(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    content = describe_run(run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert content["epochs"] == {"done": 4, "planned": 4, "finished": True}
    assert content["map"]["last"] == {"epoch": 4, "map": rows[-1]["map"]}
    assert content["map"]["best"]["map"] == max(row["map"] for row in rows if "map" in row)
    assert content["code_health"]["distinct_codes"] == rows[-1]["distinct_codes"]
    assert content["evaluation"]["map"].keys() == {"12"}
    assert content["dataset"] == tiny_birds().source
    bare = copy_run(tmp_path / "bare", evaluated=False)
    assert describe_run(bare)["evaluation"] is None
    (bare / "metrics.jsonl").unlink()
    (bare / "weights.safetensors").unlink()
    unfinished = describe_run(bare)
    assert unfinished["map"] is None
    assert unfinished["epochs"] == {"done": 0, "planned": 4, "finished": False}


def test_a_data_set_and_its_bad_images(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"owl": 5, "wren": 3})
    (root / "owl" / "0.png").write_bytes(b"")
    (root / "wren" / "2.png").write_text("no image")
    content = describe_dataset(open_dataset(root))
    assert content["classes"] == 2
    assert content["train_images"] + content["test_images"] == 8
    assert content["smallest_class"]["name"] == "wren"
    assert content["bad_images"] is None
    seen: list[tuple[str, int, int]] = []
    checked = describe_dataset(
        open_dataset(root), check_images=True, progress=lambda *step: seen.append(step)
    )
    assert sorted(image["id"] for image in checked["bad_images"]) == ["owl/0.png", "wren/2.png"]
    assert seen[-1][1] == seen[-1][2]
