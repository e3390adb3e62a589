from __future__ import annotations

from pathlib import Path

import pytest

from phpq.errors import ConfigError, FormatError
from phpq.files import (
    is_taken,
    make_folder,
    read_json,
    remove_temporaries,
    replacing,
    write_bytes,
    write_json,
    write_text,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"name": "Säger", "rows": [1, 2]})
    assert read_json(path, remedy="") == {"name": "Säger", "rows": [1, 2]}
    assert "Säger" in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o644
    write_text(path, "two\n")
    assert path.read_text("utf-8") == "two\n"
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


def test_a_place_is_taken_by_a_file_or_by_what_is_in_it(tmp_path: Path) -> None:
    file, folder = tmp_path / "folder" / "a.txt", tmp_path / "folder"
    assert not is_taken(folder)
    folder.mkdir()
    assert not is_taken(folder)
    write_text(file, "a")
    assert is_taken(folder)
    assert is_taken(file)


def test_a_failure_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_library_writes_beside_goes_too(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.with_name(".tmpX1y2Z3").write_text("half")  # as safetensors names it
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
    with replacing(path) as temporary:
        temporary.with_name(".tmpX1y2Z3").write_text("whole")
        temporary.with_name(".tmpX1y2Z3").replace(temporary)
    assert path.read_text("utf-8") == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    for name in (".metrics.jsonl.y2.tmp", "notes.tmp", "metrics.jsonl", ".hidden"):
        (tmp_path / name).touch()
    killed = tmp_path / ".weights.safetensors.x1.tmp"
    killed.mkdir()
    (killed / ".tmpX1y2Z3").touch()
    remove_temporaries(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".hidden", "metrics.jsonl", "notes.tmp"]


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff", ""])
def test_damaged_json_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=r"a.json' is damaged: .* Make it again."):
        read_json(path, remedy="Make it again.")


def test_folders_are_made_or_the_way_out_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", within=("b", "c"))
    make_folder(tmp_path / "a" / "b" / "d")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "d"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"Cannot make the folder .*file.*--out DIR"):
        make_folder(tmp_path / "file" / "e")
