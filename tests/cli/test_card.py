from __future__ import annotations

from pathlib import Path

from command_line import phpq, refused
from finished_runs import copy_run


def test_a_card_is_written_beside_the_model_or_elsewhere(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    assert phpq("card", run, "--json").json() == {"card": str(run / "README.md")}
    out = tmp_path / "card.md"
    assert phpq("card", run, "--out", out, "--licence", "mit").code == 0
    assert "license: mit" in out.read_text("utf-8")
    assert "is not a model folder" in refused("card", tmp_path)
