"""The notebooks run from their first cell to their last, and hold no output; scripts do as told."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from starlette.testclient import TestClient

import phpq
from finished_runs import copy_onnx_run, copy_run
from picture_files import write_classes
from tiny_runs import tiny_birds

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_notebooks_are_four_and_hold_no_output() -> None:
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs"), path
            assert cell.get("execution_count") is None, path


# Each takes a kernel of its own, and trains.
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PHPQ_EPOCHS", "1")
    monkeypatch.setenv("PHPQ_HOME", str(tmp_path / "home"))
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    assert any(out.output_type == "stream" and out.name == "stdout" for out in printed)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_embedding_service_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHPQ_MODEL", str(copy_run(tmp_path / "run")))
    service = _load("fastapi_embedding.py")
    photo = io.BytesIO()
    tiny_birds().train.read(0).save(photo, "PNG")
    client = TestClient(service.app)
    answer = client.post("/embed", files={"image": photo.getvalue()}).json()
    code = service.model.encode(tiny_birds().train.read(0))[0]
    assert answer["code"] == code.tobytes().hex()
    assert len(answer["embedding"]) == 32
    assert client.post("/embed", files={"image": b"no image"}).status_code == 422


def test_a_parquet_file_with_bytes_is_a_data_set(tmp_path: Path) -> None:
    birds = write_classes(tmp_path / "birds", {"owl": 3, "wren": 2})
    assert _load("parquet_with_bytes.py").pack(birds, tmp_path / "birds.parquet") == 5
    gallery = phpq.Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"))
    gallery.add(tmp_path / "birds.parquet")
    assert gallery.count("label = 'owl' AND size > 10") == 3
    assert gallery.get("wren/1.png").label == "wren"


@pytest.mark.slow  # writes ONNX files first
def test_node_finds_what_python_finds(tmp_path: Path) -> None:
    modules = os.environ.get("PHPQ_NODE_MODULES")
    if shutil.which("node") is None or modules is None:
        pytest.skip("needs node, and PHPQ_NODE_MODULES: a node_modules with onnxruntime-node")
    birds = write_classes(tmp_path / "birds", {"owl": 6, "wren": 6})
    gallery = phpq.Gallery.create(tmp_path / "g", copy_onnx_run(tmp_path / "run"))
    gallery.add(birds)
    photo = birds / "owl" / "2.png"
    _load("node/export.py").main(str(tmp_path / "g"), str(photo), str(tmp_path / "out"))
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(EXAMPLES / "node" / "search.mjs", tmp_path)
    done = subprocess.run(
        ["node", "search.mjs", "out", "12"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = {hit["id"]: hit["score"] for hit in json.loads(done.stdout)}
    ours = {hit.id: hit.score for hit in gallery.search(photo, top_k=12)}
    assert theirs == pytest.approx(ours, abs=1e-4)


@pytest.mark.rare  # starts a cluster, as tests/cluster do
def test_a_cluster_on_this_machine_fills_a_gallery(tmp_path: Path) -> None:
    birds = write_classes(tmp_path / "birds", {"owl": 4, "wren": 3})
    run = copy_run(tmp_path / "run")
    script = [sys.executable, str(EXAMPLES / "ray_cluster.py")]
    arguments = [str(run), str(birds), str(tmp_path / "g")]
    done = subprocess.run([*script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("7 images\n")
