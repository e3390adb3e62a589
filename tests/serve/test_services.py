"""What the routes work with: uploads become embeddings and heat maps."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phpq.errors import BadImageError
from phpq.gallery import Gallery
from phpq.serve.refusals import Refused
from phpq.serve.services import Services
from phpq.serve.settings import ServerSettings
from served_galleries import new_photo, photo, shared_gallery


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
    png = services.heat_png(photo(), "a.jpg", services.views.current.record(1).code)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
    assert services.jobs() == {"searches": 0, "uploads": 0, "writes": 0}
