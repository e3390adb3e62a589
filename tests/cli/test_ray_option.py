from __future__ import annotations

import pytest

from phpq.cli.ray_option import with_address


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("index g src", "index g src"),
        ("index g src --ray", "index g src --ray local"),
        ("index --ray g src", "index --ray local g src"),
        ("index g src --ray auto", "index g src --ray auto"),
        ("index g src --ray head:6379 --json", "index g src --ray head:6379 --json"),
        ("serve g --ray ray://head:10001", "serve g --ray ray://head:10001"),
        ("serve g --ray --shards 4", "serve g --ray local --shards 4"),
        ("index g src --ray=auto", "index g src --ray=auto"),
        ("index --ray -- --ray src", "index --ray local -- --ray src"),
        ("", ""),
    ],
)
def test_a_bare_option_gets_an_address(line: str, wanted: str) -> None:
    assert with_address(line.split()) == wanted.split()
