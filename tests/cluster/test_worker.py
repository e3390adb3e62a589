from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finished_runs import copy_run
from phpq.cluster.worker import EncodingActor, Work
from phpq.errors import ConfigError
from phpq.gallery import Gallery
from phpq.gallery.encoding import Known, ModelEncoder, encode_known
from phpq.gallery.sources import Item
from picture_files import write_image


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"), keep_embeddings=True)


@pytest.fixture(autouse=True)
def references(monkeypatch: pytest.MonkeyPatch) -> None:
    """References are the things themselves: no cluster is needed to look at one actor."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda thing: thing))


def images(folder: Path, count: int) -> list[Known]:
    files = [write_image(folder / f"{n}.png", (9 * n % 256, 40, 90)) for n in range(count)]
    files[1].write_bytes(b"no image")
    return [(Item(file.name, file, "wren", {"n": n}), None) for n, file in enumerate(files)]


def test_an_actor_encodes_as_this_process_does(gallery: Gallery, tmp_path: Path) -> None:
    known = images(tmp_path, 11)
    stretches = [known[:8], known[8:]]
    work = Work(str(gallery.path), 4, True, "cpu", 1)
    actor = EncodingActor(work, stretches)
    answer = actor({"number": np.array([1, 0])})
    assert answer["number"].tolist() == [1, 0]
    batches = [batch for place in (1, 0) for batch in answer["stretch"][place].batches]
    wanted = list(encode_known(known, ModelEncoder(gallery.model, 4), keep_embeddings=True))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    for got, here in zip(chain(*batches), chain(*wanted), strict=True):
        assert got.skipped == here.skipped
        assert (got.record is None) == (here.record is None)
        assert got.item.image == b""  # pixels do not travel back
        if got.record is not None and here.record is not None:
            assert _plain(got.record) == _plain(here.record)


def _plain(record: Any) -> tuple[Any, ...]:
    code, embedding = record.code.tobytes(), record.embedding.tobytes()
    about = (record.id, record.uri, record.label, record.sha256, dict(record.metadata))
    return (*about, code, embedding)


def test_a_gallery_that_a_machine_does_not_see_is_named(tmp_path: Path) -> None:
    actor = EncodingActor(Work(str(tmp_path / "none"), 4, False, "cpu", 1), [[]])
    with pytest.raises(ConfigError, match=r"none' is not to be seen on .*all machines"):
        actor({"number": np.array([0])})
