"""The document as a page: complete, escaped, without scripts and without the network."""

from __future__ import annotations

import json

from starlette.testclient import TestClient

from phpq.serve.routes_docs import render


def test_the_page_names_every_operation_and_needs_nothing_from_elsewhere(
    client: TestClient,
) -> None:
    page = client.get("/docs").text
    document = client.get("/openapi.json").json()
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    assert "<script" not in page
    assert "style=" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert client.get("/docs/style.css").headers["content-type"].startswith("text/css")


def test_types_limits_and_files_are_said(client: TestClient) -> None:
    page = client.get("/docs").text
    assert "integer 1 to 500, 10 by default" in page
    assert "<td>file</td>" in page
    assert "list of HitAnswer" in page
    assert "add or upsert" in page


def test_what_a_document_says_is_escaped() -> None:
    operation = {"description": "<b>bold</b>", "responses": {"200": {"description": "x"}}}
    document = {"info": {"title": "<i>", "version": "1"}, "paths": {"/x": {"get": operation}}}
    page = render(json.dumps(document))
    assert "&lt;b&gt;bold" in page
    assert "<i>" not in page
