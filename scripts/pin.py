"""Refresh the exact versions in pyproject.toml: `uv run python scripts/pin.py`.

The lock file names registry hosts and stays out of the repository, so the versions that it would
fix are written to `[tool.uv] constraint-dependencies` instead. The constraints are emptied, the
newest versions that fit are resolved, and every package of that resolution is pinned.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
BLOCK = re.compile(r"constraint-dependencies = \[\n.*?^\]\n", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Resolve anew and rewrite the block."""
    before = PROJECT.read_text("utf-8")
    if not BLOCK.search(before):
        raise SystemExit("pyproject.toml has no constraint-dependencies block to refresh.")
    try:
        PROJECT.write_text(with_constraints(before, []), "utf-8")
        run("uv", "lock", "--upgrade", "--quiet")
        listing = run(
            "uv", "export", "--quiet", "--all-extras", "--all-groups", "--no-hashes",
            "--no-annotate", "--no-header", "--no-emit-project",
        )  # fmt: skip
    except BaseException:
        PROJECT.write_text(before, "utf-8")
        raise
    pins = [line.strip() for line in listing.splitlines() if "==" in line]
    PROJECT.write_text(with_constraints(before, pins), "utf-8")
    run("uv", "lock", "--quiet")  # the constraints must resolve to themselves
    print(f"pinned {len(pins)} packages")  # noqa: T201


def with_constraints(text: str, pins: list[str]) -> str:
    """Return the project file with these pins in its block."""
    lines = "".join(f'    "{pin}",\n' for pin in pins).replace("\\", "\\\\")
    return BLOCK.sub(lambda _: f"constraint-dependencies = [\n{lines}]\n", text)


def run(*command: str) -> str:
    """Run a command and return what it printed."""
    folder = PROJECT.parent
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
