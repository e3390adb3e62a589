"""`phpq audit`: what is printed, what is left for the page, undo, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import phpq, refused
from doubtful_galleries import COPY, EQUAL, STRANGE, WRONG, doubtful
from made_up_galleries import FakeModel
from phpq.audit import Audit, decide, list_decisions, report
from phpq.audit.report import kept_report
from phpq.gallery import GalleryStore, models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return doubtful(tmp_path_factory.mktemp("audited") / "g").folder


@pytest.fixture(autouse=True)
def made_up_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", lambda *_: FakeModel())


def test_findings_are_listed_and_what_was_decided_is_not(folder: Path) -> None:
    outcome = phpq("audit", folder)
    assert outcome.code == 0
    assert "2 groups" in outcome.out
    assert f"{' = '.join(EQUAL)} (equal files)" in outcome.out
    name = next(iter(WRONG))
    assert f"{name}: blue, looks like red" in outcome.out
    assert STRANGE in outcome.out
    assert f"phpq audit {folder} --page" in outcome.out
    content = kept_report(folder)
    assert content is not None
    store = GalleryStore.open(folder)
    [group] = [each for each in content["copies"] if set(each["ids"]) == set(COPY)]
    decide(store, group["key"], "merge", ids=group["ids"], yes=True)
    later = phpq("audit", folder, "--json").json()
    assert [each["ids"] for each in later["copies"]] == [list(EQUAL)]
    assert later["wrong_labels"]
    undone = phpq("audit", folder, "--undo", "--json").json()
    assert (undone["action"], undone["ids"]) == ("merge", list(group["ids"]))
    assert list_decisions(folder) == []
    assert len(GalleryStore.open(folder)) == len(store) + 1


def test_where_nothing_was_found_nothing_is_to_be_decided(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--page" in phpq("audit", folder).out
    nothing = Audit(gallery="g", version=1, images=0, vectors="kept embeddings")
    monkeypatch.setattr(report, "audit_gallery", lambda *_, **__: nothing)
    assert "--page" not in phpq("audit", folder).out


def test_mistakes_are_said(folder: Path, tmp_path: Path) -> None:
    assert "no decision to undo" in refused("audit", folder, "--undo")
    assert "goes with neither" in refused("audit", folder, "--page", "--json")
    assert "does not exist" in refused("audit", tmp_path / "nothing")
    assert "cannot be used" in refused("audit", folder, "--where", "lable = 'red'")


def test_the_page_is_served_on_this_machine_with_a_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phpq.cli import serve
    from phpq.gallery import Gallery

    seen: dict[str, Any] = {}

    def run(gallery: Any, settings: Any, listener: Any, *, path: str) -> None:
        seen.update(gallery=gallery, settings=settings, path=path)

    monkeypatch.setattr(serve, "run", run)
    nothing = Audit(gallery="g", version=1, images=0, vectors="kept embeddings")
    monkeypatch.setattr(report, "audit_gallery", lambda *_, **__: nothing)
    monkeypatch.setattr(Gallery, "open", lambda folder, device: f"{folder} on {device}")
    assert phpq("audit", folder, "--page", "--device", "cpu").code == 0
    settings = seen["settings"]
    assert (settings.on_loopback, settings.writable) == (True, True)
    assert seen["path"] == f"/#/audit?token={settings.token}"
    assert len(settings.token) > 30
