"""Every number of README and docs/results follows from JSON, and the check of it can fail."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from made_up_grids import cub_plan, made_up_records
from phpq.reproduce.tables import build_table

ROOT = Path(__file__).parents[1]
RESULTS = "docs/results"


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import render

    return render


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the pages and their data, to be spoiled."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / RESULTS, tmp_path / RESULTS, ignore=shutil.ignore_patterns("*.png"))
    (tmp_path / "docs/guides").mkdir()
    shutil.copy(ROOT / "docs/guides/scale.md", tmp_path / "docs/guides")
    return tmp_path


def test_every_number_follows_from_its_data(render: ModuleType) -> None:
    assert render.problems() == [], "Run: make numbers"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new, 1), "utf-8")


# In each round every file is changed once: what it says, what is written instead, what is found.
SPOILED: list[dict[str, tuple[str, str, str]]] = [
    {
        "README.md": ("**80.90**", "**81.90**", "README.md:.*table readme.headline: '.*81.90"),
        "docs/guides/scale.md": ("| 1 million | never", "| 2 million | never", "table scale."),
        f"{RESULTS}/laptop.md": ("| torch | 12.9 |", "| torch | 1.9 |", "table laptop.search"),
        f"{RESULTS}/search.md": ("| **467** |", "| **567** |", "table search.10M"),
        f"{RESULTS}/kappa-cub200.md": ("cells: ", "cells: 9", "kappa-cub200.md:"),
        f"{RESULTS}/other-sets.md": ("by 0.5 to", "by 1.5 to", "other-sets.md:.*by 0.5 to"),
        f"{RESULTS}/tau-cub200.json": ('"mean": ', '"mean": 1', "tau-.* is not of its cells"),
    },
    {
        "README.md": ("10,095 images/s", "11,095 images/s", "README.md:.*10,095"),
        f"{RESULTS}/laptop.md": ("<!-- table: laptop.search -->\n", "", "'| runtime .* no data"),
        f"{RESULTS}/search.json": ('"ours_ms": 0.0', '"ours_ms": 0.9', "search.md:.*table search"),
        f"{RESULTS}/other-sets.json": ('"commit"', '"version"', "neither commit nor source"),
        f"{RESULTS}/scale.json": ('"value": 5.2', '"value": 5.3', "cites serve_by_id_ms 5.3"),
        f"{RESULTS}/pn-curves-cub200.json": ('"5": ', '"5": 1', "pn-curves.* of no record"),
    },
    {
        "README.md": ("shows no gain", "shows a gain", "README.md: .* stands here 0 times"),
        f"{RESULTS}/laptop.md": ("table: laptop.search", "table: x", "There is no table 'x'"),
        f"{RESULTS}/carried.json": ('"source": "page', '"source": "", "x": "', "has no source"),
    },
    {"README.md": ("in milliseconds", "in 3 milliseconds", "the number 3 is of no claim")},
    {"README.md": ("Apache 2.0", "MIT", "no longer says 'Apache 2.0'")},
]


@pytest.mark.parametrize("changes", SPOILED, ids=lambda changes: changes["README.md"][2])
def test_what_is_changed_by_hand_is_found(
    render: ModuleType, copy: Path, changes: dict[str, tuple[str, str, str]]
) -> None:
    for file, (old, new, _) in changes.items():
        change(copy / file, old, new)
    found = render.problems(copy)
    for *_, said in changes.values():
        assert any(re.search(said, line) for line in found), (said, found)


def test_writing_puts_it_right(render: ModuleType, copy: Path) -> None:
    spoiled = {"README.md": "**80.90**", f"{RESULTS}/kappa-cub200.md": "epochs: 30"}
    for file, text in spoiled.items():
        change(copy / file, text, "99")
    change(copy / "README.md", "5.07 times", "9.99 times")
    assert render.write(copy) == list(spoiled)
    for file in spoiled:
        assert (copy / file).read_text("utf-8") == (ROOT / file).read_text("utf-8")


def test_every_renderer_and_every_carried_table_is_shown(render: ModuleType) -> None:
    text = "".join(page.read_text("utf-8") for page in render.pages(ROOT))
    shown = re.findall(r"<!-- table: (\S+) -->", text)
    carried = render.loader(ROOT)("carried")["tables"]
    assert set(shown) == {*render.TABLES, *carried}
    assert not set(carried) & set(render.TABLES)


def test_a_benchmark_that_was_run_takes_the_place_of_what_is_carried(
    render: ModuleType, copy: Path
) -> None:
    rates = {"decode_per_s": 690.0, "inference_per_s": 20.0, "indexing_per_s": 16.0}
    results: list[dict[str, Any]] = [
        {"backbone": "resnet18", "images": 400, "ratio": 1.25, "within_target": True, **rates}
    ]
    content = json.dumps({"made": {"commit": "abc"}, "results": results})
    (copy / RESULTS / "gallery.json").write_text(content, "utf-8")
    assert any("take gallery.indexing out of carried.json" in one for one in render.problems(copy))
    carried = copy / RESULTS / "carried.json"
    known = json.loads(carried.read_text("utf-8"))
    del known["tables"]["gallery.indexing"]
    carried.write_text(json.dumps(known), "utf-8")
    assert render.write(copy) == [f"{RESULTS}/gallery.md"]
    assert "| resnet18 | 400 | 690 | 20.0 | 16.0 | **1.25** |" in (
        copy / RESULTS / "gallery.md"
    ).read_text("utf-8")
    assert render.problems(copy) == ["scale.json: cites index_per_core 9.5, which is 8."]


def test_tables_of_a_laptop_and_of_benchmarks_that_wait_for_a_quiet_machine(
    render: ModuleType,
) -> None:
    found = {
        "start": [{"runtime": "onnx", "first_s": 1.84, "again_s": 0.66}],
        "serve": [{"runtime": "torch", "ready_s": 4.2, "pss_mb": 931.6, "uploads_per_s": 20.24}],
        "codes": [
            {
                "runtime": "int8",
                "MB": 19.2,
                "images/s": 98.04,
                "x torch": 4.512,
                "same codes %": 31.5,
                "MAP": 53.129,
            }
        ],
        "first": [{"command": "phpq train", "seconds": 80.5}, {"command": "all", "seconds": 99.7}],
        "runs": {"head": {"map": 51.25, "labelled": {"16": 77.39, "64": 76.953}}},
    }
    last = {
        name: show(lambda _: found).splitlines()[-1]
        for name, show in render.TABLES.items()
        if name.startswith("laptop.")
    }
    assert last == {
        "laptop.search": "| ONNX (the default on a CPU) | 1.8 | 0.7 |",
        "laptop.serve": "| torch | 4.2 | 932 | 20.2 |",
        "laptop.codes": "| int8 | 19 | 98.0 | 4.51 | 31.50 | 53.13 |",
        "laptop.first": "| all | 100 |",
        "laptop.whole": "| head | 51.2 | 77.4 | 77.0 |",
    }
    _, show = render.LATER["sharded.encoding"]
    content = {"results": [{"way": "local", "seconds": 66.94, "overall_per_s": 17.9}]}
    assert show(content).splitlines()[-1] == "| local | 66.9 | 17.9 |"


def test_the_readme_takes_the_headline_where_it_was_run(render: ModuleType) -> None:
    plan = cub_plan("headline", bits=(16, 32, 48, 64))
    records = made_up_records(plan, {"phpq": 70.0})
    for record in records.values():
        record |= {"map_float": 60.0, "p1_float": 65.0}
    stored = render.loader(ROOT)

    def load(name: str) -> Any:
        return build_table(plan, "headline", records) if name == "headline-cub200" else stored(name)

    lines = render.TABLES["readme.headline"](load).splitlines()
    assert lines[3:] == [
        "| **phpq, MAP** |" + " **71.00** ± 1.00 |" * 4,
        "| P@1 |" + " 71.00 |" * 4,
        "| float search over the same embeddings, MAP |" + " 60.00 |" * 4,
        "| float search, P@1 |" + " 65.00 |" * 4,
        "| the paper's article, MAP | 76.03 | 76.24 | 76.25 | 76.21 |",
    ]


def test_the_benchmark_names_the_weights_that_it_was_given(
    render: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cub200

    monkeypatch.setattr(cub200, "provenance", lambda *_, **__: {"commit": "abc"})
    weights, out = tmp_path / "mine.safetensors", tmp_path / "cub200.json"
    weights.write_bytes(b"weights")
    out.write_text('{"speed": {"rows": {}}}', "utf-8")
    options = Namespace(weights=str(weights), out=out, bits=[16, 24], seeds=[0], holdout=0, set=[])
    options.processes = 1
    cub200.write_quality(options, [{"bits": 16, "seed": 0, "map": 80.0}], 1.0)
    content = json.loads(out.read_text("utf-8"))
    digest = hashlib.sha256(b"weights").hexdigest()
    assert content["config"]["model"]["weights"] == f"mine.safetensors:{digest[:12]}"
    assert content["paper"] == {"16": 76.03, "24": None}
    assert content["speed"] == {"rows": {}}
    assert content["made"] == {"commit": "abc"}
