"""Parameters that all routes share."""

from __future__ import annotations

import pytest

from phpq.gallery.view import Page
from phpq.serve.schemas import form_page, make_page, query_page, upload_name


def test_an_empty_filter_is_none() -> None:
    assert make_page(3, 1, "  ", None, rerank=0) == Page(top_k=3, offset=1)
    assert make_page(3, 1, "year = 1", ["a", "b"], rerank=9) == Page(
        top_k=3, offset=1, where="year = 1", labels=("a", "b"), rerank=9
    )
    assert query_page() == form_page() == Page()


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\a.png", "a.png"),
        ("", "uploaded image"),
        (None, "uploaded image"),
        ("x" * 500, "x" * 120),
    ],
)
def test_an_upload_is_called_by_its_file(filename: str | None, expected: str) -> None:
    assert upload_name(filename) == expected
