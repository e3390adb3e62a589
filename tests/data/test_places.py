from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from phpq.data import places
from phpq.data.places import (
    Origin,
    RemoteFile,
    TableCell,
    beside,
    content_hash,
    exists,
    filesystem,
    folders_in,
    is_uri,
    open_place,
    origin_at,
    read_uri,
    suffix_of,
    uri_of,
    walk_uri,
)
from phpq.errors import BadImageError, ConfigError, DataError
from picture_files import write_image

PNG = frozenset({".png"})


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_what_is_a_uri() -> None:
    assert all(map(is_uri, ["s3://b/x", "file:///x", "https://a/b.jpg", "zip://x::s3://b"]))
    assert not any(map(is_uri, ["x/y.jpg", "/x", "C:\\x", "c://x", "a:b", "", Path("s3://b"), 3]))
    assert suffix_of("s3://b/x.LANCE/") == ".lance"
    assert suffix_of(Path("x/y.Csv")) == ".csv"


def test_names_lead_from_the_file_that_holds_them(tmp_path: Path) -> None:
    assert beside(tmp_path / "t.csv", "a/b.png") == tmp_path / "a" / "b.png"
    assert beside("s3://b/x/t.csv", "a/b.png") == "s3://b/x/a/b.png"
    assert beside(tmp_path / "t.csv", "s3://b/c.png") == "s3://b/c.png"
    assert beside("s3://b/x/t.csv", "gs://b/c.png") == "gs://b/c.png"


def test_a_walk_elsewhere_goes_as_one_here(memory: fsspec.AbstractFileSystem) -> None:
    names = ("b/10.png", "b/2.png", "a/deep/x.PNG", "1.png", ".h/y.png", "a/.z.png", "a/n.txt")
    for name in (*names, "g.lance/z.png"):
        memory.pipe_file(f"/birds/{name}", name.encode())
    found = list(walk_uri("memory://birds/", PNG))
    assert [name for name, _ in found] == ["1.png", "a/deep/x.PNG", "b/2.png", "b/10.png"]
    assert [read_uri(uri).decode() for _, uri in found] == [name for name, _ in found]
    assert folders_in("memory://birds") == {".h", "a", "b", "g.lance"}
    with pytest.raises(DataError, match="'memory://none' cannot be listed"):
        list(walk_uri("memory://none", PNG))


def test_files_here_and_elsewhere(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    memory.pipe_file("/x.bin", b"content")
    (tmp_path / "y.bin").write_bytes(b"other")
    local = f"file://{tmp_path}/y.bin"
    assert read_uri("memory://x.bin") == b"content"
    assert read_uri(local) == b"other"
    for place, content in (("memory://x.bin", b"content"), (tmp_path / "y.bin", b"other")):
        with open_place(place) as stream:
            assert stream.read() == content
    assert exists("memory://x.bin")
    assert exists(local)
    assert exists(str(tmp_path / "y.bin"))
    assert not any(map(exists, ["memory://no", f"{local}x", str(tmp_path), "nothing://x"]))
    for missing in (tmp_path / "none", "memory://none"):
        with pytest.raises(DataError, match="none' cannot be opened"):
            open_place(missing)
    with pytest.raises(FileNotFoundError):
        read_uri("memory://none")


def test_a_missing_package_or_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(uri: str) -> None:
        raise ImportError("Install s3fs to access S3")

    with pytest.raises(ConfigError, match=r"'nothing://x' cannot be read.*Protocol not known"):
        filesystem("nothing://x")
    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ConfigError, match=r"Install s3fs to access S3.*every machine"):
        read_uri("s3://bucket/x.png")


def test_a_failure_that_passes_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flaky:
        def __init__(self, failures: int) -> None:
            self.left = failures

        def cat_file(self, path: str) -> bytes:
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("the line is down.\nmore")
            return path.encode()

    monkeypatch.setattr(places, "_PAUSE", 0.0)
    for_a_moment, for_long = Flaky(2), Flaky(3)
    monkeypatch.setattr(places, "filesystem", lambda uri: (for_a_moment, uri))
    assert read_uri("s3://x") == b"s3://x"
    monkeypatch.setattr(places, "filesystem", lambda uri: (for_long, uri))
    with pytest.raises(OSError, match=r"^the line is down.?$"):
        read_uri("s3://x")


def picture_bytes(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (3, 3), (number % 256, number // 256, 0)).save(stream, "PNG")
    return stream.getvalue()


def test_one_content_has_one_hash_wherever_it_is(tmp_path: Path) -> None:
    file = write_image(tmp_path / "x.png")
    content = file.read_bytes()
    parquet.write_table(pa.table({"image": [content]}), tmp_path / "t.parquet")
    lance.write_dataset(pa.table({"image": [content]}), tmp_path / "t.lance")
    origins: list[Origin] = [
        file,
        RemoteFile(f"file://{file}"),
        content,
        TableCell(str(tmp_path / "t.parquet"), 0, "image"),
        TableCell(str(tmp_path / "t.lance"), 0, "image", 1),
    ]
    wanted = (hashlib.sha256(content).digest(), content)
    assert [content_hash(origin) for origin in origins] == [wanted] * len(origins)
    assert [uri_of(origin) for origin in origins] == [
        str(file),
        f"file://{file}",
        None,
        None,
        None,
    ]
    assert origin_at(str(file)) == file
    assert origin_at("s3://b/x.png") == RemoteFile("s3://b/x.png")


@pytest.mark.parametrize("groups", [1000, 150])
@pytest.mark.parametrize("struct", [False, True])
def test_cells_in_any_order(tmp_path: Path, groups: int, struct: bool) -> None:
    contents = [picture_bytes(number) for number in range(400)]
    values: list[Any] = [{"bytes": c, "path": "x"} for c in contents] if struct else contents
    table = pa.table({"n": range(400), "image": values})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=groups)
    uri = f"file://{tmp_path}/t.parquet"
    for place in (str(tmp_path / "t.parquet"), uri):
        rows = [*range(400), *random.Random(0).sample(range(400), 40)]
        assert all(TableCell(place, row, "image").read() == contents[row] for row in rows)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"image": [b"x", None]}), tmp_path / "t.parquet")
    empty = TableCell(str(tmp_path / "t.parquet"), 1, "image")
    with pytest.raises(BadImageError, match=r"t.parquet#1': the cell is empty"):
        content_hash(empty)
    with pytest.raises(BadImageError, match=r"file:///no/where.png': No such file"):
        content_hash(RemoteFile("file:///no/where.png"))
    with pytest.raises(BadImageError, match=r"Is a directory|Permission"):
        content_hash(tmp_path)
