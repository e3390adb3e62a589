"""Writing over the network: files by their hash, metadata checked, nothing left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from phpq.errors import BadImageError, ConfigError, DataError
from phpq.gallery import Gallery
from phpq.serve.decode_pool import DecodePool
from phpq.serve.writer import UPLOADS, Writer, parse_metadata
from served_galleries import copy_gallery, ids, new_photo, tiny_model


@pytest.fixture(scope="module")
def decoders() -> Iterator[DecodePool]:
    pool = DecodePool(1, max_pixels=10_000, seconds=30)
    yield pool
    pool.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_gallery(tmp_path)


def files(folder: Path) -> set[str]:
    return {file.name for file in (folder / UPLOADS).glob("*")}


def test_an_image_is_added_with_its_file(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, tiny_model(), decoders)
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
    writer = Writer(folder, tiny_model(), decoders)
    writer.add(new_photo(0), id="a", label=None, metadata={}, replace=False)
    with pytest.raises(DataError, match="already names"):
        writer.add(new_photo(1), id="a", label=None, metadata={}, replace=False)
    assert len(files(folder)) == 1  # that of the refused one is gone
    report = writer.add(new_photo(1), id="a", label=None, metadata={}, replace=True)
    assert report.replaced == 1
    assert files(folder) == {f"{hashlib.sha256(new_photo(1)).hexdigest()}.png"}


def test_what_is_no_image_leaves_nothing(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, tiny_model(), decoders)
    with pytest.raises(BadImageError, match="'a'"):
        writer.add(b"<?php ?>", id="a", label=None, metadata={}, replace=False)
    with pytest.raises(DataError, match="cannot name a metadata column"):
        writer.add(new_photo(0), id="a", label=None, metadata={"code": 1}, replace=False)
    assert not files(folder)
    assert len(Gallery.open(folder, device="cpu")) == 24


def test_deleting_removes_only_files_that_nobody_names(folder: Path, decoders: DecodePool) -> None:
    writer = Writer(folder, tiny_model(), decoders)
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
