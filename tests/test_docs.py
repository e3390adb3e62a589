"""The documents speak of what exists: commands, options, names, files; README examples run."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
import typer

import phpq
from command_line import phpq as run_phpq
from phpq.cli import COMMANDS, app
from tiny_runs import tiny_birds, tiny_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# The examples are run at a size that fits a test: what is added to `phpq train`.
SMALL = {
    "--weights": "none",
    "--backbone": "test_resnet",
    "--epochs": "1",
    "--set": [
        "data.store_size=32",
        "data.crop_size=32",
        "data.eval_size=32",
        "training.onnx=false",
    ],
}
# Why a command line of the README is not run here. A new one is run, or gets a reason.
NOT_RUN = {
    "phpq demo": "tests/demo",
    "phpq compare": "learns: tests/compare",
    "phpq serve": "runs until it is stopped: tests/cli/test_serve.py",
    "phpq train birds/ --method": "tests/methods/test_contract.py trains every method",
    "phpq reproduce": "needs the images of a benchmark: tests/cli/test_reproduce.py",
    "--ray": "needs a cluster: tests/cluster, tests/serve/shards",
}


def _blocks(page: Path, language: str) -> list[str]:
    # All blocks are matched, or the end of one in another language would look like a beginning.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    return [text for found, text in blocks if found == language]


def _commands(page: Path) -> list[list[str]]:
    lines = [line for block in _blocks(page, "") for line in block.splitlines()]
    calls = []
    for line in lines:
        for part in re.split(r"&&", line.split("#")[0]):
            words = shlex.split(part)
            if words[:2] == ["uv", "run"]:
                words = words[2:]
            if words and words[0] == "phpq":
                calls.append(words[1:])
    return calls


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder that has what the examples name: `birds/`, `photo.jpg`, `families.csv`."""
    images = tiny_birds().train
    for row, name in enumerate(images.ids):
        folder = tmp_path / "birds" / images.class_names[images.labels[row]]
        folder.mkdir(parents=True, exist_ok=True)
        images.read(row).save(folder / f"{Path(name).name}.png")
    for row, name in enumerate(("photo.jpg", "other.jpg", "a.jpg", "b.jpg")):
        images.read(row).save(tmp_path / name)
    lines = [f"{name},family {number % 2}\n" for number, name in enumerate(images.class_names)]
    (tmp_path / "families.csv").write_text("".join(lines), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_lines_of_the_readme_run(birds: Path) -> None:
    """In their order, as a newcomer types them."""
    ran = []
    for words in _commands(ROOT / "README.md"):
        line = shlex.join(["phpq", *words])
        if any(line.startswith(start) or f" {start} " in line for start in NOT_RUN):
            continue
        if words[0] == "train":
            for option, values in SMALL.items():
                for value in [values] if isinstance(values, str) else values:
                    words += [option, value]
        outcome = run_phpq(*words)
        assert outcome.code == 0, (line, outcome.err)
        ran.append(words[0])
    assert {"train", "evaluate", "index", "search", "export"} <= set(ran)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_python_examples_run(
    page: str, birds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config("quantizer.codebook_size=256", "training.epochs=1")
    monkeypatch.setattr(phpq, "train", functools.partial(phpq.train, config=config))
    blocks = _blocks(ROOT / page, "python")
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})


def test_a_command_that_is_not_run_has_a_reason_that_is_needed() -> None:
    lines = [shlex.join(["phpq", *words]) for words in _commands(ROOT / "README.md")]
    for start in NOT_RUN:
        assert any(line.startswith(start) or f" {start} " in line for line in lines), start


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_parse_and_use_public_names(page: Path) -> None:
    for block in _blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "phpq":
                    assert node.attr in phpq.__all__
                if node.value.id == "model":
                    assert hasattr(phpq.Model, node.attr) or node.attr == "codebooks"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    group = typer.main.get_command(app)
    for words in _commands(page):
        assert words[0] in COMMANDS, f"phpq {words[0]}"
        command = group.get_command(None, words[0])  # type: ignore[attr-defined]
        if words[1:2] and words[1] in getattr(command, "commands", {}):
            command = command.commands[words[1]]
        known = {name for parameter in command.params for name in parameter.opts}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= known, f"phpq {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_command_is_in_the_readme_or_the_quickstart() -> None:
    named = {words[0] for page in PAGES for words in _commands(page)}
    assert set(COMMANDS) == named


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_help_names_every_command() -> None:
    outcome = run_phpq("--help")
    assert all(name in outcome.out for name in COMMANDS)
