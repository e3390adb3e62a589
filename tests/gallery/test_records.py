from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from made_up_galleries import BOOKS, DIM, make_codebooks, make_record
from phpq.errors import DataError
from phpq.gallery.folder import new_manifest
from phpq.gallery.records import (
    base_schema,
    checked_codes,
    code_matrix,
    column_name,
    row_checks,
    sql_text,
    to_table,
)

SCHEMA = base_schema(new_manifest(make_codebooks(), "abc"))


def test_a_table_holds_what_the_records_say() -> None:
    records = [make_record("x", 5, year=2020), make_record("y", 6, label=None, place="sea")]
    table = to_table(records, np.array([7, 8]), SCHEMA)
    rows = table.to_pylist()
    assert [row["row"] for row in rows] == [7, 8]
    assert [row["id"] for row in rows] == ["x", "y"]
    assert [row["label"] for row in rows] == ["a", None]
    assert [row["year"] for row in rows] == [2020, None]
    assert [row["place"] for row in rows] == [None, "sea"]
    codes = code_matrix(table.column("code"), BOOKS)
    assert codes.tolist() == [records[0].code.tolist(), records[1].code.tolist()]
    assert table.schema.field("year").type == pa.int64()


def test_every_changed_byte_changes_the_check() -> None:
    codes = np.random.default_rng(0).integers(256, size=(50, 4), dtype=np.uint8)
    rows = np.arange(50, dtype=np.int64)
    checks = row_checks(rows, codes)
    for book in range(4):
        for change in (1, 16, 255):
            other = codes.copy()
            other[:, book] += np.uint8(change)
            assert (row_checks(rows, other) != checks).all()
    assert (row_checks(rows + 1, codes) != checks).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Year", "year"), (" a b ", "a_b"), ("x.y", "x_y"), ("2nd", "c_2nd"), ("Größe", "größe")],
)
def test_names_that_sql_can_use(name: str, expected: str) -> None:
    assert column_name(name) == expected


def test_quotes_in_a_text_are_no_end_of_it() -> None:
    assert sql_text("a' OR 'b") == "'a'' OR ''b'"


@pytest.mark.parametrize("name", ["row", "Code", "sha256", "!", "uri"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(DataError, match="cannot name a metadata column"):
        column_name(name)


def test_types_stay_as_they_began() -> None:
    schema = SCHEMA.append(pa.field("year", pa.int64())).append(pa.field("tag", pa.string()))
    rows = np.array([0])
    assert to_table([make_record("x", year="2020")], rows, schema)["year"].to_pylist() == [2020]
    with pytest.raises(DataError, match="'year' has values such as 'soon'; expected int64"):
        to_table([make_record("x", year="soon")], rows, schema)
    with pytest.raises(DataError, match="'tag' has values such as 3"):
        to_table([make_record("x", tag=3)], rows, schema)
    with pytest.raises(DataError, match="'box' holds list"):
        to_table([make_record("x", box=[1, 2])], rows, schema)
    with pytest.raises(DataError, match="'mix' has values such as 1; expected values of one type"):
        to_table([make_record("x", mix=1), make_record("y", mix="a")], np.array([0, 1]), schema)


def test_a_new_column_without_a_value_is_no_column() -> None:
    assert "year" not in to_table([make_record("x", year=None)], np.array([0]), SCHEMA).column_names


def test_embeddings_are_kept_for_all_or_none() -> None:
    schema = base_schema(new_manifest(make_codebooks(), "abc", keep_embeddings=True))
    assert schema.field("embedding").type.list_size == DIM
    with pytest.raises(DataError, match="keeps embeddings"):
        to_table([make_record("x")], np.array([0]), schema)


@pytest.mark.parametrize("harm", ["nothing", "code", "check", "row", "missing"])
def test_codes_are_given_out_only_as_they_were_written(harm: str) -> None:
    rows, codes = np.array([3, 5]), np.array([[1, 2], [3, 4]], np.uint8)
    checks = row_checks(rows, codes)
    if harm == "row":
        rows = rows + 1
    elif harm == "code":
        codes = codes ^ np.uint8(1)
    elif harm == "check":
        checks = checks ^ np.uint32(1)
    written: list[list[int] | None] = codes.tolist()
    if harm == "missing":
        written[1] = None
    table = pa.table(
        {"row": rows, "code": pa.array(written, pa.list_(pa.uint8(), 2)), "check": checks}
    )
    if harm == "nothing":
        found = checked_codes(table, 2)
        assert found[0].tolist() == [3, 5]
        assert found[1].tolist() == codes.tolist()
        return
    words = "codes are missing" if harm == "missing" else "codes are not what was written"
    with pytest.raises(ValueError, match=words):
        checked_codes(table, 2)
