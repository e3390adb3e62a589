from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyarrow import parquet

from phpq.data import Dataset
from phpq.data.places import Place, TableCell
from phpq.data.table import count_rows, is_table, open_table, table_rows
from phpq.errors import DataError, FormatError
from picture_files import write_classes

ROWS = [
    ("birds/owl/0.png", "owl", "train"),
    ("birds/owl/1.png", "owl", "Test"),
    ("birds/wren/0.png", "wren", "train"),
    ("birds/wren/1.png", "wren", "train"),
    ("birds/wren/2.png", "wren", "test"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_classes(tmp_path / "birds", {"owl": 4, "wren": 4})
    return tmp_path


def write_table(path: Path, header: str, rows: list[tuple[str, ...]]) -> Path:
    kind = path.suffix.lower()
    if kind == ".parquet":
        columns = list(map(list, zip(*rows, strict=True)))
        parquet.write_table(pa.table(dict(zip(header.split(","), columns, strict=True))), path)
        return path
    delimiter = "\t" if kind == ".tsv" else ","
    lines = [header.split(","), *rows]
    path.write_text("\n".join(delimiter.join(line) for line in lines) + "\n", "utf-8")
    return path


def contents(dataset: Dataset) -> list[tuple[str, str]]:
    return [
        (f"{split}:{name}", images.class_names[label])
        for split, images in (("train", dataset.train), ("test", dataset.test))
        for name, label in zip(images.ids, images.labels, strict=True)
    ]


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.parquet", "LIST.CSV"])
def test_every_kind_of_table_gives_the_same(folder: Path, name: str) -> None:
    dataset = open_table(write_table(folder / name, "path,label,split", list(ROWS)))
    assert sorted(contents(dataset)) == sorted(
        (f"{split.lower()}:{path}", label) for path, label, split in ROWS
    )
    assert dataset.train.path(0) == folder / "birds/owl/0.png"
    assert dataset.train.read(0).size == (12, 12)


def test_without_a_split_a_fifth_is_drawn(folder: Path) -> None:
    rows = [(f"birds/{name}/{i}.png", name) for name in ("owl", "wren") for i in range(4)]
    table = write_table(folder / "list.csv", "path,label", list(rows))
    dataset = open_table(table, seed=3)
    assert dataset.test.class_sizes().tolist() == [1, 1]
    assert contents(dataset) == contents(open_table(table, seed=3))


def test_ids_and_extra_columns_and_a_byte_order_mark(folder: Path) -> None:
    rows = [(f"n{i}", *row, "x") for i, row in enumerate(ROWS)]
    table = write_table(folder / "list.csv", "\ufeffID,Path,LABEL,split,remark", list(rows))
    assert open_table(table).train.ids == ("n0", "n2", "n3")


def test_numbers_as_labels_are_sorted_as_numbers(folder: Path) -> None:
    columns = {"path": [row[0] for row in ROWS], "label": [10, 10, 9, 9, 9]}
    columns["split"] = [row[2] for row in ROWS]
    parquet.write_table(pa.table(columns), folder / "list.parquet")
    assert open_table(folder / "list.parquet").class_names == ("9", "10")


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("file,label", [("a", "b")], "no column 'path'. Seen: file, label. Needed: path, label"),
        ("path,class", [("a", "b")], "no column 'label'. Seen: path, class"),
        ("path,label", [], "has no rows"),
        ("path,label,split", [("birds/owl/0.png", "owl", "dev")], r"1 unknown split \('dev'\)"),
        ("path,label,split", [("birds/owl/0.png", "owl", "")], r"no split in 1 row \('1'\)"),
        ("path,label", [("birds/owl/0.png", "")], r"no label in 1 row \('1'\)"),
        ("path,label", [("birds/no.png", "owl")], r"1 file \('birds/no.png'\) that do not exist"),
        ("path,label", [("birds/owl/0.png", "owl")] * 2, r"1 id \('birds/owl/0.png'\) more than"),
        ("path,label,split", [*ROWS, ("birds/owl/2.png", "owl", "val")], "both 'test' and 1 split"),
        ("path,label,split", [ROWS[0], ROWS[2]], "test split .* missing or empty"),
        ("path,label,split", [ROWS[0], ROWS[1]], r"one class only \('owl'\)"),
    ],
)
def test_bad_tables(folder: Path, header: str, rows: list[tuple[str, ...]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_table(write_table(folder / "list.csv", header, rows))


def test_files_that_are_not_tables(folder: Path) -> None:
    with pytest.raises(DataError, match=r"must end in one of \.csv, \.tsv, \.parquet"):
        open_table(folder / "list.xlsx")
    with pytest.raises(DataError, match="There is no table"):
        open_table(folder / "absent.csv")
    (folder / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(FormatError, match="not a valid Parquet file"):
        open_table(folder / "bad.parquet")
    (folder / "bad.csv").write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(FormatError, match="not a valid table in UTF-8"):
        open_table(folder / "bad.csv")
    (folder / "ragged.csv").write_text("path,label\na,b,c\n")
    with pytest.raises(FormatError, match=r"Row 1 .* has 3 fields, the header 2"):
        open_table(folder / "ragged.csv")
    (folder / "empty.csv").write_text("")
    with pytest.raises(DataError, match="has no rows"):
        open_table(folder / "empty.csv")


def test_lists_of_paths_and_uris(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("\ufeff# birds\n\na/b.png\n s3://b/c.png \n", "utf-8")
    (tmp_path / "l.csv").write_text("s3://b/a.png\ns3://b/c, d.png\n", "utf-8")
    assert list(table_rows(tmp_path / "l.txt")) == [{"path": "a/b.png"}, {"path": "s3://b/c.png"}]
    assert [row["path"] for row in table_rows(tmp_path / "l.csv")] == [
        "s3://b/a.png",
        "s3://b/c, d.png",
    ]
    assert [count_rows(tmp_path / name) for name in ("l.txt", "l.csv")] == [2, 2]
    (tmp_path / "l.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not a list in UTF-8"):
        list(table_rows(tmp_path / "l.txt"))


@pytest.mark.parametrize("columns", [("Image", "ID", "year"), ("Image",)])
def test_bytes_stay_where_they_are(tmp_path: Path, columns: tuple[str, ...]) -> None:
    whole = pa.table({"Image": [b"one", b"two"], "ID": ["a", "b"], "year": [1, 2]})
    parquet.write_table(whole.select(columns), tmp_path / "t.parquet")
    lance.write_dataset(whole.select(columns), tmp_path / "t.lance")
    for name, version in (("t.parquet", None), ("t.lance", 1)):
        place = tmp_path / name
        rows = list(table_rows(place))
        cells = [TableCell(str(place), row, "Image", version) for row in range(2)]
        assert [row["image"] for row in rows] == cells
        assert [cell.read() for cell in cells] == [b"one", b"two"]
        if len(columns) == 3:
            assert [(row["id"], row["year"]) for row in rows] == [("a", 1), ("b", 2)]
        assert count_rows(place) == 2
        assert list(table_rows(f"file://{place}"))[1].keys() == rows[1].keys()


def test_many_rows_of_a_dataset(tmp_path: Path) -> None:
    numbers = list(range(2500))
    data = pa.table({"uri": [f"{n}.png" for n in numbers], "n": numbers})
    lance.write_dataset(data, tmp_path / "t.lance", max_rows_per_file=700)
    assert [row["n"] for row in table_rows(tmp_path / "t.lance")] == numbers


def test_what_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.lance").mkdir()
    assert not is_table(tmp_path / "x.lance")  # a folder with an odd name
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "y.lance")
    assert is_table(tmp_path / "y.lance")
    tables: list[Place] = ["s3://b/t.csv", "s3://b/t.lance/", Path("t.TSV"), Path("l.txt")]
    others: list[Place] = ["s3://b/birds/", Path("x.png"), tmp_path]
    assert all(map(is_table, tables))
    assert not any(map(is_table, others))


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "t.lance" / "_versions").mkdir(parents=True)
    with pytest.raises(FormatError, match="not a valid Parquet file"):
        list(table_rows(tmp_path / "t.parquet"))
    with pytest.raises(FormatError, match="not a valid Lance dataset"):
        list(table_rows(tmp_path / "t.lance"))
    with pytest.raises(DataError, match="cannot be opened"):
        list(table_rows("memory://none.csv"))
