"""The documents speak of commands, options, names and files that exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

import phpq
from command_line import phpq as run_phpq
from phpq.cli import COMMANDS, app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


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
        command = group.commands[words[0]]  # type: ignore[attr-defined]
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
