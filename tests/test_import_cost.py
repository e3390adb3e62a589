"""What is imported before it is needed: nothing heavy. Each case is a fresh interpreter."""

from __future__ import annotations

from command_line import imported_by

HEAVY = {"torch", "torchvision", "timm", "numpy", "scipy", "matplotlib", "faiss", "PIL", "pyarrow"}

HELP = """
import sys
from typer.testing import CliRunner
from phpq.cli import COMMANDS, app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert CliRunner().invoke(app, ["--version"]).exit_code == 0
for name in COMMANDS:
    assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0, name
"""


def test_the_package_itself_is_light() -> None:
    assert not imported_by("import phpq; dir(phpq); phpq.PhpqError; phpq.RunConfig") & HEAVY


def test_help_is_light() -> None:
    assert not imported_by(HELP) & HEAVY


def test_evaluation_and_bad_input_need_no_torch() -> None:
    code = """
import phpq
import phpq.evaluation.run, phpq.api, phpq.index
try:
    phpq.train("no/such/folder")
except phpq.PhpqError:
    pass
"""
    assert not imported_by(code) & {"torch", "timm", "matplotlib", "faiss", "scipy", "pyarrow"}


def test_a_decoder_imports_numpy_and_pillow() -> None:
    seen = imported_by("import phpq.serve.decode_pool")
    assert seen >= {"numpy", "PIL"}
    heavy = {"pyarrow", "lance", "numba", "pydantic", "rich", "typer", "onnxruntime", "pandas"}
    assert not seen & (heavy | HEAVY - {"numpy", "PIL"})
