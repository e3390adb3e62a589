"""From a folder of pictures to named photographs, by the commands that a newcomer types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from command_line import phpq, refused, tiny_toml
from finished_runs import copy_run
from phpq.config import TRUNKS, RunConfig, Trunk, parse
from phpq.data import write_plumage
from phpq.model import load
from phpq.model.checkpoint import read_card
from phpq.model.weights import read_safetensors
from phpq.recipes import resolve_config
from phpq.training.choice import Cost
from tiny_runs import SIDE, tiny_birds


def test_train_evaluate_search_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_plumage(tmp_path / "birds", tiny_birds())
    tiny = tiny_toml(tmp_path)
    options = ("--config", tiny, "--epochs", "3", "--set", "training.evaluate_every=1", "--bits", 6)

    trained = phpq("train", "birds", *map(str, options))
    assert trained.code == 0, trained.err
    assert "after the last epoch (3); best" in trained.out
    assert "phpq evaluate runs/birds-6" in trained.out
    assert "backbone=test_resnet" in trained.err
    assert "nucleus_mass" not in trained.err  # as by default
    birds = tiny_birds()
    assert trained.err.startswith(
        f"birds: {len(birds.train)} training and {len(birds.test)} test images of "
    )
    assert birds.class_names[0] in trained.err.splitlines()[0]
    assert "epoch   3  MAP" in trained.err
    run = Path("runs/birds-6")
    assert read_card(run).dataset == str(tmp_path / "birds")

    measured = phpq("evaluate", run, "--json").json()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert measured["map"]["6"] == pytest.approx(rows[-1]["map"])
    assert measured["epochs"]["best"]["map"] == max(row["map"] for row in rows)
    assert measured["folder"] == "runs/birds-6/evaluation"
    assert (run / "evaluation" / "report.html").is_file()

    photo = f"birds/{tiny_birds().test.ids[0]}"
    [query] = phpq("search", run, photo, "--top-k", "3", "--json").json()["queries"]
    assert query["query"] == photo
    assert [hit["rank"] for hit in query["hits"]] == [1, 2, 3]
    assert query["verdict"]["label"] in tiny_birds().class_names
    assert all(Path(hit["uri"]).is_file() for hit in query["hits"])

    facts = phpq("info", run, "--json").json()
    assert facts["map"]["last"]["map"] == pytest.approx(measured["map"]["6"])
    assert facts["evaluation"]["map"] == measured["map"]


def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    tiny = tiny_toml(tmp_path)
    source = f"plumage:species=3,images=4,test=1,size={SIDE}"
    outcome = phpq(
        "train", source, "--config", tiny, "--epochs", "1", "--out", tmp_path / "run", "--json"
    )
    content = outcome.json()
    assert content["run"] == str(tmp_path / "run")
    assert content["epochs"] == {"done": 1, "planned": 1, "finished": True}
    assert content["map"]["last"]["epoch"] == content["map"]["best"]["epoch"] == 1


def test_a_trunk_is_trained_with_its_own_sizes_and_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name of the family whose pixels are not ImageNet's.
    tiny = Trunk("clip-test", "test_vit.r160_in1k", "apache-2.0", 0.4, 64, depth=6, side=SIDE)
    monkeypatch.setitem(TRUNKS, tiny.name, tiny)
    source = f"plumage:species=3,images=4,test=1,size={SIDE}"
    run = tmp_path / "run"
    options = ("--trunk", tiny.name, "--weights", "none", "--config", str(tiny_toml(tmp_path)))
    trained = phpq("train", source, *options, "--epochs", "1", "--out", run)
    assert trained.code == 0, trained.err
    assert "blocks=3,5" in trained.err
    config = read_card(run).config
    assert (config.model.image_size, config.data.store_size) == (SIDE, SIDE * 8 // 7)
    model = load(run, device="cpu", runtime="torch")
    assert model.network.backbone.get_buffer("mean").flatten().tolist() == pytest.approx(
        config.model.pixel_mean
    )
    assert model.general.backbone.has_token
    assert (model.embed(tiny_birds().test.read(0)) == model.embed(tiny_birds().test.read(0))).all()

    assert "names a backbone" in phpq("train", source, *options, "--backbone", "resnet18").err
    assert "goes on with its own" in phpq("train", "--resume", run, "--trunk", tiny.name).err
    assert "Unknown trunk 'dino'" in refused("train", source, "--trunk", "dino")


def test_ctrl_c_says_how_to_go_on_and_resume_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_toml(tmp_path)
    run = tmp_path / "my run"
    source = f"plumage:species=3,images=6,test=2,size={SIDE}"
    arguments = ("train", source, "--config", str(tiny), "--epochs", "3", "--out", str(run))

    from phpq.training import TerminalReporter

    normal = TerminalReporter.epoch

    def interrupt(self: TerminalReporter, row: dict[str, object]) -> None:
        if row["epoch"] == 2:
            raise KeyboardInterrupt
        normal(self, row)

    monkeypatch.setattr(TerminalReporter, "epoch", interrupt)
    stopped = phpq(*arguments)
    assert stopped.code == 130
    assert stopped.err.endswith(f"interrupted. Continue with: phpq train --resume '{run}'\n")
    monkeypatch.undo()
    resumed = phpq("train", "--resume", run)
    assert resumed.code == 0, resumed.err
    assert "after the last epoch (3)" in resumed.out
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_resuming_adds_the_general_embedding_to_a_model_that_has_none(tmp_path: Path) -> None:
    folder = load(copy_run(tmp_path / "run"), device="cpu").save(tmp_path / "model")
    made = read_safetensors(folder / "general.safetensors")[1]["fingerprint"]
    (folder / "general.safetensors").unlink()
    resumed = phpq("train", "--resume", folder)
    assert resumed.code == 0, resumed.err
    assert "fitting the general embedding" in resumed.err
    assert read_safetensors(folder / "general.safetensors")[1]["fingerprint"] == made
    assert "is finished; there is nothing to resume" in refused("train", "--resume", folder)


def test_ctrl_c_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phpq.training.train_run", interrupt)
    stopped = phpq("train", "plumage", "--out", tmp_path / "run")
    assert stopped.code == 130
    assert stopped.err.endswith("interrupted. Nothing was written yet.\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["--bits", "64"], {"quantizer": {"num_codebooks": 8}}),
        (["--epochs", "7", "--seed", "3"], {"training": {"epochs": 7, "seed": 3}}),
        (
            ["--backbone", "resnet50", "--weights", "hub"],
            {"model": {"backbone": "resnet50", "weights": "hub"}},
        ),
        (["--hold-out-classes", "0.5"], {"data": {"holdout_classes": 0.5}}),
        (["--epochs", "7", "--set", "training.epochs=9"], {"training": {"epochs": 9}}),
    ],
)
def test_options_become_settings(
    options: list[str],
    expected: dict[str, dict[str, object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[RunConfig] = []

    def stop(dataset: object, config: RunConfig, folder: Path, **_: object) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("phpq.training.train_run", stop)
    monkeypatch.setattr("phpq.training.choice.measure_choices", costs(head=1, last=2, all=3))
    assert phpq("train", "plumage", "--out", tmp_path / "run", *options).code == 130
    assert seen == [parse(expected)]


def costs(**seconds: float) -> Callable[..., dict[str, Cost]]:
    """Stand for measuring what each choice takes."""
    return lambda *_: {name: Cost(0.0, total) for name, total in seconds.items()}


@pytest.mark.parametrize(
    ("last", "everything", "expected"), [(2, 3, "all"), (599, 1e5, "head"), (2000, 1e5, "head")]
)
def test_without_a_gpu_the_best_that_ends_in_ten_minutes_is_learned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: float,
    everything: float,
    expected: str,
) -> None:
    seen: list[tuple[RunConfig, Path | None]] = []

    def stop(
        _: object, config: RunConfig, folder: Path, *, cache: Path | None, **__: object
    ) -> None:
        seen.append((config, cache))
        raise KeyboardInterrupt

    monkeypatch.setattr("phpq.training.train_run", stop)
    measured = costs(last=last, head=60, all=everything)
    monkeypatch.setattr("phpq.training.choice.measure_choices", measured)
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    stopped = phpq("train", "plumage", "--weights", "hub", "--out", tmp_path / "run")
    [(config, cache)] = seen
    assert config.training.trainable == expected
    assert config == resolve_config(
        weights="hub", settings=[f"training.trainable={expected}"] if expected != "all" else []
    )
    assert cache == (None if expected == "all" else tmp_path / "home" / "features")
    assert f"{expected} (chosen)" in stopped.err
    for name in ("--trainable", "head", "last", "all", "1.0 min"):
        assert name in stopped.err
    # Whoever names it gets it, and nothing is measured; so it is from nothing at all.
    monkeypatch.setattr("phpq.training.choice.measure_choices", None)
    for options in (("--weights", "hub", "--trainable", "last"), ("--weights", "none")):
        phpq("train", "plumage", "--out", tmp_path / "run", *options)
    # Nor is anything measured for a folder that is taken.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    phpq("train", "plumage", "--weights", "hub", "--out", tmp_path / "run")
    assert [one.training.trainable for one, _ in seen[1:]] == ["last", "all", "all"]


def test_a_frozen_backbone_from_measuring_to_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    write_plumage(tmp_path / "birds", tiny_birds())
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    options = ("--config", tiny_toml(tmp_path), "--weights", tmp_path / "w.safetensors")
    monkeypatch.setattr("phpq.training.choice.LONGEST_SECONDS", 0)  # the fastest is taken
    run = tmp_path / "run"
    trained = phpq("train", tmp_path / "birds", *options, "--out", run)
    assert trained.code == 0, trained.err
    assert "(chosen)" in trained.err
    chosen = read_card(run).config.training.trainable
    assert chosen in ("head", "last", "all")
    # Resuming keeps what was chosen.
    (run / "general.safetensors").unlink()
    assert phpq("train", "--resume", run).code == 0
    assert read_card(run).config.training.trainable == chosen

    head = tmp_path / "head"
    trained = phpq("train", tmp_path / "birds", *options, "--out", head, "--trainable", "head")
    assert trained.code == 0, trained.err
    assert any((tmp_path / "home" / "features").glob("*-head-0.*.npy"))
    assert phpq("evaluate", head, "--json").code == 0
    photo = tmp_path / "birds" / tiny_birds().test.ids[0]
    [query] = phpq("search", head, photo, "--json").json()["queries"]
    assert query["verdict"]["label"] in tiny_birds().class_names
