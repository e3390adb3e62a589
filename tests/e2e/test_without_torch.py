"""Everything but training, in fresh processes: none needs torch, nor what it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import without_torch
from command_line import imported_by

SERVER = {"fastapi", "starlette", "uvicorn", "prometheus_client"}
RUN = """
import sys
from typer.testing import CliRunner
from phpq.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
"""
SERVE = """
import sys
from pathlib import Path
from phpq.gallery import Gallery
from phpq.gallery.view import Page
from phpq.serve._answers import search_upload
from phpq.serve.app import create_app
services = create_app(Gallery.open(sys.argv[1], runtime="onnx")).state.services
view, photo = services.views.current, Path(sys.argv[2])
query = services.embed(services.views.current, photo.read_bytes(), photo.name)
page = Page(labels=tuple(view.label_counts)[:2])
assert search_upload(view, query, page).hits
services.close()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images, a run and two galleries, one with codebooks of its own."""
    folder = tmp_path_factory.mktemp("home")
    without_torch.make(folder)
    command = [sys.executable, without_torch.__file__, "use", str(folder), "--block"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "works without torch" in done.stdout  # index, search, evaluate, serve
    return folder


@pytest.mark.parametrize("gallery", ["birds.gallery", "own.gallery"])
@pytest.mark.parametrize("way", ["search", "where", "serve"])
def test_a_photograph_is_searched_with_what_that_takes(home: Path, gallery: str, way: str) -> None:
    photo = str(sorted((home / "birds").rglob("*.png"))[0])
    folder, free = str(home / gallery), {*without_torch.EXTRAS, "matplotlib", "numba"}
    if way == "serve":
        seen = imported_by(SERVE, folder, photo)
    else:
        filtered = ["--where", "label != 'x'"] if way == "where" else []
        seen = imported_by(RUN, "search", folder, photo, "--runtime", "onnx", *filtered)
        free |= SERVER
    assert ("lance" in seen) == (way == "where")  # Lance reads the expression
    assert not seen & (free if way == "where" else free | {"pandas"})


@pytest.mark.parametrize("words", [("info",), ("verify",)])
def test_a_look_at_a_gallery_loads_no_compiler(home: Path, words: tuple[str, ...]) -> None:
    seen = imported_by(RUN, "gallery", *words, str(home / "birds.gallery"))
    assert not seen & (SERVER | {"numba", "matplotlib", "scipy"})
