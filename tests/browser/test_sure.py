"""What the page says where the gallery knows how likely it is right: a name, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser_pages import Site, give, make_gallery, query_file, spoken_errors, until
from sure_galleries import FAMILY, sure_at

pytestmark = pytest.mark.slow  # a real browser


@pytest.fixture(scope="module")
def galleries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a gallery with codebooks of its own, and one with those of its model."""
    own = make_gallery(tmp_path_factory.mktemp("sure"), codebooks="own", bits=16)
    return {"own": own, "model": make_gallery(tmp_path_factory.mktemp("coded"))}


@pytest.mark.parametrize(
    ("of", "level", "name", "hint", "said"),
    [
        ("own", 0, "kind", " likely. Names are given so that at most 5 % are", "Most likely "),
        ("own", 1, FAMILY, "which kind is not sure", f"Most likely {FAMILY}"),
        ("own", None, "Unknown", "No name is sure enough", "Unknown. The nearest kinds: "),
        ("model", 0, "kind", " likely. Names are given so that at most 5 % are", "Most likely "),
        ("model", None, "Unknown", "No name is sure enough", "Unknown. The nearest kinds: "),
    ],
)
def test_what_is_sure_is_said(
    galleries: dict[str, Path],
    open_context: Callable[..., BrowserContext],
    pictures: Path,
    of: str,
    level: int | None,
    name: str,
    hint: str,
    said: str,
) -> None:
    own = galleries[of]
    sure_at(own, level)
    with Site(own) as site:
        for phone in (False, True):
            page = open_context(phone=phone).new_page()
            errors = spoken_errors(page)
            page.goto(site.address)
            give(page, "drop", query_file(own))
            until(page, "document.querySelector('.search')?.dataset.shown === location.hash")
            check(page, level, name, hint, said)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for look in ("light", "dark"):
                page.emulate_media(color_scheme=look)
                size = "narrow" if phone else "wide"
                page.screenshot(path=pictures / f"sure-{of}-{level}-{look}-{size}.png")
            assert errors == []


def check(page: Page, level: int | None, name: str, hint: str, said: str) -> None:
    """Look at what is said, shown on hits, and reached by keys."""
    kinds = page.get_by_role("region", name="What it may be")
    expect(kinds).to_contain_text(hint)
    expect(page.locator("#said")).to_contain_text(said)
    buttons = kinds.get_by_role("button")
    expect(buttons).to_have_count(4)  # four species, whatever is said of them
    if level == 0:
        expect(kinds.locator(".kind-name")).to_have_count(0)
    else:
        expect(kinds.locator(".kind-name")).to_have_text(name)
        expect(kinds).to_contain_text("The nearest kinds")
    expect(page.locator(".hit-score").first).to_contain_text("%")
    card = page.locator(".hit-link").first
    assert "likely the same kind, score" in str(card.get_attribute("aria-label"))
    buttons.last.focus()
    page.keyboard.press("Enter")
    expect(buttons.last).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    expect(buttons.last).to_have_attribute("aria-pressed", "false")
