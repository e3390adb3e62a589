from __future__ import annotations

import hashlib
import io
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from phpq.data.origins import Origin, RemoteFile, TableCell, content_hash, origin_at, uri_of
from phpq.errors import BadImageError
from picture_files import write_image


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
