"""/audit: looking in the background, decisions with the token, a yes, and undo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from phpq.audit.report import Audit, CopyGroup, WrongLabel, keep_report
from phpq.errors import DataError
from phpq.serve import routes_audit
from served_galleries import IMAGES, TOKEN, copy_gallery, ids, served

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


def waited(client: TestClient) -> dict[str, Any]:
    """Return the answer when no audit is at work any more."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        told: dict[str, Any] = client.get("/api/v1/audit").json()
        if told["state"] != "working":
            return told
        time.sleep(0.02)
    raise AssertionError("the audit does not end")


def images(client: TestClient) -> int:
    return int(client.get("/api/v1/info").json()["images"])


def test_an_audit_runs_in_the_background_and_decisions_can_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_gallery(tmp_path)
    twin, copy = ids()[0], tmp_path / "files" / "twin.jpg"
    copy.write_bytes((tmp_path / "files" / twin).read_bytes())
    with served(folder, writable=True, token=TOKEN) as client:
        assert client.get("/api/v1/audit").json()["state"] == "none"
        for path in ("audit", "audit/decisions", "audit/undo"):
            assert client.post(f"/api/v1/{path}", json={}).status_code == 401
        assert client.get("/api/v1/audit").json()["state"] == "none"
        sent = {"image": ("twin.jpg", copy.read_bytes(), "image/jpeg")}
        client.post("/api/v1/items", data={"id": "twin"}, files=sent, headers=AUTHORISED)
        began = client.post("/api/v1/audit", headers=AUTHORISED)
        assert began.status_code == 200
        told = waited(client)
        assert told["state"] == "done"
        [group] = [each for each in told["report"]["copies"] if "twin" in each["ids"]]
        assert (set(group["ids"]), group["exact"]) == ({twin, "twin"}, True)

        merge = {"key": group["key"], "action": "merge", "ids": [twin, "twin"]}
        refused = client.post("/api/v1/audit/decisions", json=merge, headers=AUTHORISED)
        assert refused.status_code == 400
        assert "without a yes" in refused.json()["error"]["message"]
        assert images(client) == IMAGES + 1
        done = client.post(
            "/api/v1/audit/decisions", json={**merge, "yes": True}, headers=AUTHORISED
        )
        assert group["key"] not in {each["key"] for each in done.json()["report"]["copies"]}
        assert done.json()["last"]["action"] == "merge"
        assert images(client) == IMAGES
        undone = client.post("/api/v1/audit/undo", headers=AUTHORISED).json()
        assert (undone["decided"], undone["last"]) == (0, None)
        assert images(client) == IMAGES + 1
        assert client.get("/api/v1/thumbnail", params={"id": "twin"}).status_code == 200

        def fail(*_: object, **__: object) -> Audit:
            raise DataError(f"{folder} is full.")

        monkeypatch.setattr(routes_audit, "audit_gallery", fail)
        client.post("/api/v1/audit", headers=AUTHORISED)
        failed = waited(client)
        assert (failed["state"], failed["error"]) == ("failed", "birds.gallery is full.")
        assert failed["report"] is not None  # of the one before

        monkeypatch.setattr(routes_audit, "audit_gallery", lambda *_, **__: 1 / 0)
        client.post("/api/v1/audit", headers=AUTHORISED)
        assert "its log tells more" in waited(client)["error"]


def test_a_wrong_decision_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    one, other = ids()[:2]
    label = one.split("/")[0]
    keep_report(
        folder,
        Audit(
            gallery="g",
            version=1,
            images=IMAGES,
            vectors="kept embeddings",
            copies=(CopyGroup("c", (one, other), False, (label, None)),),
            wrong_labels=(WrongLabel("w", one, label, "wren", 0.9, 0.95),),
        ),
    )
    with served(folder, writable=True, token=TOKEN) as client:
        assert client.get("/api/v1/audit").json()["state"] == "done"
        for status, decision in (
            (422, {"key": "w", "action": "burn"}),
            (422, {"key": "w", "action": "keep", "more": 1}),
            (404, {"key": "w", "action": "delete", "ids": ["who"], "yes": True}),
            (400, {"key": "w", "action": "merge labels", "label": "wren"}),
        ):
            answer = client.post("/api/v1/audit/decisions", json=decision, headers=AUTHORISED)
            assert answer.status_code == status, answer.text
        assert client.post("/api/v1/audit/undo", headers=AUTHORISED).status_code == 400
        assert client.get("/api/v1/audit").json()["decided"] == 0
        relabel = {"key": "w", "action": "relabel", "ids": [one], "label": "wren"}
        told = client.post("/api/v1/audit/decisions", json=relabel, headers=AUTHORISED).json()
        assert told["report"]["wrong_labels"] == []
        assert client.get("/api/v1/item", params={"id": one}).json()["label"] == "wren"
        client.post("/api/v1/audit/undo", headers=AUTHORISED)
        assert client.get("/api/v1/item", params={"id": one}).json()["label"] == label


def test_a_read_only_server_shows_and_does_not_decide(client: TestClient) -> None:
    assert client.get("/api/v1/audit").status_code == 200
    assert client.post("/api/v1/audit", headers=AUTHORISED).status_code == 403
