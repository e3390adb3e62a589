from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from phpq.data.places import TableCell
from phpq.errors import DataError, FormatError
from phpq.gallery.sources import count_items, first_item, read_items
from picture_files import plain_images, write_image
from tiny_runs import tiny_birds

COLOUR = (1, 2, 3)


def test_a_folder_at_any_depth(tmp_path: Path) -> None:
    for name in ("b/10.png", "b/2.png", "a/deep/x.png", "loose.png", ".hidden/y.png", "a/.z.png"):
        write_image(tmp_path / name, COLOUR)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    items = list(read_items(tmp_path))
    found = [(item.id, item.label) for item in items]
    assert found == [
        ("loose.png", None),
        ("a/deep/x.png", "a"),
        ("b/2.png", "b"),
        ("b/10.png", "b"),
    ]
    assert items[1].uri == str(tmp_path / "a/deep/x.png")
    assert count_items(str(tmp_path)) == 4
    assert first_item(tmp_path).id == "loose.png"


def test_train_and_test_are_splits_not_labels(tmp_path: Path) -> None:
    for name in ("train/wren/1.png", "test/wren/2.png", "val.png"):
        write_image(tmp_path / name, COLOUR)
    assert {item.label for item in read_items(tmp_path) if "/" in item.id} == {"wren"}
    (tmp_path / "test" / "wren" / "2.png").unlink()
    (tmp_path / "test" / "wren").rmdir()
    (tmp_path / "test").rmdir()
    assert [i.label for i in read_items(tmp_path) if "/" in i.id] == ["train"]  # no split: a class


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "x.png", COLOUR)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert count_items(tmp_path) == 1


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No images in"):
        list(read_items(tmp_path))
    with pytest.raises(DataError, match="There is no file or folder 'no/where'"):
        list(read_items("no/where"))
    with pytest.raises(DataError, match="There are no images in"):
        first_item([])
    with pytest.raises(DataError, match="3 is not an image to add"):
        list(read_items([3]))  # type: ignore[list-item]
    with pytest.raises(DataError, match="it needs path, or image"):
        list(read_items([{"id": "x"}]))


def write_table(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_a_csv_with_types_for_its_columns(tmp_path: Path) -> None:
    path = write_table(
        tmp_path,
        "Path,ID,Label,Year,Weight kg,Code,split\n"
        "a.png,x,wren,2020,1.5,007,train\n"
        '"b, c.png",y,,,2,12,test\n',
        "t.csv",
    ).rename(tmp_path / "u.csv")
    with pytest.raises(DataError, match="'Code' cannot name a metadata column"):
        list(read_items(path))
    path.write_text(path.read_text("utf-8-sig").replace(",Code,", ",Ring,"), "utf-8")
    first, second = read_items(path)
    assert (first.id, first.image, first.label) == ("x", tmp_path / "a.png", "wren")
    assert first.metadata == {"year": 2020, "weight_kg": 1.5, "ring": "007", "split": "train"}
    assert (second.id, second.image, second.label) == ("y", tmp_path / "b, c.png", None)
    assert second.metadata == {"year": None, "weight_kg": 2.0, "ring": "12", "split": "test"}
    assert count_items(path) == 2


def test_a_table_needs_only_paths(tmp_path: Path) -> None:
    path = write_table(tmp_path, "path\tn\nsub/a.png\t1e3\nb.png\t-2\n", "t.tsv")
    assert [(i.id, i.metadata) for i in read_items(path)] == [
        ("sub/a.png", {"n": 1000.0}),
        ("b.png", {"n": -2.0}),
    ]
    with pytest.raises(DataError, match=r"no path in row 1. Its columns: file"):
        list(read_items(write_table(tmp_path, "file\na.png\n")))
    with pytest.raises(FormatError, match=r"Row 1 .* has 2 fields, the header 1"):
        list(read_items(write_table(tmp_path, "path\na.png,b\n")))


def test_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"Path": ["a.png"], "Label": ["wren"], "year": [2020]}), path)
    (item,) = read_items(path)
    assert (item.id, item.label, item.metadata) == ("a.png", "wren", {"year": 2020})
    assert item.image == tmp_path / "a.png"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(FormatError, match="not a valid Parquet file"):
        list(read_items(path))


def test_paths_rows_sets_and_names(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 2))
    rows: list[Any] = [
        "x/a.png",
        tmp_path / "b.png",
        {"id": "c", "image": image, "label": 3, "k": 1},
    ]
    items = list(read_items(rows))
    assert [item.id for item in items] == ["x/a.png", (tmp_path / "b.png").as_posix(), "c"]
    assert items[2].image is image
    assert (items[2].label, items[2].metadata, items[2].uri) == ("3", {"k": 1}, None)
    assert count_items(rows) == 3
    named = list(read_items(plain_images([0, 1], ("a", "b"))))
    assert [(item.id, item.label) for item in named] == [("i0", "a"), ("i1", "b")]
    birds = tiny_birds()
    assert [i.id for i in read_items(birds)] == [*birds.train.ids, *birds.test.ids]
    assert next(iter(read_items("plumage:species=2,images=4"))).label is not None
    (single,) = read_items(write_image(tmp_path / "one.png", COLOUR))
    assert single.id == (tmp_path / "one.png").as_posix()


def test_a_folder_elsewhere_is_as_one_here(tmp_path: Path) -> None:
    for name in ("train/b/10.png", "train/b/2.png", "test/a/x.png", "loose.png"):
        write_image(tmp_path / "birds" / name, COLOUR)
    here = [(item.id, item.label) for item in read_items(tmp_path / "birds")]
    uri = f"file://{tmp_path}/birds/"
    there = list(read_items(uri))
    assert [(item.id, item.label) for item in there] == here
    assert there[0].uri == f"{uri}loose.png"
    assert count_items(uri) is None
    (one,) = read_items(f"{uri}loose.png")
    assert (one.id, one.uri) == (f"{uri}loose.png", f"{uri}loose.png")
    fsspec.filesystem("memory").mkdir("/nothing-here")
    with pytest.raises(DataError, match="No images in 'memory://nothing-here"):
        list(read_items("memory://nothing-here"))


def test_tables_and_lists_of_uris(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    table = write_table(tmp_path, f"uri,id,year\n{folder}/a.png,,1\nsub/b.png,y,2\n")
    (tmp_path / "l.txt").write_text(f"{folder}/a.png\nsub/b.png\n")
    wanted = [(f"{folder}/a.png", f"{folder}/a.png"), ("y", str(tmp_path / "sub/b.png"))]
    assert [(item.id, item.uri) for item in read_items(table)] == wanted
    assert [item.uri for item in read_items(tmp_path / "l.txt")] == [uri for _, uri in wanted]
    # Of a table elsewhere, paths are relative to its place.
    items = list(read_items(f"{folder}/t.csv"))
    assert [item.uri for item in items] == [f"{folder}/a.png", f"{folder}/sub/b.png"]
    assert items[1].metadata == {"year": 2}
    rows: list[Any] = ["s3://b/x.png", {"path": "s3://b/y.png", "year": 3}]
    assert [item.uri for item in read_items(rows)] == ["s3://b/x.png", "s3://b/y.png"]


def test_images_inside_tables(tmp_path: Path) -> None:
    content = write_image(tmp_path / "x.png", COLOUR).read_bytes()
    data = pa.table({"image": [content, content], "label": ["wren", None], "year": [1, 2]})
    parquet.write_table(data, tmp_path / "t.parquet")
    lance.write_dataset(data.append_column("id", pa.array(["p", "q"])), tmp_path / "t.lance")
    first, second = read_items(tmp_path / "t.parquet")
    assert (first.id, first.label, first.uri) == ("t.parquet#0", "wren", None)
    assert (second.id, second.label, second.metadata) == ("t.parquet#1", None, {"year": 2})
    for item in (first, second, *read_items(tmp_path / "t.lance")):
        assert isinstance(item.image, TableCell)
        assert item.image.read() == content
    assert [item.id for item in read_items(tmp_path / "t.lance")] == ["p", "q"]
    (held,) = read_items([{"id": "z", "image": content}])
    assert held.image == content


def test_rows_are_taken_as_they_come() -> None:
    taken: list[int] = []

    def endless() -> Iterator[str]:
        number = 0
        while True:
            taken.append(number)
            yield f"{number}.png"
            number += 1

    items = read_items(endless())
    assert [next(items).id for _ in range(3)] == ["0.png", "1.png", "2.png"]
    assert len(taken) == 3
    assert count_items(endless()) is None
