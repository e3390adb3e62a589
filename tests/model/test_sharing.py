from __future__ import annotations

import json
import re
from pathlib import Path

import huggingface_hub
import pytest

from finished_runs import copy_onnx_run, copy_run
from hub_stand_in import HubStandIn
from phpq.errors import FormatError
from phpq.model import load
from phpq.model.checkpoint import describe_chances
from phpq.model.sharing import write_model_card
from sure_galleries import sure_model


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_a_card_has_what_the_folder_knows(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text("utf-8"))
    path = write_model_card(run, licence="apache-2.0")
    assert path == run / "README.md"
    text = path.read_text("utf-8")
    head = huggingface_hub.metadata_load(path)  # as the hub reads it
    assert head is not None
    assert (head["library_name"], head["license"]) == ("phpq", "apache-2.0")
    value = head["model-index"][0]["results"][0]["metrics"][0]["value"]
    assert value == pytest.approx(metrics["map"]["12"], abs=0.01)
    assert "24 images to learn from and to search, 8 queries" in section(text, "Data and classes")
    assert "test_resnet" in section(text, "Recipe")
    assert f"| **codes** | **2** | **{metrics['map']['12']:.2f}** |" in section(text, "Results")
    assert "never saw were not measured" in section(text, "Results")
    assert "weights.safetensors" in section(text, "Size")
    assert "apache-2.0" in section(text, "Licence")
    assert "Every photo gets neighbours" in section(text, "Limits")


def test_kinds_that_were_kept_away(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    path = run / "evaluation" / "metrics.json"
    metrics = json.loads(path.read_text("utf-8"))
    score = {"protocol": "unseen@unseen", "way": "codes", "labels": "with", "bits": 64}
    others = [{**score, "protocol": "seen@all", "values": {"r1": 1.0, "map": 2.0}}]
    measured = {"scores": [{**score, "values": {"r1": 61.25, "map": 44.5}}, *others]}
    path.write_text(json.dumps({**metrics, "unseen": measured}), "utf-8")
    text = section(write_model_card(run).read_text("utf-8"), "Results")
    assert "| codes, with labels | 64 | 61.25 | 44.50 |" in text
    assert "2.00" not in text


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    bare = copy_run(tmp_path / "bare", evaluated=False)
    text = write_model_card(bare, out=tmp_path / "card.md").read_text("utf-8")
    assert not (bare / "README.md").exists()
    assert "Not measured" in section(text, "Results")
    assert "license:" not in text
    assert "Not stated" in section(text, "Licence")


def test_how_likely_answers_are_is_on_the_card(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run", evaluated=False)
    assert "phpq gallery calibrate" in write_model_card(run).read_text("utf-8")
    sure_model(run, 0)
    text = section(write_model_card(run).read_text("utf-8"), "Results")
    assert "fitted to 100 images that it did not learn from" in text
    assert "50% of the photos of its classes get their name" in text


def test_results_of_other_weights_are_left_out(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    path = run / "evaluation" / "metrics.json"
    metrics = json.loads(path.read_text("utf-8"))
    metrics["model"]["fingerprint"] = "trained again since"
    path.write_text(json.dumps(metrics), "utf-8")
    assert "Not measured" in write_model_card(run).read_text("utf-8")


@pytest.mark.parametrize(
    "dataset", ["/home/someone/birds/", r"C:\Users\someone\birds", "birds:of=someone"]
)
def test_where_the_images_lie_is_not_told_and_a_trunk_brings_its_terms(
    tmp_path: Path, dataset: str
) -> None:
    run = copy_run(tmp_path / "run")
    content = json.loads((run / "config.json").read_text("utf-8"))
    content["dataset"] = dataset
    content["config"]["model"]["backbone"] = "convnextv2_tiny.fcmae_ft_in22k_in1k"
    (run / "config.json").write_text(json.dumps(content), "utf-8")
    text = write_model_card(run).read_text("utf-8")
    assert "# birds, 12 bits" in text
    assert "someone" not in text
    assert "no commercial use" in section(text, "Licence")


@pytest.mark.slow  # writes ONNX files first
def test_a_model_goes_to_the_hub_and_comes_back_also_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    sure_model(copy_onnx_run(tmp_path / "run"), 0)
    model = load(tmp_path / "run")
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        model.push_to_hub("owner/birds", private=True, licence="mit")
        assert hub.private == {"owner/birds": True}
        stored = hub.files["owner/birds"]
        assert {"README.md", "config.json", "weights.safetensors", "encoder.onnx"} <= set(stored)
        text = stored["README.md"].decode()
        assert 'phpq.load("owner/birds")' in text
        assert "| **codes** |" in text
        fetched = load("owner/birds")
        assert fetched.fingerprint() == model.fingerprint()
        assert fetched.folder is not None
        assert describe_chances(fetched.folder)["known"] is True
        with pytest.raises(FormatError, match="neither a folder nor a model"):
            load("owner/nothing")
        hub.asked.clear()
    # Nothing answers at that address any more.
    again = load("owner/birds")
    assert again.fingerprint() == model.fingerprint()
    assert hub.asked == []
