from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from finished_runs import copy_run
from phpq import api
from phpq.config import RunConfig
from phpq.data import plumage
from phpq.errors import ConfigError, DataError
from phpq.model import load
from phpq.model.checkpoint import read_card
from phpq.training import Reporter
from picture_files import write_classes
from tiny_runs import SIDE, tiny_birds, tiny_config


def test_train_writes_the_default_folder_and_knows_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_config("training.epochs=1")
    model = api.train(f"plumage:species=4,images=4,test=2,size={SIDE}", bits=6, config=config)
    run = tmp_path / "runs" / "plumage-6"
    assert model.bits == 6
    assert read_card(run).dataset == f"plumage:species=4,images=4,test=2,size={SIDE},seed=0"
    images = tiny_birds().test
    assert np.array_equal(load(run).encode(images), model.encode(images))
    # The card alone is enough to find the data set again.
    assert api.evaluate("runs/plumage-6").codes.gallery == 16


def test_a_source_can_be_opened_again_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "birds", {"a": 3, "b": 3})
    monkeypatch.chdir(tmp_path)
    opened = [api.as_dataset(spec) for spec in ("birds", Path("birds"), "folder:birds")]
    drawn = plumage(3, 2, test_per_species=1, size=SIDE, seed=7)
    monkeypatch.chdir("/")
    assert [dataset.source for dataset in opened] == [
        str(tmp_path / "birds"),
        str(tmp_path / "birds"),
        f"folder:{tmp_path / 'birds'}",
    ]
    for dataset in (*opened, drawn):
        again = api.open_origin(dataset.source)
        assert (again.train.ids, again.test.ids) == (dataset.train.ids, dataset.test.ids)
        assert again.class_names == dataset.class_names


def test_photographs_start_from_the_hub_and_drawings_from_nothing(tmp_path: Path) -> None:
    photographs = api.as_dataset(write_classes(tmp_path / "birds", {"a": 3, "b": 3}))
    config = api.open_run(photographs).config
    assert config.model.weights == "hub"
    assert api.open_run(plumage(2, 2)).config.model.weights == "none"
    assert replace(config, model=RunConfig().model) == RunConfig()
    assert api.default_folder(photographs, RunConfig()) == Path("runs/birds-32")


def test_a_weights_file_is_kept_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(
        "phpq.training.train_run", lambda data, config, folder, **rest: seen.append(config)
    )
    monkeypatch.chdir(tmp_path)
    api.train(tiny_birds(), config=tiny_config("model.weights=w.safetensors"))
    assert seen[0].model.weights == str(tmp_path / "w.safetensors")


def test_resume_goes_on_with_the_run_s_own_settings_and_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = tiny_config("training.epochs=2")

    class Stop(Exception):
        pass

    class StopAfterOne(Reporter):
        def epoch(self, row: dict[str, object]) -> None:
            if row["epoch"] == 2:
                raise Stop

    with pytest.raises(Stop):
        api.train(tiny_birds(), out=run, config=config, reporter=StopAfterOne())
    model = api.train(out=run, resume=True)
    assert model.epochs == 2
    assert model.card.config == config
    with pytest.raises(ConfigError, match="is finished"):
        api.train(out=run, resume=True)


def test_resume_refuses_other_data(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    with pytest.raises(DataError, match=r"learned 4 classes; 'plumage' has 5"):
        api.train(plumage(5, 2, size=SIDE), out=run, resume=True)


def test_a_run_that_held_classes_out_resumes_on_the_whole_data_set(tmp_path: Path) -> None:
    config = tiny_config("data.holdout_classes=0.25", "training.epochs=1")
    api.train(tiny_birds(), out=tmp_path / "run", config=config)
    assert read_card(tmp_path / "run").class_names == tiny_birds().class_names[:3]
    with pytest.raises(ConfigError, match="is finished"):  # its classes are those that it learned
        api.train(out=tmp_path / "run", resume=True)
    with pytest.raises(DataError, match=r"learned 3 classes; 'plumage' has 6"):
        api.train(plumage(8, 2, size=SIDE), out=tmp_path / "run", resume=True)


def test_features_before_training_are_measured_where_their_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.evaluation.run.UNSEEN_BITS", (16,))
    torch.manual_seed(1)
    weights = timm.create_model("test_resnet").state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    settings = (f"model.weights={tmp_path / 'w.safetensors'}", "training.epochs=1")
    model = api.train(
        tiny_birds(),
        out=tmp_path / "run",
        config=tiny_config("data.holdout_classes=0.5", *settings),
    )
    found = api.evaluate(tmp_path / "run").unseen
    assert found is not None
    assert found.find("unseen", "frozen features, float", "without") is not None
    (tmp_path / "w.safetensors").unlink()
    without = api.evaluate(model, tiny_birds()).unseen
    assert without is not None
    assert without.find("unseen", "frozen features, float", "without") is None
    assert any(reason.startswith("frozen features: the weights") for reason in without.left_out)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data set to train on"):
        api.train()
    with pytest.raises(ConfigError, match="Say which with out=FOLDER"):
        api.train(resume=True)
    with pytest.raises(ConfigError, match=r"no run to resume in .*it has no config.json"):
        api.train(out=tmp_path, resume=True)
    with pytest.raises(DataError, match=r"learned on cannot be opened.*gone.*giving SOURCE"):
        api.open_origin(str(tmp_path / "gone"))


def test_evaluate_takes_a_run_or_a_model(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    of_run = api.evaluate(run)
    assert of_run.folder == run / "evaluation"
    assert of_run.epochs is not None
    assert of_run.epochs.last.epoch == 4
    assert of_run.codes.map_percent == pytest.approx(of_run.epochs.last.map)

    model = load(run)
    alone = api.evaluate(model, tiny_birds())
    assert (alone.folder, alone.epochs) == (None, None)
    assert alone.codes == of_run.codes
    elsewhere = api.evaluate(model, out=tmp_path / "a" / "b")
    content = json.loads((tmp_path / "a" / "b" / "metrics.json").read_text("utf-8"))
    assert content["map"] == {"12": elsewhere.codes.map_percent}
