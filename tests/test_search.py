from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.errors import BadImageError, ConfigError, FormatError, NotTrainedError
from phpq.evaluation.snapshot import read_snapshot
from phpq.model import load
from phpq.search import search_run
from tiny_runs import tiny_birds, tiny_config, tiny_train


def write_queries(folder: Path, count: int) -> list[Path]:
    """Write some test images as files."""
    images = tiny_birds().test
    paths = [folder / f"query {number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        images.read(3 * number % len(images)).save(path)
    return paths


def test_hits_equal_a_plain_loop_over_decoded_rows(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    paths = write_queries(tmp_path, 2)
    found = search_run(run, paths, top_k=6)
    model, gallery = load(run), read_snapshot(run / "evaluation", remedy="")
    rows = model.codebooks.decode(gallery.codes).reshape(len(gallery), 4, -1)
    for path, query in zip(paths, found, strict=True):
        assert query.query == str(path)
        vector = model.embed(path)[0].reshape(4, -1)
        scores = [
            sum(float(z @ row[m]) / float(np.linalg.norm(z)) for m, z in enumerate(vector))
            for row in rows
        ]
        best = sorted(scores, reverse=True)[:6]
        assert [hit.score for hit in query.hits] == pytest.approx(best, abs=1e-4)
        assert [hit.rank for hit in query.hits] == [1, 2, 3, 4, 5, 6]
        for hit in query.hits:
            place = gallery.ids.index(hit.id)
            assert hit.score == pytest.approx(scores[place], abs=1e-4)
            assert hit.label == gallery.class_names[gallery.labels[place]]


def test_the_winner_does_not_depend_on_the_order_of_the_gallery(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    [path] = write_queries(tmp_path, 1)
    # One code for all: everything ties, and the larger class must win, with its true share.
    import phpq.evaluation.snapshot as snapshots

    folder = run / "evaluation"
    gallery = read_snapshot(folder, remedy="")
    for order in (slice(None), slice(None, None, -1)):
        labels = np.array([0] * 6 + [1] * 18)[order]
        tied = snapshots.GallerySnapshot(
            codes=np.zeros_like(gallery.codes),
            ids=gallery.ids,
            labels=labels,
            class_names=gallery.class_names,
            paths=gallery.paths,
            fingerprint=gallery.fingerprint,
        )
        snapshots.write_snapshot(folder, tied)
        [query] = search_run(run, [path], top_k=4)
        assert query.label == gallery.class_names[1]
        assert query.share == pytest.approx(0.75)
        assert query.more_ties == 20


def test_more_hits_than_images_are_all_images(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    [query] = search_run(run, write_queries(tmp_path, 1), top_k=1000)
    assert len(query.hits) == 24
    assert query.more_ties == 0
    assert query.to_dict()["hits"][0]["rank"] == 1


def test_what_cannot_be_searched_is_said(tmp_path: Path) -> None:
    [path] = write_queries(tmp_path, 1)
    bare = copy_run(tmp_path / "bare", evaluated=False)
    with pytest.raises(NotTrainedError, match=r"no gallery to search.*phpq evaluate .*bare"):
        search_run(bare, [path])
    with pytest.raises(FormatError, match=r"nowhere' is not a model folder"):
        search_run(tmp_path / "nowhere", [path])
    run = copy_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="top_k=0"):
        search_run(run, [path], top_k=0)
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(BadImageError, match=r"text.jpg': it is not an image"):
        search_run(run, [path, tmp_path / "text.jpg"])


def test_codes_of_another_model_are_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    tiny_train(tmp_path / "again", tiny_config("training.epochs=1"))
    shutil.copy(tmp_path / "again" / "weights.safetensors", run)
    with pytest.raises(FormatError, match=r"trained again since.*phpq evaluate"):
        search_run(run, write_queries(tmp_path, 1))
