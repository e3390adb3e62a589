"""The table of methods is plain data that needs nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from phpq.config import RECIPES


def test_the_table_is_read_without_torch_and_without_the_methods() -> None:
    code = "import sys, phpq.config; sys.exit(any(m in sys.modules for m in ('torch', 'faiss')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_entries_are_found_by_their_names_and_cost_something() -> None:
    assert all(name == recipe.name for name, recipe in RECIPES.items())
    assert len({recipe.title for recipe in RECIPES.values()}) == len(RECIPES)
    assert all(recipe.cost > 0 for recipe in RECIPES.values())
    assert {name for name, recipe in RECIPES.items() if "faiss" in recipe.needs} == {"pq", "opq"}
