from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.data import open_dataset
from phpq.errors import DataError
from phpq.evaluation import embedding
from phpq.evaluation.embedding import embed_readable, find_bad_images
from phpq.model import Model, load
from picture_files import write_classes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(copy_run(tmp_path_factory.mktemp("runs") / "run", evaluated=False))


def test_bad_images_are_left_out_and_named(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_BLOCK", 3)  # blocks with all, some and no readable images
    root = write_classes(tmp_path / "birds", {"a": 4, "b": 8})
    images = open_dataset(root).train
    broken = [1, 3, 4, 5]
    for row in broken:
        path = images.path(row)
        assert path is not None
        path.write_text("no image")
    seen: list[tuple[str, int, int]] = []
    found = embed_readable(model, images, progress=lambda *step: seen.append(step))
    good = [row for row in range(len(images)) if row not in broken]
    assert [image.id for image in found.skipped] == [images.ids[row] for row in broken]
    assert found.images.ids == tuple(images.ids[row] for row in good)
    assert np.array_equal(found.labelled().labels, images.labels[good])
    # The same rows as embedding the readable ones at once, beyond rounding.
    np.testing.assert_allclose(found.embeddings, model.embed(images.subset(good)), atol=1e-5)
    assert seen[-1] == ("embedding birds/train", len(images), len(images))
    bad = find_bad_images(images, model.card.config.data)
    assert bad == found.skipped


def test_refusing_and_nothing_readable(tmp_path: Path, model: Model) -> None:
    root = write_classes(tmp_path / "birds", {"a": 3, "b": 3})
    images = open_dataset(root).train
    for row in range(len(images)):
        path = images.path(row)
        assert path is not None
        path.write_bytes(b"")
    with pytest.raises(
        DataError, match=r"None of the 4 images of 'birds/train' can be read.*0 bytes"
    ):
        embed_readable(model, images)
    strict = replace(model.card.config.data, on_bad_image="refuse")
    card = replace(model.card, config=replace(model.card.config, data=strict))
    refusing = Model(model.network, card, device=model.device, epochs=1)
    with pytest.raises(DataError, match=r"0 bytes.*data.on_bad_image=skip"):
        embed_readable(refusing, images)
    with pytest.raises(DataError, match="has no images"):
        embed_readable(model, images.subset([]))
