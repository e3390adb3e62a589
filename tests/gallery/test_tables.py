from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyarrow import parquet

from phpq.errors import DataError, FormatError
from phpq.gallery.origins import TableCell
from phpq.gallery.places import Place
from phpq.gallery.tables import count_rows, is_table, table_rows


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
