"""Pointing on the page: several pictures, a part of one, more and less like this."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from browser_pages import Site, give, query_file, spoken_errors, until

pytestmark = pytest.mark.slow  # a real browser


def searched(page: Page) -> None:
    until(page, "document.querySelector('.search')?.dataset.shown === location.hash")
    expect(page.locator(".hit-link").first).to_be_visible()


def hit_ids(page: Page) -> list[str]:
    return [str(card.get_attribute("data-id")) for card in page.locator(".hit").all()]


def photographed(page: Page, pictures: Path, name: str, *, phone: bool) -> None:
    """Take pictures of a state, light and dark; nothing is wider than the page."""
    for look in ("light", "dark"):
        page.emulate_media(color_scheme=look)
        size = "narrow" if phone else "wide"
        page.screenshot(path=pictures / f"pointing-{name}-{look}-{size}.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def choose_files(page: Page, name: str, files: list[Path]) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=name).click()
    chooser.value.set_files(files)


def edges(page: Page) -> list[int]:
    names = ("Left", "Top", "Right", "Bottom")
    return [int(page.get_by_label(name, exact=True).input_value()) for name in names]


@pytest.mark.parametrize("phone", [False, True])
def test_a_part_is_chosen_by_pointer_keys_and_numbers(
    phone: bool, open_context: Callable[..., BrowserContext], site: Site, pictures: Path
) -> None:
    page = open_context(phone=phone).new_page()
    errors = spoken_errors(page)
    page.goto(site.address)
    give(page, "drop", query_file(site.gallery))
    searched(page)
    whole = hit_ids(page)
    page.get_by_role("button", name="Choose a part").last.click()
    stage = page.locator(".box-stage")
    expect(stage).to_be_visible()
    expect(page.locator(".box-frame")).to_be_focused()
    # By pointer: a new box from one place to another.
    place = stage.bounding_box()
    assert place is not None
    corner = place["x"] + 2, place["y"] + 2
    page.mouse.move(*corner)
    page.mouse.down()
    page.mouse.move(corner[0] + place["width"] / 2, corner[1] + place["height"] / 2, steps=3)
    page.mouse.up()
    drawn = edges(page)
    assert max(drawn[:2]) <= 2
    assert drawn[2] > drawn[0] + 10
    expect(page.locator("#said")).to_contain_text("Box from")
    # By keys: moved, and made larger.
    page.locator(".box-frame").focus()
    page.keyboard.press("ArrowRight")
    moved = edges(page)
    assert moved[0] > drawn[0]
    assert moved[2] - moved[0] == drawn[2] - drawn[0]
    page.keyboard.press("Shift+ArrowDown")
    assert edges(page)[3] > moved[3]
    # By numbers, which are kept inside the picture.
    page.get_by_label("Right", exact=True).fill("99999")
    page.keyboard.press("Tab")
    assert edges(page)[2] < 99999
    photographed(page, pictures, "box", phone=phone)
    page.get_by_role("button", name="Search with this part").click()
    searched(page)
    expect(page.locator("h1")).to_have_text("What looks like this part of your picture")
    expect(page.locator(".photo img")).to_have_attribute("src", re.compile("^data:image/jpeg"))
    photographed(page, pictures, "part", phone=phone)
    page.go_back()  # to the whole picture
    expect(page.locator("h1")).to_have_text("What looks like your picture")
    assert hit_ids(page) == whole
    assert errors == []


def test_a_part_is_suggested_or_it_is_said_why_not(page: Page, site: Site, pictures: Path) -> None:
    give(page, "drop", query_file(site.gallery))
    searched(page)
    page.get_by_role("button", name="Choose a part").last.click()
    page.get_by_role("button", name="Suggest a part").click()
    expect(page.locator(".box-note")).to_contain_text("Suggested")
    found = edges(page)
    assert found[0] < found[2]
    assert found[1] < found[3]

    def refuse(route: Route) -> None:
        body = '{"error": {"kind": "ConfigError", "message": "Not here.", "request_id": "1"}}'
        route.fulfill(status=400, body=body, content_type="application/json")

    page.route("**/suggest-box", refuse)
    page.get_by_role("button", name="Suggest a part").click()
    expect(page.locator(".box-note")).to_have_text("No part could be suggested. Not here.")
    photographed(page, pictures, "not-suggested", phone=False)
    page.get_by_role("button", name="Whole picture").click()
    expect(page.locator("#box")).to_be_hidden()


@pytest.mark.parametrize("phone", [False, True])
def test_several_pictures_are_one_search(
    phone: bool, open_context: Callable[..., BrowserContext], site: Site, pictures: Path
) -> None:
    page = open_context(phone=phone).new_page()
    errors = spoken_errors(page)
    page.goto(site.address)
    first, second = query_file(site.gallery), query_file(site.gallery, 1)
    choose_files(page, "Choose a picture", [first, second])
    searched(page)
    expect(page.locator("h1")).to_have_text("What looks like your 2 pictures")
    choose_files(page, "Add a picture", [first])
    expect(page.locator("h1")).to_have_text("What looks like your 3 pictures")
    expect(page.locator(".photos li")).to_have_count(3)
    photographed(page, pictures, "several", phone=phone)
    page.get_by_role("button", name="Leave out picture 3").click()
    expect(page.locator(".photos li")).to_have_count(2)
    searched(page)
    page.get_by_role("button", name="Why did 1,").click()
    expect(page.locator("#why .shares")).to_contain_text("codebook", ignore_case=True)
    page.keyboard.press("Escape")
    choose_files(page, "Add a picture", [first] * 9)
    expect(page.locator("#toasts")).to_contain_text("A search takes 8 pictures")
    expect(page.locator(".photos li")).to_have_count(8)
    expect(page.get_by_role("button", name="Add a picture")).to_be_disabled()
    assert errors == []


@pytest.mark.parametrize("phone", [False, True])
def test_hits_become_examples_and_are_taken_away_again(
    phone: bool, open_context: Callable[..., BrowserContext], site: Site, pictures: Path
) -> None:
    page = open_context(phone=phone).new_page()
    errors = spoken_errors(page)
    page.goto(site.address)
    give(page, "drop", query_file(site.gallery))
    searched(page)
    before = hit_ids(page)
    page.get_by_role("button", name=re.compile("^Less like 1,")).click()
    expect(page).to_have_url(re.compile("less="))
    searched(page)
    assert before[0] not in hit_ids(page)  # an example is no hit
    page.get_by_role("button", name=re.compile("^More like 2,")).click()
    expect(page).to_have_url(re.compile("more="))
    searched(page)
    expect(page.locator(".summary")).to_contain_text("Led by 2 examples.")
    photographed(page, pictures, "examples", phone=phone)
    led = hit_ids(page)
    other = open_context().new_page()  # the address says it all, but for the picture
    other.goto(page.url)
    searched(other)
    expect(other.locator(".example")).to_have_count(2)
    assert not {before[0]} & {*led, *hit_ids(other)}
    page.get_by_role("button", name=f"Less like {before[0]}: take away").click()
    expect(page.locator(".example")).to_have_count(1)
    page.get_by_role("button", name="Clear examples").click()
    expect(page.locator(".example")).to_have_count(0)
    searched(page)
    assert hit_ids(page) == before
    page.goto(f"{page.url}?less=nobody")
    expect(page.locator(".after")).to_contain_text("nobody")  # an address with an unknown image
    expect(page.locator(".query")).not_to_contain_text("null")
    photographed(page, pictures, "unknown", phone=phone)
    assert errors == []
