"""What a release carries: one version everywhere, notices, and nothing of others in the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from phpq import __version__

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"^version: (\S+)$"),
        ("CHANGELOG.md", r"^## \[(\d\S*)\]"),
        (".github/workflows/checks.yml", r"phpq==(\S+)$"),
    ],
)
def test_the_version_is_the_same_everywhere(file: str, pattern: str) -> None:
    found = re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == __version__


def test_notices_go_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license-files"] == ["LICENSE", "NOTICE"]
    assert all((ROOT / name).is_file() for name in project["license-files"])


def test_nothing_of_others_is_bundled() -> None:
    """NOTICE says so: what is no Python is text of ours, and no script is packed."""
    files = [path for path in (ROOT / "src" / "phpq").rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in others} == {".css", ".html", ".js", ".md", ".svg", ".typed"}
    for path in others:
        text = path.read_text("utf-8")
        assert "copyright" not in text.lower(), path
        assert max(map(len, text.splitlines()), default=0) < 500, path
