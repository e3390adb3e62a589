"""A real browser and a real server over a tiny gallery of drawn birds.

Pictures of the page go to the folder $PHPQ_SCREENSHOTS, or to pytest's own temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from browser_pages import Site, find_chromium, make_gallery, spoken_errors

PHONE = "Pixel 7"


# Not for the whole session: while it is open, Playwright keeps an event loop in this thread, and
# tests elsewhere that start their own would fail.
@pytest.fixture(scope="module")
def chromium() -> Iterator[tuple[Playwright, Browser]]:
    path = find_chromium()
    expect.set_options(timeout=15_000)  # a busy machine takes its time
    with sync_playwright() as playwright:
        bundled = Path(playwright.chromium.executable_path)
        if path is None and not bundled.is_file():
            pytest.skip(
                "no Chromium here: install one (apt install chromium), name it in PHPQ_CHROMIUM, "
                "or run: playwright install chromium"
            )
        # A container has no user namespaces for the sandbox; the page under test is our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield playwright, browser
        browser.close()


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gallery(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")
def site(chromium: tuple[Playwright, Browser], gallery: Path) -> Iterator[Site]:
    with Site(gallery) as running:
        yield running


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PHPQ_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def open_context(
    chromium: tuple[Playwright, Browser],
) -> Iterator[Callable[..., BrowserContext]]:
    playwright, browser = chromium
    made: list[BrowserContext] = []

    def make(*, phone: bool = False, **options: object) -> BrowserContext:
        settings: dict[str, object] = {"viewport": {"width": 1280, "height": 860}}
        if phone:
            settings = dict(playwright.devices[PHONE])
        context = browser.new_context(**(settings | options))  # type: ignore[arg-type]
        context.set_default_timeout(15_000)
        made.append(context)
        return context

    yield make
    for context in made:
        context.close()


@pytest.fixture
def page(open_context: Callable[..., BrowserContext], site: Site) -> Iterator[Page]:
    """A fresh page at the start; a script error or a breach of the policy fails the test."""
    page = open_context().new_page()
    errors = spoken_errors(page)
    page.goto(site.address)
    yield page
    assert errors == []


@pytest.fixture
def phone(open_context: Callable[..., BrowserContext], site: Site) -> Iterator[Page]:
    page = open_context(phone=True).new_page()
    errors = spoken_errors(page)
    page.goto(site.address)
    yield page
    assert errors == []
