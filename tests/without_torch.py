"""All that needs no torch, in an environment that has none: `.ci/run` and a test run this file.

python tests/without_torch.py make FOLDER          with torch: a tiny run, images beside it
python tests/without_torch.py use FOLDER [--block] without it; --block hides it where it is
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

EXTRAS = (
    *("torch", "torchvision", "timm", "onnx", "onnxscript", "scipy", "matplotlib"),
    *("faiss", "ray"),
)


def make(folder: Path) -> None:
    """Train a tiny model with its ONNX files, and write the images that it learned from."""
    from phpq.data import write_plumage
    from phpq.training import train_run
    from sure_galleries import sure_model
    from tiny_runs import tiny_birds, tiny_config

    birds = tiny_birds()
    write_plumage(folder / "birds", birds)
    train_run(birds, tiny_config("training.onnx=true"), folder / "run", device="cpu")
    sure_model(folder / "run", 0)  # so few images tell nothing of that


def use(folder: Path) -> None:
    """Index, search, evaluate, look at and serve a gallery; then ask for what needs an extra."""
    gallery, birds = folder / "birds.gallery", folder / "birds"
    photo = sorted(birds.rglob("*.png"))[0]
    added = phpq("index", gallery, birds, "--model", folder / "run")
    assert added["added"] == len(list(birds.rglob("*.png"))), added
    (found,) = phpq("search", gallery, photo, "--why")["queries"]
    assert found["hits"][0]["score"] >= found["hits"][1]["score"], found
    assert found["verdict"]["sure"]["label"] == found["verdict"]["label"], found
    assert 0 < found["hits"][0]["probability"] <= 1, found
    scores = phpq("evaluate", folder / "run", birds, "--out", folder / "evaluation")
    assert 0 < scores["map"]["12"] <= 100, scores
    assert phpq("gallery", "info", gallery)["images"] == added["added"]
    assert not phpq("gallery", "verify", gallery)["problems"]
    own = folder / "own.gallery"
    assert phpq("index", own, birds, "--model", folder / "run", "--own-codebooks")["added"]
    assert phpq("search", own, photo)["queries"]
    table = phpq("compare", birds, "--model", folder / "run", "--out", folder / "compare")
    assert {row["group"] for row in table["rows"]} == {"float", "classify", "phpq"}, table
    assert any("phpq[compare]" in reason for reason in table["left_out"]), table
    serve(gallery, photo)
    refused = invoke("train", birds, "--out", folder / "new")
    assert refused[0] == 2, refused
    assert "pip install 'phpq[train]'" in refused[2], refused
    refused = invoke("export", gallery, "--format", "faiss")
    assert refused[0] == 2, refused
    assert "pip install 'phpq[faiss]'" in refused[2], refused
    loaded = [name for name in EXTRAS if sys.modules.get(name) is not None]
    assert not loaded, loaded
    print("works without", ", ".join(EXTRAS))  # noqa: T201


def serve(gallery: Path, photo: Path) -> None:
    """Upload a photo, and ask why its first hit was found."""
    from starlette.testclient import TestClient

    from phpq.gallery import Gallery
    from phpq.serve import ServerSettings, create_app

    app = create_app(Gallery.open(gallery), ServerSettings(decoders=1))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        files = {"image": ("photo.png", photo.read_bytes())}
        answer = client.post("/api/v1/search", files=files)
        assert answer.status_code == 200, answer.text
        first = answer.json()["hits"][0]["id"]
        why = client.post("/api/v1/explain", files=files, data={"hit_id": first})
        assert why.status_code == 200, why.text
        assert "phpq[train]" in why.text  # shares of the codebooks, but no heat map


def phpq(*arguments: str | Path) -> dict[str, Any]:
    """Run a command that must succeed; returns its JSON."""
    code, out, err = invoke(*arguments, "--json")
    assert code == 0, err
    content: dict[str, Any] = json.loads(out)
    return content


def invoke(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command in this process; returns its exit code and what it printed."""
    from typer.testing import CliRunner

    from phpq.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


if __name__ == "__main__":
    if "--block" in sys.argv:
        sys.modules.update(dict.fromkeys(EXTRAS))  # type: ignore[arg-type]
    {"make": make, "use": use}[sys.argv[1]](Path(sys.argv[2]))
