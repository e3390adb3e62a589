"""A whole comparison of made-up embeddings; options; bad input; drawn birds in small."""

from __future__ import annotations

import time
from pathlib import Path

import faiss
import pytest
from PIL import Image

from made_up_comparisons import made_up_embedded
from phpq.compare import measure, rivals
from phpq.compare.run import Options, compare, compare_embedded
from phpq.data import write_plumage
from phpq.errors import ConfigError, DataError, MissingExtraError
from tiny_runs import tiny_birds

SMALL = (
    *("training.epochs=1", "training.warmup_epochs=0", "model.backbone=test_resnet"),
    *("model.weights=none", "model.embedding_dim=128", "training.batch_size=8"),
    *(f"data.{size}_size=32" for size in ("store", "crop", "eval")),
    *("training.precision=float32", "training.workers=1"),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    faiss.omp_set_num_threads(1)
    monkeypatch.setattr(rivals, "PQ_BYTES", (4,))
    monkeypatch.setattr(rivals, "OWN_BYTES", (2,))
    monkeypatch.setattr(measure, "_TIMED_SECONDS", 1e-4)
    monkeypatch.setattr(measure, "REPEATS", 1)


def test_every_row_is_measured_at_every_size(tmp_path: Path) -> None:
    content = compare_embedded(
        made_up_embedded(), tmp_path, rows=(48, 200), until=time.perf_counter() + 100
    )
    assert content["images"]["unseen_queries"] == 3
    for row in content["rows"]:
        assert [speed["asked"] for speed in row["speeds"]] == [48, 200], row["name"]
        for name in ("r1", "p10", "map", "unseen_r1", "float_recall"):
            assert 0 <= row[name] <= 100, (row["name"], name)
        assert all(speed["memory"] > 0 for speed in row["speeds"])
    assert content["advice"]
    assert content["notes"] == ["made up"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 0}, "give more than 0"),
        ({"minutes": float("nan")}, "give more than 0"),
        ({"rows": (0,)}, "give 1 or more"),
        ({"hold_out": 2.0}, "give a share of the classes"),
        ({"models": ("run",), "trunk": "dinov2-small"}, "A model brings its trunk"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**options)  # type: ignore[arg-type]


def test_a_folder_with_one_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "birds" / "wren").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (32, 32)).save(tmp_path / "birds" / "wren" / f"{number}.png")
    with pytest.raises(DataError, match="one class only"):
        compare(tmp_path / "birds", tmp_path / "out")


def test_a_place_that_cannot_be_written_to_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ConfigError, match="Give another"):
        compare(tmp_path / "nowhere", tmp_path / "file" / "out")


def test_without_torch_a_model_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpq.compare.run.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="--model RUN"):
        compare(tiny_birds(), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("images", [1, 6])
def test_two_images_a_class_and_unreadable_files_still_give_a_page(
    tmp_path: Path, images: int
) -> None:
    """One image to search and one to ask with; or some of more, and a file that is no image."""
    birds = write_plumage(tmp_path / "birds", tiny_birds(images, 1))
    bad = None
    if images > 1:
        bad = sorted(birds.rglob("train/*/*.png"))[0]
        bad.write_bytes(b"not an image")
    options = Options(settings=SMALL, minutes=2, home=tmp_path / "home")
    content = compare(birds, tmp_path / "out", options)
    assert (tmp_path / "out" / "compare.html").is_file()
    assert content["images"]["gallery"] == 4 * images - (bad is not None)
    assert len(content["skipped"]) == (bad is not None)
    if bad is not None:
        assert any(bad.name in text for text in content["left_out"])
    else:
        assert any("no class has a second image" in text for text in content["notes"])


@pytest.mark.slow
def test_drawn_birds_in_small(tmp_path: Path) -> None:
    settings = ("training.epochs=1", "training.warmup_epochs=0", "training.precision=float32")
    content = compare(
        "plumage:species=5,images=6,test=2,size=32",
        tmp_path / "out",
        Options(settings=settings, minutes=2, home=tmp_path / "home"),
    )
    assert any("other species" in text for text in content["notes"])
    assert content["images"]["unseen_classes"] == 1
    ours = [row for row in content["rows"] if row["group"] == "phpq"]
    assert {row["learning_labels"] for row in ours} == {"of the learned classes"}
    assert {"phpq 2 bytes, model's codebooks", "phpq 8 bytes, model's codebooks"} <= {
        row["name"] for row in ours
    }
    assert (tmp_path / "out" / "compare.md").is_file()
