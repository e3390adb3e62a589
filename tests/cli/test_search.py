from __future__ import annotations

from pathlib import Path

from command_line import phpq
from finished_runs import copy_run
from tiny_runs import tiny_birds


def test_a_table_for_each_photograph(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    photos = [tmp_path / "one [a].png", tmp_path / "two.png"]
    for number, photo in enumerate(photos):
        tiny_birds().test.read(4 * number).save(photo)
    outcome = phpq("search", run, *photos, "--top-k", "2")
    assert outcome.code == 0, outcome.err
    flat = outcome.out.replace("\n", "")
    assert "one [a].png" in flat  # no markup
    assert "two.png" in flat
    assert outcome.out.count("of the hits") == 2
    content = phpq("search", run, *photos, "--top-k", "2", "--json").json()
    for query in content["queries"]:
        assert f"{query['label']}, with {query['share']:.0%} of the hits" in outcome.out
        assert len(query["hits"]) == 2
