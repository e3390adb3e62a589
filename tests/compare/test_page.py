"""The page of a comparison, made of plain data alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_comparisons import made_up_content
from phpq.compare.page import _bytes, _timed_alike, build_page, short_name, write_comparison
from phpq.report.blocks import Figure, render_markdown


def test_the_page_has_every_number_and_what_was_left_out() -> None:
    text = render_markdown(build_page(made_up_content(), pictures="figures/"))
    assert "| float search, frozen trunk | no | 40.0 | 40.0 | 40.0 | 12.5 | 10.0 | 100.0 |" in text
    assert "| phpq 8 bytes, model's codebooks | yes |" in text
    assert "- Image a.jpg: it is damaged." in text
    assert "timed with fewer" in text
    assert "e+0" not in text
    assert "are made up" in text
    assert "(figures/compare-bytes.png)" in text
    assert "- commit: abc1234" in text
    assert "- codewords, PQ 8 bytes: 64" in text


def test_rows_that_were_not_encoded_are_told() -> None:
    content = made_up_content()
    assert "these repeat" not in render_markdown(build_page(content))
    content["rows"][1]["speeds"][0] |= {"rows": 1000, "encoded": 100}
    assert "beyond 100 these repeat" in render_markdown(build_page(content))


def test_speeds_are_drawn_at_one_number_of_rows() -> None:
    content = made_up_content()
    first, second = (row["speeds"] for row in content["rows"])
    assert "not drawn" not in render_markdown(build_page(content))
    for each in (first, second):
        each.append(each[0] | {"asked": 10**7, "rows": 10**7, "one_thread": 1.0})
    assert [_timed_alike(content["rows"])[0], len(_timed_alike(content["rows"])[1])] == [10**7, 2]
    first.pop()
    first.append(first[0] | {"asked": 10**7})  # more did not fit
    size, timed = _timed_alike(content["rows"])
    assert (size, [value for _, value in timed]) == (48, [1e3, 1e3])
    first[:] = [one | {"rows": 5} for one in first]
    size, timed = _timed_alike(content["rows"])
    assert (size, [value for _, value in timed]) == (10**7, [1.0])
    assert "not drawn: float." in render_markdown(build_page(content))


def test_files_are_written_and_the_page_comes_from_the_data_alone(tmp_path: Path) -> None:
    write_comparison(tmp_path, made_up_content())
    assert {path.name for path in tmp_path.iterdir()} == {
        *("compare.html", "compare.md", "compare.json"),
        *("compare-bytes.png", "compare-speed.png"),
    }
    again = build_page(json.loads((tmp_path / "compare.json").read_text("utf-8")))
    assert render_markdown(again) == (tmp_path / "compare.md").read_text("utf-8")
    figures = [b for s in again.sections for b in s.blocks if isinstance(b, Figure)]
    assert len(figures) == 2


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("float search, frozen trunk", "float"),
        ("OPQ 8 bytes, whitened trunk", "OPQ 8 B, whitened"),
        ("phpq 8 bytes, gallery's codebooks, with its labels", "phpq 8 B, gallery's, labels"),
    ],
)
def test_pictures_have_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_sizes_are_written_without_exponents() -> None:
    assert [_bytes(count) for count in (4.62e6, 81e6, 106e6, 9.6e8, 1.5e9, 3.1e10)] == [
        *("4.62 MB", "81 MB", "106 MB", "960 MB", "1.5 GB", "31 GB")
    ]
