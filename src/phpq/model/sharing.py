"""Sharing a model: its card, and upload to and download from the Hugging Face hub.

The card is README.md beside the weights, with the metadata of the hub at its head.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from phpq._version import __version__
from phpq.config import CONFIG_FILE, TERMS, TRUNKS, RunConfig
from phpq.errors import FormatError
from phpq.evaluation.coded import FOLDER
from phpq.evaluation.run import METRICS
from phpq.files import read_json, write_text
from phpq.model.checkpoint import (
    CHANCES,
    WEIGHTS,
    ModelCard,
    describe_chances,
    read_card,
    stored_fingerprint,
)
from phpq.report.blocks import Block, Note, Report, Section, Settings, Table, render_markdown

if TYPE_CHECKING:
    from phpq.model.interface import Model

CARD = "README.md"
_WAYS = {
    "codes": "codes",
    "float": "float search over the same embeddings",
    "pq": "a product quantizer fitted afterwards",
}
_SHOWN = 50  # class names; the others are counted


def write_model_card(
    folder: Path, *, out: Path | None = None, licence: str = "", measured: Path | None = None
) -> Path:
    """Write the card of a model folder, by default as its README.md; returns the file.

    `licence` is an identifier of the hub, as in "apache-2.0"; `measured` is the run that was
    evaluated, if it is not the folder itself.
    """
    card = read_card(folder)
    path = out or folder / CARD
    metrics = _results(measured or folder, folder)
    write_text(path, _front_matter(card, licence, metrics) + _page(folder, card, licence, metrics))
    return path


def _results(run: Path, folder: Path) -> dict[str, Any] | None:
    """Read the evaluation of a run; None if there is none, or of other weights."""
    path = run / FOLDER / METRICS
    if not path.is_file():
        return None
    metrics = read_json(path, remedy=f"Run phpq evaluate {run} again.")
    seen = metrics.get("model", {}).get("fingerprint")
    return metrics if seen == stored_fingerprint(folder / WEIGHTS) else None


def _front_matter(card: ModelCard, licence: str, metrics: dict[str, Any] | None) -> str:
    lines = ["library_name: phpq", "pipeline_tag: image-feature-extraction"]
    lines += [f"license: {licence}"] if licence else []
    lines += [
        "tags:",
        "- image-retrieval",
        "- product-quantization",
        f"- {card.config.method.name}",
    ]
    if metrics is not None:
        lines += [
            *("model-index:", "- name: phpq", "  results:", "  - task: {type: image-retrieval}"),
            f"    dataset: {{name: '{_data_name(card)}', type: image-folder}}",
            "    metrics:",
            f"    - {{type: map, value: {metrics['scores']['codes']['map']:.2f}}}",
        ]
    return "---\n" + "\n".join(lines) + "\n---\n\n"


def _page(folder: Path, card: ModelCard, licence: str, metrics: dict[str, Any] | None) -> str:
    config = card.config
    bits, name = config.quantizer.bits, _data_name(card)
    report = Report(
        title=f"{name}, {bits} bits",
        summary=f"A [phpq](https://arxiv.org/abs/2109.05206) model: a photo to {-(-bits // 8)} "
        "bytes, by which images of the same class are found. Learned from "
        f"{len(card.class_names)} classes of {name}.",
        sections=(
            Section("Use", (Note((_USE,)),)),
            Section("Data and classes", tuple(_data(card, metrics))),
            Section("Recipe", tuple(_recipe(config))),
            Section("Results", (*_scores(metrics), Note((_chances(folder),)))),
            Section("Size", (Note((_size(folder, bits),)),)),
            Section("Licence", (Note(tuple(_licence(config, licence))),)),
            Section("Limits", (Note(_LIMITS, as_list=True),)),
        ),
    )
    return render_markdown(report)


_USE = """```python
import phpq

model = phpq.load("OWNER/NAME")  # kept after the first time, and found without a network
codes = model.encode(["photo.jpg"])
gallery = phpq.Gallery.create("my.gallery", model)
```"""
_LIMITS = (
    "The codes tell the classes above apart. Other kinds are found by the general embedding and "
    "codebooks that a gallery owns (`phpq index --own-codebooks`), not by these codes.",
    "Every photo gets neighbours, also one that shows nothing of the kind.",
    "Results hold for images like those it learned from: other cameras, seasons and backgrounds "
    "were not measured.",
    "Codes of another model, or of another training of this one, mean something else.",
)


def _data_name(card: ModelCard) -> str:
    """Return the name of the data set, without the folder above it, which is private."""
    kind = re.match(r"(\w{2,})(:|$)", card.dataset)  # cub200, plumage:species=8, but not C:\birds
    name = kind[1] if kind else PureWindowsPath(card.dataset).name  # which knows both separators
    return name.replace("'", "") or "own images"


def _data(card: ModelCard, metrics: dict[str, Any] | None) -> list[Block]:
    names = ", ".join(card.class_names[:_SHOWN])
    more = len(card.class_names) - _SHOWN
    blocks: list[Block] = [Note((names + (f" and {more} more" if more > 0 else ""),))]
    if metrics is not None:
        codes = metrics["scores"]["codes"]
        text = f"{codes['gallery']:,} images to learn from and to search, "
        blocks.insert(0, Note((text + f"{codes['queries']:,} queries.",)))
    return blocks


def _recipe(config: RunConfig) -> list[Block]:
    trained = "" if config.training.trainable == "all" else f" ({config.training.trainable} only)"
    items = (
        ("method", config.method.name),
        ("backbone", config.model.backbone + trained),
        ("starting weights", Path(config.model.weights).name),
        ("epochs", str(config.training.epochs)),
        ("pixels", f"{config.data.crop_size} to learn, {config.data.eval_size} to encode"),
        ("seed", str(config.training.seed)),
        ("phpq", __version__),
    )
    return [Settings(f"All settings are in {CONFIG_FILE}; the main ones", items)]


def _scores(metrics: dict[str, Any] | None) -> list[Block]:
    if metrics is None:
        return [Note(("Not measured: `phpq evaluate RUN` before the card is written.",))]
    scores = metrics["scores"]
    rows = []
    for way, text in _WAYS.items():
        if score := scores.get(way):
            size = -(-score["bits"] // 8)
            rows.append((text, size, score["map"], score["precision_at_1_served"]))
    if metrics["held_out_per_class"]:
        asked = "images of the training split that were held out"
    else:
        asked = "the test split"
    caption = f"Classes that it learned, in per cent; queries are {asked}."
    blocks: list[Block] = [
        Table(("search by", "bytes per image", "MAP", "P@1"), tuple(rows), caption, strong_row=0)
    ]
    unseen = metrics.get("unseen")
    if unseen is None:
        return [*blocks, Note(("Classes that it never saw were not measured.",))]
    found = tuple(
        (
            f"{score['way']}, {score['labels']} labels",
            score["bits"],
            *map(score["values"].get, ("r1", "map")),
        )
        for score in unseen["scores"]
        if score["protocol"] == "unseen@unseen"
    )
    text = "Classes that were kept away from it, in per cent."
    return [*blocks, Table(("search by", "bits", "R@1", "MAP"), found, text)]


def _chances(folder: Path) -> str:
    """Describe the calibration: whether answers carry probabilities, and what these allow."""
    facts = describe_chances(folder)
    if not facts["known"]:
        return "How likely answers are was not fitted: a gallery can (`phpq gallery calibrate`)."
    limit = f"{100 * facts['wrong_at_most']:g} %"
    return (
        "Hits and verdicts carry the probability that they are right, fitted to "
        f"{facts['images']:,} images that it did not learn from, as if every second photo showed "
        f"something else than these classes. If at most {limit} of the names may be wrong, "
        f"{facts['named']:.0%} of the photos of its classes get their name; the others are unknown."
    )


def _size(folder: Path, bits: int) -> str:
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".onnx")]
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in files)
    return f"{-(-bits // 8)} bytes per image in a gallery. Files: {sizes}."


def _licence(config: RunConfig, licence: str) -> list[str]:
    sentences = [
        f"{licence}." if licence else "Not stated by who trained it: ask before you use it."
    ]
    trunk = next((t for t in TRUNKS.values() if t.backbone == config.model.backbone), None)
    if trunk is not None:
        terms = f": {TERMS[trunk.licence]}" if trunk.licence in TERMS else ""
        sentences.append(
            f"It was made from {trunk.name} ({trunk.licence}{terms}), whose terms go with it."
        )
    return sentences


def push(model: Model, repository: str, *, private: bool, licence: str) -> str:
    """Upload a model with its card; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    api.create_repo(repository, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        folder = model.save(room)
        card = write_model_card(folder, licence=licence, measured=model.folder)
        write_text(card, card.read_text("utf-8").replace("OWNER/NAME", repository))
        return str(api.upload_folder(repo_id=repository, folder_path=folder))


def fetch(name: str) -> Path:
    """Return the folder of a hub's "owner/name": fetched once, then found in the hub's cache."""
    if name.count("/") != 1 or name.startswith((".", "/")):
        raise FormatError(
            f"There is no folder {name!r}. Give a folder that `phpq train` wrote, or a hub id "
            "of the form owner/name."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    wanted = [CONFIG_FILE, CARD, CHANCES, "*.safetensors", "*.onnx"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, endpoint=_endpoint()))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise FormatError(
            f"{name!r} is neither a folder nor a model that could be fetched from the hub "
            f"({type(error).__name__})."
        ) from error


def _endpoint() -> str | None:
    """Return the user's hub, even if it was set after huggingface_hub was imported."""
    return os.environ.get("HF_ENDPOINT") or None
