"""The documents speak of what exists: commands, options, names, files; README examples run."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import phpq
from command_line import phpq as run_phpq
from finished_runs import copy_onnx_run
from phpq.cli import COMMANDS, app
from tiny_runs import tiny_birds, tiny_config, tiny_train

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Written when the site is built: scripts/site_pages.py, see test_site.py.
GENERATED = (
    *("changelog.md", "troubleshooting.md", "decisions/index.md"),
    *("reference/cli.md", "reference/http.md"),
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

# The examples are run at a size that fits a test: what is added to `phpq train`.
SMALL = {
    "--weights": "none",
    "--backbone": "test_resnet",
    "--trainable": "all",
    "--set": [
        "data.store_size=32",
        "data.crop_size=32",
        "data.eval_size=32",
        "model.embedding_dim=128",
        "training.epochs=1",
        "training.onnx=false",
    ],
}
# Why a line is not run here: what it contains, and where else it is tried.
NOT_RUN = {
    "pip install": "installs, and needs a network: .ci/run does it",
    "git clone": "needs the network",
    "make": "would run these tests again",
    "pytest": "would run these tests again",
    "python benchmarks/": "measures, for minutes",
    "torchrun": "several processes: tests/cli/test_launch.py",
    "phpq demo": "tests/demo",
    "phpq compare": "learns: tests/compare",
    "phpq serve": "runs until it is stopped: tests/cli/test_serve.py",
    "phpq audit birds.gallery --page": "runs until it is stopped: tests/cli/test_audit.py",
    "phpq audit birds.gallery --undo": "needs a decision: tests/cli/test_audit.py",
    "--method": "tests/methods/test_contract.py trains every method",
    "phpq reproduce": "trains a grid: tests/cli/test_reproduce.py",
    "phpq download": "needs the network: tests/cli/test_download.py",
    "cub200": "needs the images of a benchmark: tests/data/test_sources.py",
    "dogs120": "the same",
    "--trunk": "needs weights from the network: tests/model/test_backbone.py",
    "--ray": "needs a cluster: tests/cluster, tests/serve/test_ray_shards.py",
    "phpq gallery calibrate": "needs a hundred labelled photos: tests/cli/test_gallery.py",
    "ray_engine": "needs a cluster: tests/cluster/test_encoding.py",
    "    for hit in client.search(": "needs a server: tests/test_client.py",
    "--model owner/birds": "needs the hub: the same",
    "push_to_hub": "needs the hub: tests/model/test_sharing.py has a stand-in",
}


def _reason(text: str) -> str | None:
    return next((why for part, why in NOT_RUN.items() if part in text), None)


def _steps(page: Path) -> list[tuple[str, str]]:
    """Return what a page tells to do, in order: ("python", block), ("toml", block), ("", line)."""
    steps = []
    for language, text in re.findall(
        r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language in ("python", "toml"):
            steps.append((language, text))
        elif language == "":
            parts = [part for line in text.splitlines() for part in line.split("#")[0].split("&&")]
            steps += [("", part.strip()) for part in parts if part.strip() not in ("", "cd phpq")]
    return steps


def _blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in _steps(page) if found == language]


def _commands(page: Path) -> list[list[str]]:
    calls = [shlex.split(line) for line in _blocks(page, "")]
    calls = [words[2:] if words[:2] == ["uv", "run"] else words for words in calls]
    return [words[1:] for words in calls if words[0] == "phpq"]


BIRDS = ("gull", "owl", "tit", "wren")
MUSHROOMS = ("bay bolete", "cep", "chanterelle", "morel")


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder that has what the examples name: `birds/`, `photo.jpg`, `families.csv`."""
    images = tiny_birds().train
    for folder, names in {"birds": BIRDS, "mushrooms": MUSHROOMS}.items():
        counts = dict.fromkeys(names, 12)
        for row in range(len(images)):
            name = names[images.labels[row]]
            counts[name] += 1
            path = tmp_path / folder / name / f"{counts[name]}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            images.read(row).save(path)
    photos = ("photo", "other", "a", "b", "one", "two", "mushrooms/17", "left", "right")
    for row, name in enumerate(photos):
        images.read(row).save(tmp_path / f"{name}.jpg")
    images.read(0).resize((400, 400)).save(tmp_path / "garden.jpg")  # a box of the guide is inside
    for table, names in {"families.csv": BIRDS, "genera.csv": MUSHROOMS}.items():
        lines = [f"{name},family {number % 2}\n" for number, name in enumerate(names)]
        (tmp_path / table).write_text("".join(lines), "utf-8")
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run_line(line: str) -> None:
    words = shlex.split(line.removeprefix("uv run "))[1:]
    if words[0] == "train":
        shutil.rmtree(
            words[words.index("--out") + 1] if "--out" in words else "runs/birds-32", True
        )
        for option, values in SMALL.items():
            if option in words and option != "--set":
                continue
            for value in [values] if isinstance(values, str) else values:
                words += [option, value]
    outcome = run_phpq(*words)
    assert outcome.code == 0, (line, outcome.err)


@pytest.mark.slow
def test_the_command_lines_of_the_readme_run(birds: Path) -> None:
    """In their order, as a newcomer types them."""
    lines = [line for line in _blocks(ROOT / "README.md", "") if _reason(line) is None]
    for line in lines:
        _run_line(line)
    assert {"train", "evaluate", "index", "search", "export"} <= {line.split()[1] for line in lines}


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


def _drop(name: str) -> None:
    shutil.rmtree(name, ignore_errors=True)


def _make(name: str, images: str, **options: Any) -> None:
    _drop(name)
    phpq.Gallery.create(name, "runs/birds-32", **options).add(images)


def _add_years() -> None:
    gallery = phpq.Gallery.open("birds.gallery")
    picture = {"image": Path("one.jpg").read_bytes(), "label": "wren", "year": 2024}
    gallery.upsert([{"id": f"wren/{number}.jpg", **picture} for number in (17, 18)])


def _add_examples() -> None:
    gallery, picture = phpq.Gallery.open("birds.gallery"), Path("one.jpg").read_bytes()
    gallery.upsert([{"id": name, "image": picture} for name in ("wren/17.jpg", "robin/3.jpg")])


def _add_columns() -> None:
    gallery, picture = phpq.Gallery.open("mushrooms.gallery"), Path("one.jpg").read_bytes()
    names = {"label": "morel", "genus": "Morchella", "family": "Morchellaceae"}
    gallery.upsert([{"id": "morel/99.jpg", "image": picture, **names}])


# What must be there before a step, where the page leaves it to the reader: what the step contains.
BEFORE: dict[str, Callable[[], object]] = {
    'Gallery.create("birds.gallery"': lambda: _drop("birds.gallery"),
    'Gallery.create("mushrooms.gallery"': lambda: _drop("mushrooms.gallery"),
    "--keep-embeddings": lambda: _drop("birds.gallery"),
    "year > 2020": _add_years,
    "gallery.search_id": _add_years,
    "delete birds.gallery wren/17.jpg": _add_years,
    "phpq audit birds.gallery": lambda: _make("birds.gallery", "birds"),
    "--more wren/17.jpg": _add_examples,
    "--column genus": _add_columns,
    "upgrade mushrooms.gallery": lambda: _make("mushrooms.gallery", "mushrooms", codebooks="own"),
    "upgrade birds.gallery --model": lambda: _make("birds.gallery", "birds"),
    'gallery.upgrade("runs/birds-new")': lambda: _make("birds.gallery", "birds"),
    "runs/dinov2 --own": lambda: shutil.copytree("runs/resnet", "runs/dinov2"),
    'phpq.train("birds/", bits=32, out="runs/birds")': lambda: _drop("runs/birds"),
}
GUIDES = [
    page
    for page in PAGES
    if page.parent.name in ("guides", "reference") or page.name == "quickstart.md"
    if any(_reason(text) is None for _, text in _steps(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_step_of_a_guide_runs(
    page: Path, birds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its first line to its last, in a folder where a model was trained before."""
    for name in ("birds", "birds-32"):
        copy_onnx_run(birds / "runs" / name)
    if "runs/birds-new" in page.read_text("utf-8"):
        tiny_train(birds / "runs" / "birds-new", tiny_config("training.seed=1"))
    config = tiny_config("quantizer.codebook_size=256", "training.epochs=1")
    monkeypatch.setattr(phpq, "train", functools.partial(phpq.train, config=config))
    names: dict[str, Any] = {"phpq": phpq, "photo": tiny_birds().train.read(0)}
    for language, text in _steps(page):
        if _reason(text) is not None:
            continue
        for part, prepare in BEFORE.items():
            if part in text:
                prepare()
        if language == "python":
            if "gallery" in names:  # commands since have changed it, or made it anew
                names["gallery"] = phpq.Gallery.open(names["gallery"].path)
            exec(compile(text, page.name, "exec"), names)
        elif language == "toml":
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text, "utf-8")
        else:
            _run_line(text)


def test_every_line_is_run_or_has_a_reason_and_every_reason_is_needed() -> None:
    steps = [(page, text) for page in PAGES for _, text in _steps(page)]
    for part in NOT_RUN:
        assert any(part in text for _, text in steps), part
    run = {ROOT / "README.md", ROOT / "docs" / "quickstart.md", *GUIDES}
    for page, text in steps:
        if _reason(text) is None:
            assert page in run, (page, text)


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
            place = (page.parent / target).resolve()
            made = place.is_relative_to(DOCS) and place.relative_to(DOCS).as_posix() in GENERATED
            assert made or place.exists(), target


def test_every_command_is_in_the_readme_or_the_quickstart() -> None:
    named = {words[0] for page in PAGES for words in _commands(page)}
    assert set(COMMANDS) == named


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_help_names_every_command() -> None:
    outcome = run_phpq("--help")
    assert all(name in outcome.out for name in COMMANDS)
