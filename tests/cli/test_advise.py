from __future__ import annotations

from pathlib import Path

from command_line import phpq, refused
from finished_runs import copy_run


def test_measured_numbers_for_runs(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "runs" / "one")
    outcome = phpq("advise", run, "--size", "5000")
    assert outcome.code == 0, outcome.err
    assert "a gallery of 5,000 images" in outcome.out
    assert "measured" in outcome.out
    assert "computed" in outcome.out
    content = phpq(
        "advise", "plumage", "--size", "5000", "--runs", tmp_path / "runs", "--json"
    ).json()
    (row,) = content["runs"]
    assert (row["run"], row["bits"], row["bytes_per_image"]) == (str(run), 12, 2)
    assert row["search_ms"] > 0


def test_without_runs_only_sizes(tmp_path: Path) -> None:
    outcome = phpq("advise", "plumage", "--size", "1000000")
    assert "4.0 MB" in outcome.out
    assert "nothing: no evaluated run was given" in outcome.out
    content = phpq("advise", "plumage", "--size", "1000000", "--json").json()
    assert content["runs"] == []
    (row,) = [row for row in content["code_bytes"] if row["bits"] == 32]
    assert row["bytes"] == 4_000_000
    # 1.5 M + 7 bytes per row, and the cells of two books.
    assert row["memory_at_most"] == 13_000_000 + 2 * 4 * (256**2 + 1)
    assert "in memory" in outcome.out


def test_bad_input(tmp_path: Path) -> None:
    assert "There is no file or folder" in refused("advise", "nowhere", "--size", "5")
    assert phpq("advise", "plumage").code == 2
    assert phpq("advise", "plumage", "--size", "0").code == 2
    assert "no evaluated run" in refused("advise", "plumage", "--size", "5", "--runs", tmp_path)
    run = copy_run(tmp_path / "run", evaluated=False)
    assert "phpq evaluate" in refused("advise", run, "--size", "5")
