"""A folder holds the old demo or the new one, and never loses what is not the demo's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phpq.demo.run import MADE_BY, UNFINISHED, install, workshop
from phpq.errors import ConfigError

MARK = "metrics.json"
NAMES = ("runs/16", "runs/32", "report.html", MARK)


def write(folder: Path, content: str) -> None:
    """Make every file of a demo, each with this content."""
    for name in NAMES[:2]:
        (folder / name).mkdir(parents=True)
        (folder / name / "weights").write_text(content)
    (folder / "report.html").write_text(content)
    (folder / MARK).write_text(json.dumps({"made_by": MADE_BY, "content": content}))


def contents(folder: Path) -> set[str]:
    """Return what the files of a demo hold."""
    files = [folder / "runs/16/weights", folder / "runs/32/weights", folder / "report.html"]
    return {
        *(path.read_text() for path in files),
        json.loads((folder / MARK).read_text())["content"],
    }


def demo(folder: Path, content: str) -> None:
    with workshop(folder) as unfinished:
        write(unfinished, content)
        install(unfinished, folder, NAMES)


def half_a_demo(folder: Path, crash: type[BaseException]) -> None:
    with workshop(folder) as unfinished:
        write(unfinished, "half")
        raise crash


@pytest.mark.parametrize("existing", [True, False])
def test_a_new_folder_gets_the_files_and_nothing_else(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "demo" if existing else tmp_path / "deep" / "demo"
    if existing:
        folder.mkdir()
    demo(folder, "new")
    assert contents(folder) == {"new"}
    assert {path.name for path in folder.iterdir()} == {"runs", "report.html", MARK}


def test_an_earlier_demo_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    demo(tmp_path, "old")
    (tmp_path / "runs/16/stale").write_text("of the old run")
    (tmp_path / "runs/64").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    demo(tmp_path, "new")
    assert contents(tmp_path) == {"new"}
    assert not (tmp_path / "runs/16/stale").exists()
    assert (tmp_path / "runs/64").is_dir()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("crash", [RuntimeError, KeyboardInterrupt])
def test_a_crash_leaves_the_earlier_demo(tmp_path: Path, crash: type[BaseException]) -> None:
    demo(tmp_path, "old")
    with pytest.raises(crash):
        half_a_demo(tmp_path, crash)
    assert contents(tmp_path) == {"old"}
    assert not (tmp_path / UNFINISHED).exists()


def test_a_crash_leaves_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        half_a_demo(tmp_path / "demo", RuntimeError)
    assert not (tmp_path / "demo").exists()


def test_what_a_killed_demo_left_is_cleared(tmp_path: Path) -> None:
    write(tmp_path / UNFINISHED, "killed")
    demo(tmp_path, "new")
    assert contents(tmp_path) == {"new"}
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"made_by": "somebody else"}'])
def test_a_folder_of_other_things_is_refused_and_untouched(
    tmp_path: Path, text: str | None
) -> None:
    (tmp_path / "photo.jpg").write_text("precious")
    if text is not None:
        (tmp_path / MARK).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"is not empty and holds no earlier demo.*--out DIR"):
        demo(tmp_path, "new")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(ConfigError, match=r"is a file\. Give a folder"):
        demo(tmp_path / "demo", "new")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"Cannot write to the folder '.*/file/demo'"):
        demo(tmp_path / "file" / "demo", "new")
