"""Parameters that all routes share."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Form, Query
from starlette.testclient import TestClient

from phpq.gallery.view import Page
from phpq.serve.schemas import make_page, page_reader


def test_an_empty_filter_is_none() -> None:
    empty = make_page(3, 1, "  ", None, rerank=0, wrong_at_most=0.1)
    assert empty == Page(top_k=3, offset=1, wrong_at_most=0.1)
    assert make_page(3, 1, "year = 1", ["a", "b"], rerank=9, wrong_at_most=0.05) == Page(
        top_k=3, offset=1, where="year = 1", labels=("a", "b"), rerank=9
    )


def test_an_address_and_a_form_say_the_same_of_a_page() -> None:
    app = FastAPI()
    for method, place in (("GET", Query), ("POST", Form)):
        read = Depends(page_reader(place))
        app.add_api_route("/", lambda page=read: repr(page), methods=[method])
    client = TestClient(app)
    assert client.get("/").json() == client.post("/").json() == repr(Page())
    given: dict[str, Any] = {
        "top_k": 3,
        "offset": 1,
        "where": "year = 1",
        "label": ["a", "b"],
        "rerank": 9,
    }
    page = Page(top_k=3, offset=1, where="year = 1", labels=("a", "b"), rerank=9)
    assert client.get("/", params=given).json() == client.post("/", data=given).json() == repr(page)
    for wrong in ({"top_k": 0}, {"offset": -1}, {"rerank": 10_501}, {"where": "x" * 1001}):
        assert client.get("/", params=wrong).status_code == 422
        assert client.post("/", data=wrong).status_code == 422
