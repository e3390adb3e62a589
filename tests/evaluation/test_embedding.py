from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.data import open_dataset
from phpq.errors import DataError
from phpq.evaluation import embedding
from phpq.evaluation.embedding import edited_copies, embed_readable, find_bad_images
from phpq.model import TorchModel, load
from picture_files import write_classes
from tiny_runs import tiny_birds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TorchModel:
    return load(copy_run(tmp_path_factory.mktemp("runs") / "run", evaluated=False), runtime="torch")


def test_bad_images_are_left_out_and_named(
    tmp_path: Path, model: TorchModel, monkeypatch: pytest.MonkeyPatch
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


def test_refusing_and_nothing_readable(tmp_path: Path, model: TorchModel) -> None:
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
    refusing = TorchModel(model.network, card, device=model.device, epochs=1)
    with pytest.raises(DataError, match=r"0 bytes.*data.on_bad_image=skip"):
        embed_readable(refusing, images)
    with pytest.raises(DataError, match="has no images"):
        embed_readable(model, images.subset([]))


def test_other_embeddings_are_made_of_the_same_pixels(model: TorchModel) -> None:
    images = tiny_birds().test
    found = embed_readable(
        model, images, others={"means": lambda pixels: pixels.mean((2, 3), dtype=np.float32)}
    )
    assert np.array_equal(found.embeddings, model.embed(images))
    assert found.others["means"].shape == (len(images), 3)


def test_changed_copies_are_cropped_by_a_tenth_and_keep_their_names() -> None:
    images = tiny_birds().train
    copies = edited_copies(images, 5)
    assert len(copies) == 5
    assert (copies.ids[0], copies.ids[-1]) == (images.ids[0], images.ids[-1])
    original = images.read(images.ids.index(copies.ids[1]))
    changed = copies.read(1)
    assert copies.path(1) is None
    assert (original.width - changed.width, original.height - changed.height) == (2, 2)
    middle = np.asarray(original.crop((1, 1, 31, 31)), dtype=float)
    assert 0 < np.abs(np.asarray(changed, dtype=float) - middle).mean() < 20  # compressed again
    assert len(edited_copies(images, 1000)) == len(images)
