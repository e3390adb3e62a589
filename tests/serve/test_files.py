"""Files: those that were indexed and nothing else; uploads are kept by their content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phpq.errors import BadImageError, ConfigError, DataError, UnknownNameError
from phpq.gallery import Gallery, Record
from phpq.gallery.folder import read_manifest
from phpq.gallery.models import Models
from phpq.serve.decode_pool import DecodePool
from phpq.serve.files import UPLOADS, Pictures, Writer, has_file, parse_metadata, read_file
from served_galleries import copy_gallery, ids, new_photo, tiny_model


@pytest.fixture(scope="module")
def decoders() -> Iterator[DecodePool]:
    pool = DecodePool(1, max_pixels=10_000, seconds=30)
    yield pool
    pool.close()


def record_of(path: Path | None, content: bytes = b"") -> Record:
    sha256 = hashlib.sha256(content).digest()
    uri = None if path is None else str(path)
    return Record("bird.png", uri, None, sha256, np.zeros(1, np.uint8))


def written(folder: Path, content: bytes) -> Record:
    (folder / "bird.png").write_bytes(content)
    return record_of(folder / "bird.png", content)


def test_the_file_comes_back_as_it_is(tmp_path: Path, decoders: DecodePool) -> None:
    content = new_photo(0)
    record = written(tmp_path, content)
    pictures = Pictures(decoders, cache_bytes=0)
    assert has_file(record.uri)
    assert read_file(record) == content
    original = pictures.original(record)
    assert (original.content, original.media_type) == (content, "image/png")
    # A format that browsers do not show is sent as a file to keep.
    tiff = written(tmp_path, new_photo(0, "TIFF"))
    assert pictures.original(tiff).media_type == "application/octet-stream"


def test_thumbnails_are_small_jpegs_and_kept(tmp_path: Path, decoders: DecodePool) -> None:
    record = written(tmp_path, new_photo(1))
    pictures = Pictures(decoders, cache_bytes=1 << 20)
    first = pictures.thumbnail(record, 30)
    with Image.open(io.BytesIO(first.content)) as image:
        assert image.format == "JPEG"
        assert max(image.size) <= 96
    (tmp_path / "bird.png").unlink()
    assert pictures.thumbnail(record, 90) is first  # the same size of thumbnail
    with pytest.raises(UnknownNameError, match="no longer where it was indexed"):
        pictures.thumbnail(record, 200)


def test_the_cache_is_bounded(tmp_path: Path, decoders: DecodePool) -> None:
    pictures = Pictures(decoders, cache_bytes=6000)
    for seed in range(6):
        pictures.thumbnail(written(tmp_path, new_photo(seed)), 96)
    kept = sum(len(picture.content) for picture in pictures._cache.values())
    assert 0 < kept <= 6000
    assert 0 < len(pictures._cache) < 6
    tiny = Pictures(decoders, cache_bytes=10)  # where none fits
    assert tiny.thumbnail(written(tmp_path, new_photo(0)), 96).content
    assert not tiny._cache


@pytest.mark.parametrize("secret", [b"root:x:0:0", new_photo(9)])
def test_a_link_to_another_file_is_not_followed_out(tmp_path: Path, secret: bytes) -> None:
    record = written(tmp_path, new_photo(0))
    (tmp_path / "secret").write_bytes(secret)
    (tmp_path / "bird.png").unlink()
    (tmp_path / "bird.png").symlink_to(tmp_path / "secret")
    with pytest.raises(BadImageError, match="not the one that was indexed") as caught:
        read_file(record)
    assert str(tmp_path) not in str(caught.value)


def test_a_folder_on_the_way_that_became_a_link_does_not_help(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    record = written(tmp_path / "photos", new_photo(0))
    (tmp_path / "photos").rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "bird.png").write_bytes(new_photo(1))
    (tmp_path / "photos").symlink_to(tmp_path / "other")
    with pytest.raises(BadImageError, match="not the one that was indexed"):
        read_file(record)


def test_what_was_indexed_but_is_no_image_is_not_sent(tmp_path: Path, decoders: DecodePool) -> None:
    record = written(tmp_path, b"<script>alert(1)</script>")
    with pytest.raises(BadImageError, match="not an image"):
        Pictures(decoders, cache_bytes=0).original(record)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_or_a_folder_in_its_place_does_not_hang(tmp_path: Path) -> None:
    record = written(tmp_path, new_photo(0))
    (tmp_path / "bird.png").unlink()
    os.mkfifo(tmp_path / "bird.png")
    assert not has_file(record.uri)
    failed: list[bool] = []

    def read() -> None:
        try:
            read_file(record)
        except UnknownNameError:
            failed.append(True)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(30)
    assert failed
    (tmp_path / "bird.png").unlink()
    (tmp_path / "bird.png").mkdir()
    with pytest.raises(UnknownNameError):
        read_file(record)


def test_without_a_file_the_message_says_so() -> None:
    for record in (record_of(None), record_of(Path("a\0b"))):
        assert not has_file(record.uri)
        with pytest.raises(UnknownNameError, match="has no file"):
            read_file(record)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_gallery(tmp_path)


def models_of(folder: Path) -> Models:
    return Models.one(folder, tiny_model(), read_manifest(folder))


def files(folder: Path) -> set[str]:
    return {file.name for file in (folder / UPLOADS).glob("*")}


def test_an_image_is_added_with_its_file(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, models_of(folder), decoders)
    name = "../../evil.php"
    report = writer.add(new_photo(0), id=name, label="jay", metadata={"year": 1}, replace=False)
    assert report.added == 1
    record = Gallery.open(folder, device="cpu").get(name)
    sha256 = hashlib.sha256(new_photo(0)).hexdigest()
    assert Path(str(record.uri)) == folder.absolute() / UPLOADS / f"{sha256}.png"
    assert Path(str(record.uri)).read_bytes() == new_photo(0)
    assert (record.label, record.metadata) == ("jay", {"year": 1})
    again = writer.add(new_photo(0), id=name, label="jay", metadata={"year": 1}, replace=False)
    assert again.unchanged == 1


def test_another_image_of_the_same_id_replaces_only_when_asked_to(
    folder: Path, decoders: DecodePool
) -> None:
    writer = Writer(folder, models_of(folder), decoders)
    writer.add(new_photo(0), id="a", label=None, metadata={}, replace=False)
    with pytest.raises(DataError, match="already names"):
        writer.add(new_photo(1), id="a", label=None, metadata={}, replace=False)
    assert len(files(folder)) == 1  # that of the refused one is gone
    report = writer.add(new_photo(1), id="a", label=None, metadata={}, replace=True)
    assert report.replaced == 1
    assert files(folder) == {f"{hashlib.sha256(new_photo(1)).hexdigest()}.png"}


def test_what_is_no_image_leaves_nothing(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, models_of(folder), decoders)
    with pytest.raises(BadImageError, match="'a'"):
        writer.add(b"<?php ?>", id="a", label=None, metadata={}, replace=False)
    with pytest.raises(DataError, match="cannot name a metadata column"):
        writer.add(new_photo(0), id="a", label=None, metadata={"code": 1}, replace=False)
    assert not files(folder)
    assert len(Gallery.open(folder, device="cpu")) == 24


def test_deleting_removes_only_files_that_nobody_names(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, models_of(folder), decoders)
    for name in ("a", "it's"):
        writer.add(new_photo(0), id=name, label=None, metadata={}, replace=False)
    original = Path(str(Gallery.open(folder, device="cpu").get(ids()[0]).uri))
    assert writer.delete(["a", ids()[0], "none"]) == (2, ["none"])
    assert len(files(folder)) == 1
    assert original.is_file()  # a file that was not uploaded here is not ours to remove
    assert writer.delete(["it's"]) == (1, [])
    assert not files(folder)
    assert writer.delete(["none"]) == (0, ["none"])


def test_metadata_is_a_small_object_of_plain_values() -> None:
    assert parse_metadata(None) == parse_metadata(" ") == {}
    values = {"a": 1, "b": "text", "c": None, "d": True, "e": 1.5}
    assert parse_metadata(json.dumps(values)) == values


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "1",
        '{"a": [1]}',
        '{"a": {"b": 1}}',
        '{"a": NaN}',
        '{"a": 1e999}',
        f'{{"a": {1 << 64}}}',
        '{"a": "\\u0000"}',
        json.dumps({"a": "x" * 3000}),
        json.dumps({"a" * 200: 1}),
        json.dumps({str(n): n for n in range(100)}),
        "[" * 5000,
    ],
)
def test_other_metadata_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="metadata"):
        parse_metadata(text)
