from __future__ import annotations

from pathlib import Path

import pytest

from phpq.errors import ConfigError, FormatError
from phpq.gallery.damage import HINT, IMAGES, damage_named, newest_seen


def test_damage_names_the_repair_and_hides_the_source(tmp_path: Path) -> None:
    with (
        pytest.raises(FormatError, match=r"is damaged: Not found: x. Repair it with: phpq gallery"),
        damage_named(tmp_path),
    ):
        raise OSError("Not found: x, /home/builder/src/io.rs:3:4")


def test_our_own_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mine"), damage_named(tmp_path):
        raise ConfigError("mine")


def test_the_hint_is_only_a_hint(tmp_path: Path) -> None:
    assert newest_seen(tmp_path) == 0
    hint = tmp_path / IMAGES / HINT
    hint.parent.mkdir(parents=True)
    hint.write_text("nonsense")
    assert newest_seen(tmp_path) == 0
    hint.write_text('{"version": 4}')
    assert newest_seen(tmp_path) == 4
