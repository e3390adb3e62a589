"""What goes over the wire: plain values, odd ids, codes in hex; filters that do not break Lance."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from made_up_galleries import make_record, make_store, record_at
from own_galleries import view_of
from phpq.errors import ConfigError
from phpq.gallery import Gallery, GalleryStore, Record
from phpq.gallery.view import GalleryView, Page
from phpq.serve._answers import (
    answer,
    check_where,
    item,
    parse_code,
    search_named,
    search_upload,
    thumbnail_address,
)
from phpq.serve.schemas import BatchQuery, Health
from served_galleries import ids, shared_gallery
from sure_galleries import question, sure_store

COLUMNS = ("id", "label", "year", "place", "seen")


@pytest.fixture(scope="module")
def view() -> GalleryView:
    gallery = Gallery.open(shared_gallery(), device="cpu")
    return GalleryView(GalleryStore.open(shared_gallery()), gallery.model.codebooks)


@pytest.mark.parametrize("name", ["a b.jpg", "x/y?z=1&w#q.jpg", "über\u2028%2e/../../etc", "+"])
def test_an_address_survives_any_id(name: str) -> None:
    assert parse_qs(urlsplit(thumbnail_address(name)).query)["id"] == [name]


def test_a_code_goes_out_and_comes_back(view: GalleryView) -> None:
    code = record_at(view, 3).code
    assert np.array_equal(parse_code(code.tobytes().hex(), view), code)
    found = search_named(view, BatchQuery(code=code.tobytes().hex()), Page(top_k=24))
    assert ids()[3] in {hit.id for hit in found.hits if hit.share > 0.999}
    for wrong in ("", "zz", "00", "ff" * 4, "00" * 5, "00 00 00 00"):
        with pytest.raises(ConfigError, match="is no code of this gallery; expected 8 hex"):
            parse_code(wrong, view)


def test_a_query_is_named_in_exactly_one_way(view: GalleryView) -> None:
    record = record_at(view, 2)
    by_id = search_named(view, BatchQuery(id=record.id), Page())
    by_uri = search_named(view, BatchQuery(uri=record.uri), Page())
    assert by_id.hits == by_uri.hits
    assert (by_id.query.kind, by_id.query.uri) == ("id", None)
    assert (by_uri.query.kind, by_uri.query.uri) == ("uri", record.uri)
    assert record.id not in {hit.id for hit in by_id.hits}
    with pytest.raises(ConfigError, match="names nothing; give exactly one"):
        search_named(view, BatchQuery(), Page())
    with pytest.raises(ConfigError, match="names id and code"):
        search_named(view, BatchQuery(id="a", code="b"), Page())


def test_ranks_follow_the_page_and_shares_are_parts_of_one(view: GalleryView) -> None:
    found = search_upload(view, view.query_of(record_at(view, 0)), Page(top_k=4, offset=3))
    assert [hit.rank for hit in found.hits] == [4, 5, 6, 7]
    assert all(0 <= hit.share <= 1 for hit in found.hits)
    assert [hit.score for hit in found.hits] == sorted([h.score for h in found.hits], reverse=True)


def test_an_item_without_a_file_says_so() -> None:
    record = Record("a", None, None, bytes(32), np.array([1, 255], np.uint8), {"year": 3})
    shown = item(record)
    assert (shown.code, shown.has_original, shown.metadata) == ("01ff", False, {"year": 3})
    assert answer(Health(status="ok"), status=503).status_code == 503


@pytest.mark.parametrize(
    "where",
    [
        "label = 'sparrow'",
        "label = 'it''s' AND year > 2020",
        "year >= -3.5e2 and year <> 4",
        "id LIKE '2024/%' OR NOT (label IN ('a', 'b') AND year BETWEEN 1 AND 2)",
        "place IS NOT NULL",
        "seen = true",
        "LABEL ilike '%wren'",
        "label = 'DROP TABLE; -- repeat(1)'",
        "year=1",
    ],
)
def test_what_people_write_passes_unchanged(where: str) -> None:
    assert check_where(where, COLUMNS) == where


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("repeat('a', 1000000000) = 'a'", "'repeat' is neither a column"),
        ("label('a') = 'a'", "'label' is no function"),
        ("year" + "+1" * 300 + " > 3", "cannot be read"),
        ("year -1 -1 -1 > 3", "follows a value"),
        ("(" * 11 + "year = 1" + ")" * 11, "too deeply nested"),
        ("not " * 9 + "seen", "too deeply nested"),
        (" or ".join(["year = 1"] * 60), "too long"),
        ("label = 'a'; drop table x", "cannot be read"),
        ("year in (select 1)", "'select' is neither"),
        ("code = 1", "'code' is neither a column"),
        ("sha256 = 'a'", "'sha256' is neither"),
        ("_rowid > 1", "'_rowid' is neither"),
        ("label = 'open", "cannot be read"),
        ('"label" = 1', "cannot be read"),
        ("label = \x00", "cannot be read"),
        ("/* */ year = 1", "cannot be read"),
    ],
)
def test_everything_else_is_refused_with_a_reason(where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        check_where(where, COLUMNS)
    assert reason in str(caught.value)
    assert "An example:" in str(caught.value)


def test_a_long_one_is_refused_before_it_is_read() -> None:
    with pytest.raises(ConfigError, match="1001 characters"):
        check_where("x" * 1001, COLUMNS)


def test_what_passes_is_understood_by_lance_or_refused_by_it(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n, label="ab"[n % 2], year=n) for n in range(9)])
    columns = ("id", "label", "year")
    # As deep and as long as allowed: it must not end the process.
    for where, expected in (
        ("(" * 10 + "year = 1" + ")" * 10, 1),
        ("not " * 8 + "(year = 1)", 1),
        (" or ".join(["year = 1"] * 50), 1),
        ("label = 'a' and year > 3", 3),
    ):
        assert store.count(check_where(where, columns)) == expected
    with pytest.raises(ConfigError, match="cannot be used"):
        store.count(check_where("year = = 1", columns))


def test_what_is_sure_goes_over_the_wire_and_codes_have_no_probability(tmp_path: Path) -> None:
    view = view_of(sure_store(tmp_path / "g"))
    page = Page(top_k=3, wrong_at_most=0.4)
    query = question("blue dark")[0]
    expected = view.search(query, page)
    told = search_upload(view, query, page).model_dump(mode="json")
    assert expected.verdict is not None
    assert expected.verdict.sure is not None
    assert told["verdict"] == json.loads(json.dumps(expected.verdict.to_dict()))
    assert [hit["probability"] for hit in told["hits"]] == [hit.probability for hit in expected]
    by_code = search_named(view, BatchQuery(code=told["query"]["code"]), page)
    assert by_code.verdict is not None
    assert (by_code.verdict.sure, by_code.hits[0].probability) == (None, None)
