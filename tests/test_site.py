"""The pages of the site that are written from the code, and the site as a browser shows it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from browser_pages import find_chromium
from phpq.cli import COMMANDS
from phpq.errors import error_pages
from test_docs import GENERATED, ROOT


@cache
def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_these() -> None:
    pages = site_pages().generated_pages()
    assert sorted(pages) == sorted(GENERATED)
    assert all(f"## {code}\n" in pages["troubleshooting.md"] for code in error_pages())


def test_every_command_and_option_is_there() -> None:
    page = site_pages().command_page()
    headings = re.findall(r"^## phpq (\S+)$", page, re.MULTILINE)
    assert headings == list(COMMANDS)
    assert "### phpq gallery upgrade" in page
    for option in ("`--bits`", "`--own-codebooks`", "`--where`", "`--runtime`", "`SOURCE`"):
        assert option in page, option


def test_every_route_is_there() -> None:
    page = site_pages().http_page()
    for route in ("POST /api/v1/search", "DELETE /api/v1/items", "GET /health"):
        assert f"## {route}\n" in page, route
    assert "| `wrong_at_most` | number 0.0 to 1.0, 0.05 by default |" in page


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does: warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"([^\"]+)", text)
        assert loaded
        assert not [place for place in loaded if "//" in place], page


@pytest.mark.slow
def test_a_browser_shows_it_wide_and_narrow(built: Path, tmp_path: Path) -> None:
    from playwright.sync_api import Request, sync_playwright

    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium here: install one, or name it in PHPQ_CHROMIUM")
    pictures = Path(os.environ.get("PHPQ_SCREENSHOTS") or tmp_path)
    pictures.mkdir(parents=True, exist_ok=True)
    asked: list[str] = []
    troubles: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for shape, width in {"wide": 1400, "narrow": 390}.items():
            view = browser.new_page(viewport={"width": width, "height": 900})
            view.on("request", note)
            view.on("pageerror", lambda error: troubles.append(str(error)))
            for name in ("index", "guides/index", "reference/api", "reference/cli", "faq"):
                view.goto((built / f"{name}.html").as_uri())
                view.screenshot(path=pictures / f"site-{name.replace('/', '-')}-{shape}.png")
                # A wide table scrolls by itself; the page does not.
                beyond = view.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert beyond <= 0, (name, shape)
                assert view.locator("h1").first.is_visible()
        browser.close()
    assert not troubles
    assert not [address for address in asked if not address.startswith(("file:", "data:", "blob:"))]
