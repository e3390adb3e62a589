"""What the routes work with: uploads become embeddings, a vanished version is replaced."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phpq.errors import BadImageError, FormatError
from phpq.gallery import Gallery, GalleryStore
from phpq.serve.refusals import Refused
from phpq.serve.services import Services, timed
from phpq.serve.settings import ServerSettings
from phpq.serve.snapshot import Snapshot
from served_galleries import copy_gallery, ids, new_photo, photo, shared_gallery


@pytest.fixture
def services() -> Iterator[Services]:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    made = Services(gallery, ServerSettings(decoders=1, max_upload_bytes=20_000))
    yield made
    made.close()


def test_an_upload_is_embedded_as_the_library_does_it(services: Services, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(new_photo(4))
    expected = services.model.embed(tmp_path / "a.png")[0]
    assert np.allclose(services.embed(new_photo(4), "a.png"), expected, atol=1e-5)
    with pytest.raises(BadImageError, match=r"'notes\.txt'"):
        services.embed(b"notes", "notes.txt")
    with pytest.raises(Refused, match="20,001 bytes"):
        services.embed(bytes(20_001), "a.png")
    png = services.heat_png(photo(), "a.jpg", services.snapshots.current.record(1).code)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
    assert services.jobs() == {"searches": 0, "uploads": 0, "writes": 0}


def test_a_version_that_was_compacted_away_is_replaced(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    services = Services(Gallery.open(folder, device="cpu"), ServerSettings(decoders=1))
    store = GalleryStore.open(folder)
    store.delete([ids()[0]])
    store.compact()
    found = services.read(lambda snapshot: (len(snapshot), snapshot.record(3).id))
    assert found == (23, ids()[4])
    services.close()


def test_damage_that_stays_is_not_hidden(services: Services) -> None:
    calls: list[Snapshot] = []

    def broken(snapshot: Snapshot) -> None:
        calls.append(snapshot)
        raise FormatError("damaged")

    with pytest.raises(FormatError, match="damaged"):
        services.read(broken)
    assert len(calls) == 1


def test_time_is_taken() -> None:
    result, seconds = timed(lambda: "x")
    assert result == "x"
    assert seconds >= 0
