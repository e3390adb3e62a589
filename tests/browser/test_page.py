"""The page as people use it: a picture in, hits out, on and on; by mouse, finger and keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser_pages import (
    Site,
    give,
    labels_of,
    make_gallery,
    query_file,
    spoken_errors,
    until,
)

pytestmark = pytest.mark.slow  # a real browser

LIKE = re.compile("^Like ")
YOURS = "What looks like your picture"


def searched(page: Page) -> None:
    """Wait until the hits on the page are those of its address."""
    until(page, "document.querySelector('.search')?.dataset.shown === location.hash")
    expect(page.locator(".hit-link").first).to_be_visible()


def hit_ids(page: Page) -> list[str]:
    return [str(card.get_attribute("data-id")) for card in page.locator(".hit").all()]


def from_first_image(page: Page) -> None:
    page.locator(".start-from a").first.click()
    searched(page)


def no_sideways_scroll(page: Page) -> None:
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the page is {wide} pixels too wide"


class TestSearch:
    def test_drop_a_picture_and_see_hits(self, page: Page, site: Site, pictures: Path) -> None:
        expect(page.locator("h1")).to_have_text("Which one is it?")
        expect(page.locator("#facts")).to_contain_text("40 images")
        page.screenshot(path=pictures / "home.png")
        give(page, "hover", query_file(site.gallery))
        expect(page.locator("#drop-veil")).to_be_visible()
        give(page, "drop", query_file(site.gallery))
        searched(page)
        expect(page.locator("#drop-veil")).to_be_hidden()
        expect(page.locator("h1")).to_have_text(YOURS)
        expect(page.locator(".hit")).to_have_count(24)
        expect(page.locator(".query img")).to_have_attribute("src", re.compile("^blob:"))
        assert re.search(r"#/code/[0-9a-f]{8}$", page.url)
        page.screenshot(path=pictures / "search.png")

    def test_scores_fall_and_bars_say_the_same(self, page: Page) -> None:
        from_first_image(page)
        scores = [float(text) for text in page.locator(".hit-score").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        widths = page.locator(".hit .bar-fill").evaluate_all(
            "(bars) => bars.map((bar) => bar.getBoundingClientRect().width)"
        )
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 0

    def test_paste_and_pick_do_as_drop(self, page: Page, site: Site) -> None:
        give(page, "paste", query_file(site.gallery, 1))
        searched(page)
        pasted = page.url
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose a picture").click()
        chooser.value.set_files(query_file(site.gallery, 3))
        expect(page.locator(".query h2")).to_have_text(query_file(site.gallery, 3).name)
        page.go_back()
        expect(page).to_have_url(pasted)

    def test_click_through_and_back_and_forward(self, page: Page) -> None:
        from_first_image(page)
        first, hits = page.url, hit_ids(page)
        page.locator(".hit-link").nth(2).click()
        searched(page)
        assert unquote(page.url).endswith(f"#/id/{hits[2]}")
        assert hits[2] not in hit_ids(page)  # an image is not its own hit
        second = hit_ids(page)
        page.go_back()
        expect(page).to_have_url(first)
        expect(page.locator(".hit").first).to_have_attribute("data-id", hits[0])
        assert hit_ids(page) == hits
        page.go_forward()
        expect(page.locator(".hit").first).to_have_attribute("data-id", second[0])

    def test_back_returns_to_the_place_that_was_left(self, page: Page) -> None:
        from_first_image(page)
        page.locator(".hit-link").nth(12).scroll_into_view_if_needed()
        until(page, "scrollY > 100")
        left = page.evaluate("scrollY")
        page.locator(".hit-link").nth(12).click()
        until(page, "scrollY === 0")
        page.go_back()
        until(page, f"Math.abs(scrollY - {left}) < 2")

    def test_an_address_can_be_shared(
        self, page: Page, site: Site, open_context: Callable[..., BrowserContext]
    ) -> None:
        give(page, "drop", query_file(site.gallery))
        searched(page)
        label = labels_of(site.gallery)[1]
        page.goto(f"{page.url}?label={label}&f=year:least:2021")
        searched(page)
        own = hit_ids(page)
        other = open_context().new_page()
        other.goto(page.url)
        searched(other)
        assert set(hit_ids(other)) == set(own)
        expect(other.locator(".chip")).to_have_count(2)
        expect(other.locator(".code-drawing")).to_be_visible()  # the picture is not in the link
        assert {name.split("/")[0] for name in own} == {label}

    def test_a_reload_keeps_a_small_copy_of_the_picture(self, page: Page, site: Site) -> None:
        give(page, "drop", query_file(site.gallery))
        searched(page)
        until(page, "history.state.preview !== undefined")
        page.reload()
        searched(page)
        expect(page.locator(".query img")).to_have_attribute("src", re.compile("^data:image/jpeg"))
        page.goto(f"{site.address}#/upload")  # an address that cannot be kept
        expect(page.locator("h1")).to_have_text("Which one is it?")

    def test_two_pictures_with_one_code_stay_apart(self, page: Page, site: Site) -> None:
        same = query_file(site.gallery)
        give(page, "drop", same)
        searched(page)
        source = page.locator(".query img").get_attribute("src")
        expect(page).to_have_url(re.compile("#/code/"))
        give(page, "drop", same)
        expect(page.locator(".query img")).not_to_have_attribute("src", str(source))
        expect(page).to_have_url(re.compile("#/code/"))
        page.go_back()
        expect(page.locator(".query img")).to_have_attribute("src", str(source))

    def test_show_more_until_the_end(self, page: Page) -> None:
        from_first_image(page)
        page.get_by_role("button", name="Show more").click()
        expect(page.locator(".hit")).to_have_count(39)
        expect(page.locator(".end")).to_have_text("That is all: 39 hits.")
        assert len(set(hit_ids(page))) == 39
        expect(page.locator(".hit-link").nth(24)).to_be_focused()

    def test_texts_of_the_gallery_are_never_read_as_html(self, page: Page) -> None:
        from_first_image(page)
        expect(page.locator(".hit-about").first).to_contain_text("<img src=x onerror=alert(1)>")
        assert page.locator("main img[src='x']").count() == 0


class TestFilters:
    def test_by_label_with_suggestions(self, page: Page, site: Site, pictures: Path) -> None:
        from_first_image(page)
        label = labels_of(site.gallery)[2]
        words = label.split(".")[1].replace("_", " ")
        page.get_by_role("combobox", name="Label").fill(words[:6].lower())
        page.get_by_role("option", name=re.compile(words)).click()
        expect(page.locator(".summary")).to_contain_text("10 images that pass the filters")
        assert {name.split("/")[0] for name in hit_ids(page)} == {label}
        page.screenshot(path=pictures / "filter.png")
        page.go_back()
        expect(page.locator(".summary")).to_contain_text("39 images,")
        expect(page.locator(".chip")).to_have_count(0)

    def test_by_fields_and_chips_take_them_away(self, page: Page) -> None:
        from_first_image(page)
        form = page.get_by_role("form", name="Filter by a field")
        form.get_by_label("Field").select_option("year")
        form.get_by_label("Comparison").select_option("least")
        form.get_by_label("Value").fill("2022")
        form.get_by_role("button", name="Add").click()
        expect(page.locator(".chip")).to_have_text(["year at least 2022"])
        searched(page)
        form.get_by_label("Field").select_option("ringed")
        form.get_by_role("button", name="Add").click()
        form.get_by_label("Field").select_option("place")
        form.get_by_label("Comparison").select_option("has")
        form.get_by_label("Value").fill("ORCH")
        form.get_by_role("button", name="Add").click()
        expect(page.locator(".chip")).to_have_count(3)
        expect(page.locator(".hit-about").first).to_contain_text("old orchard · ringed")
        page.get_by_role("button", name="Remove the filter year at least 2022").click()
        expect(page.locator(".chip")).to_have_count(2)
        page.get_by_role("button", name="Clear all").click()
        expect(page.locator(".summary")).to_contain_text("39 images,")

    def test_by_expression_and_its_error(self, page: Page, pictures: Path) -> None:
        from_first_image(page)
        page.get_by_text("For experts").click()
        page.get_by_label("Expression").fill("yaer = 2020")
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_role("alert")).to_contain_text("'yaer' is neither a column")
        page.screenshot(path=pictures / "error.png")
        page.get_by_label("Expression").fill("year = 2020 AND place = 'nowhere'")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator(".state")).to_contain_text("No image passes these filters")
        page.screenshot(path=pictures / "empty.png")
        page.get_by_role("button", name="Clear the filters").click()
        searched(page)

    def test_filters_stay_when_one_clicks_through(self, page: Page) -> None:
        from_first_image(page)
        page.goto(f"{page.url}?f=place:is:marsh")
        expect(page.locator(".summary")).to_contain_text("that pass the filters")
        page.locator(".hit-link").first.click()
        expect(page.locator(".chip")).to_have_text(["place is marsh"])
        searched(page)
        expect(page.locator(".hit-about").first).to_contain_text("marsh")


class TestKinds:
    def test_the_likeliest_kind_and_others_that_filter(
        self,
        tmp_path: Path,
        open_context: Callable[..., BrowserContext],
        site: Site,
        page: Page,
        pictures: Path,
    ) -> None:
        from_first_image(page)
        expect(page.locator(".kinds")).to_have_count(0)  # the model's codebooks
        with Site(make_gallery(tmp_path, codebooks="own", bits=16)) as own:
            page = open_context().new_page()
            errors = spoken_errors(page)
            page.goto(own.address)
            give(page, "drop", query_file(own.gallery))
            searched(page)
            kinds = page.get_by_role("region", name="What it may be")
            expect(kinds).to_contain_text("likely, if it is one of the kinds that this gallery")
            expect(page.locator("#said")).to_contain_text("Most likely ")
            others = kinds.get_by_role("list").get_by_role("button")
            expect(others).to_have_count(3)  # of four species
            page.screenshot(path=pictures / "kinds.png")
            told, other = kinds.inner_text(), others.nth(1)
            label = str(other.get_attribute("data-label"))
            place = kinds.bounding_box()
            other.focus()
            page.keyboard.press("Enter")
            expect(page.locator(".summary")).to_contain_text("10 images that pass the filters")
            assert {name.split("/")[0] for name in hit_ids(page)} == {label}
            expect(other).to_have_attribute("aria-pressed", "true")
            expect(other).to_be_focused()
            assert (kinds.inner_text(), kinds.bounding_box()) == (told, place)
            page.reload()  # a shared address shows the same choice
            searched(page)
            expect(others).to_have_count(3)
            # The address holds the code of the photo; by it the others may come in another order.
            chosen = kinds.locator(f"[data-label='{label}']")
            expect(chosen).to_have_attribute("aria-pressed", "true")
            chosen.click()
            expect(page.locator(".chip")).to_have_count(0)
            page.goto(f"{page.url}?label={labels_of(own.gallery)[0]}&f=year:is:2019")
            expect(kinds).to_contain_text("the kinds that pass the other filters")
            page.goto(f"{own.address}#/id/none")
            expect(page.get_by_role("alert")).to_be_visible()
            expect(kinds).to_be_hidden()
            page.keyboard.press("?")
            expect(page.get_by_role("dialog")).to_contain_text("its own, fitted to its images")
            assert errors == []


class TestWhy:
    def test_shares_add_up_and_heat_maps_show(self, page: Page, pictures: Path) -> None:
        from_first_image(page)
        page.locator(".hit").nth(1).get_by_role("button", name="Why").click()
        sheet = page.get_by_role("dialog", name="Why this matched")
        expect(sheet.locator(".heat")).to_have_count(2)
        rows = sheet.locator("tbody tr:not(.total)")
        expect(rows).to_have_count(4)
        parts = [float(text) for text in rows.locator("td:nth-child(3)").all_inner_texts()]
        total = float(sheet.locator(".total .number").inner_text())
        shown = float(page.locator(".hit-score").nth(1).inner_text())
        assert sum(parts) == pytest.approx(total, abs=0.003)  # each is rounded to 3 digits
        assert total == pytest.approx(shown, abs=0.006)
        page.screenshot(path=pictures / "why.png")
        sheet.get_by_label("Heat map").fill("0")
        assert sheet.locator(".heat").first.evaluate(
            "(node) => getComputedStyle(node).opacity"
        ) in (
            "0",
            "0.0",
        )

    def test_steps_back_closes_and_can_be_shared(
        self, page: Page, open_context: Callable[..., BrowserContext]
    ) -> None:
        from_first_image(page)
        plain, hits = page.url, hit_ids(page)
        page.locator(".hit").first.get_by_role("button", name="Why").click()
        sheet = page.get_by_role("dialog")
        expect(sheet).to_be_visible()
        page.keyboard.press("ArrowRight")
        expect(sheet.locator("dd").first).to_have_text(hits[1])
        shared = page.url
        page.keyboard.press("Escape")
        expect(sheet).to_be_hidden()
        expect(page).to_have_url(plain)
        other = open_context().new_page()
        other.goto(shared)
        expect(other.get_by_role("dialog").locator("dd").first).to_have_text(hits[1])
        other.get_by_role("button", name="Close").click()
        expect(other).to_have_url(plain)
        searched(other)

    def test_of_an_upload_and_on_to_the_hit(self, page: Page, site: Site) -> None:
        give(page, "drop", query_file(site.gallery))
        searched(page)
        page.locator(".hit").first.get_by_role("button", name="Why").click()
        sheet = page.get_by_role("dialog")
        expect(sheet.locator(".heat")).to_have_count(2)
        sheet.get_by_role("link", name="Search from this hit").click()
        expect(sheet).to_be_hidden()
        expect(page.locator("h1")).to_have_text(LIKE)

    def test_of_a_code_alone(self, page: Page, site: Site) -> None:
        page.goto(f"{site.address}#/code/00000000")
        searched(page)
        page.locator(".hit").first.get_by_role("button", name="Why").click()
        sheet = page.get_by_role("dialog")
        expect(sheet.locator(".note")).to_contain_text("only its code is known")
        expect(sheet.locator("tbody tr")).to_have_count(5)


class TestMap:
    def test_hover_zoom_and_click(self, page: Page, pictures: Path) -> None:
        page.get_by_role("link", name="Map").click()
        plot = page.locator("canvas.plot")
        expect(plot).to_be_visible()
        expect(page.locator(".legend li")).to_have_count(4)
        expect(page.locator(".map-list a").first).to_be_visible()
        drawn = plot.evaluate(
            "(node) => node.getContext('2d').getImageData(0, 0, node.width, node.height)"
            ".data.some((value) => value > 0)"
        )
        assert drawn
        page.screenshot(path=pictures / "map.png")
        plot.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_be_visible()
        name = page.locator(".tip .hint").inner_text()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("#/id/"))
        assert unquote(page.url).endswith(name)

    def test_mouse_points_and_wheel_zooms(self, page: Page, site: Site) -> None:
        page.goto(f"{site.address}#/map")
        plot = page.locator("canvas.plot")
        plot.focus()
        page.keyboard.press("ArrowLeft")
        box, tip = plot.bounding_box(), page.locator(".tip")
        expect(tip).to_be_visible()
        assert box is not None
        before = page.locator(".map-list a").count()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        expect(tip).to_be_hidden()
        for _ in range(12):
            page.mouse.wheel(0, -300)
        expect(page.locator(".map-list a")).not_to_have_count(before)
        page.get_by_role("button", name="All of it").click()
        expect(page.locator(".map-list a")).to_have_count(before)

    def test_a_label_can_stand_out(self, page: Page, site: Site) -> None:
        page.goto(f"{site.address}#/map")
        one = page.locator(".legend button").first
        one.click()
        expect(one).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".map-list a")).to_have_count(10)


class TestCodebooks:
    def test_words_images_and_on_to_a_search(self, page: Page, pictures: Path) -> None:
        page.get_by_role("link", name="Codebooks").click()
        expect(page.locator(".tabs a")).to_have_count(4)
        expect(page.locator(".strip img").first).to_be_visible()
        counts = [int(text.split()[0]) for text in page.locator(".word-count").all_inner_texts()]
        assert counts == sorted(counts, reverse=True)
        assert sum(counts) == 40
        page.screenshot(path=pictures / "codebooks.png")
        page.get_by_role("link", name="Codebook 3").click()
        expect(page.locator(".tabs a[aria-current]")).to_have_text("Codebook 3")
        page.locator(".word-link").first.click()
        expect(page.locator("h1")).to_have_text(re.compile(r"Codeword \d+ of codebook 3"))
        page.locator(".books .start a").first.click()
        searched(page)

    def test_a_code_leads_to_its_codewords(self, page: Page) -> None:
        from_first_image(page)
        own = unquote(page.url).split("#/id/")[1]
        chip = page.locator(".code-chip").nth(1)
        word = int(chip.inner_text(), 16)
        chip.click()
        expect(page.locator("h1")).to_have_text(f"Codeword {word} of codebook 2")
        expect(page.locator(f'.start a[title="Search from {own}"]')).to_have_count(1)

    def test_a_codebook_that_is_not_there(self, page: Page, site: Site) -> None:
        page.goto(f"{site.address}#/codebooks/9/1")
        expect(page.get_by_role("alert")).to_contain_text("There is no codeword 1 in codebook 9")


class TestWhatGoesWrong:
    def test_a_file_that_is_no_picture(self, page: Page, tmp_path: Path, pictures: Path) -> None:
        file = tmp_path / "notes.txt"
        file.write_text("no picture")
        give(page, "drop", file, "text/plain")
        expect(page.get_by_role("alert")).to_contain_text("notes.txt”")
        expect(page.get_by_role("alert")).to_contain_text("is not a picture")
        page.screenshot(path=pictures / "not-a-picture.png")
        page.get_by_role("button", name="Close the message").click()
        expect(page.get_by_role("alert")).to_have_count(0)

    def test_a_damaged_picture_and_on_with_another(
        self, page: Page, site: Site, tmp_path: Path
    ) -> None:
        file = tmp_path / "broken.png"
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"nothing" * 9)
        give(page, "drop", file)
        expect(page.get_by_role("alert")).to_contain_text("This picture cannot be read")
        expect(page.get_by_role("alert")).to_contain_text("broken.png")
        give(page, "drop", query_file(site.gallery))
        searched(page)

    def test_a_picture_over_the_limit_is_made_smaller(self, page: Page, tmp_path: Path) -> None:
        import numpy as np
        from PIL import Image

        noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "large.png")
        assert (tmp_path / "large.png").stat().st_size > 2_000_000
        give(page, "drop", tmp_path / "large.png")
        expect(page.locator(".toast")).to_contain_text("Made smaller to fit")
        searched(page)

    def test_an_image_that_is_not_in_the_gallery(self, page: Page, site: Site) -> None:
        page.goto(f"{site.address}#/id/gone/bird.png")
        expect(page.get_by_role("alert")).to_contain_text("There is no image 'gone/bird.png'")
        page.get_by_role("link", name="birds.gallery").click()
        from_first_image(page)

    def test_a_busy_server_is_asked_again(self, page: Page, site: Site) -> None:
        turns: list[int] = []

        def busy_once(route: object) -> None:
            turns.append(1)
            if len(turns) == 1:
                route.fulfill(status=503, headers={"Retry-After": "0.1"})  # type: ignore[attr-defined]
            else:
                route.continue_()  # type: ignore[attr-defined]

        page.route("**/api/v1/search?*", busy_once)
        from_first_image(page)
        assert len(turns) == 2

    def test_the_server_goes_away_and_comes_back(
        self, gallery: Path, open_context: Callable[..., BrowserContext], pictures: Path
    ) -> None:
        with Site(gallery) as own:
            page = open_context().new_page()
            errors = spoken_errors(page)
            page.goto(own.address)
            from_first_image(page)
            own.stop()
            page.locator(".hit-link").nth(1).click()
            expect(page.locator("#banner")).to_contain_text("No connection to the server")
            expect(page.locator(".state.offline")).to_be_visible()
            page.screenshot(path=pictures / "offline.png")
            own.start()
            searched(page)  # without a click
            expect(page.locator("#banner")).to_be_hidden()
            assert errors == []


class TestEverybody:
    def test_keys_only(self, page: Page, pictures: Path) -> None:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.locator(".start-from a").first.wait_for()
        for _ in range(8):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('.start-from') !== null"):
                break
        page.keyboard.press("ArrowRight")
        expect(page.locator(".start-from a").nth(1)).to_be_focused()
        page.keyboard.press("Enter")
        searched(page)
        expect(page.locator("h1")).to_be_focused()
        page.keyboard.press("/")
        expect(page.get_by_role("combobox", name="Label")).to_be_focused()
        expect(page.get_by_role("option").first).to_be_visible()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".summary")).to_contain_text("that pass the filters")
        page.locator(".hit-link").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".hit-link").nth(1)).to_be_focused()
        page.screenshot(path=pictures / "keys.png")
        page.keyboard.press("w")
        expect(page.get_by_role("dialog", name="Why this matched")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".hit-link, .hit button").nth(2)).to_be_visible()
        assert page.evaluate("document.activeElement.closest('.hit') !== null")

    def test_single_keys_can_be_turned_off(self, page: Page) -> None:
        page.locator(".start-from a").first.wait_for()
        page.keyboard.press("?")
        page.get_by_label("Use single-key shortcuts").uncheck()
        page.keyboard.press("Escape")
        page.keyboard.press("m")
        page.get_by_role("button", name="Keys and about").click()
        expect(page.get_by_role("dialog")).to_contain_text("test_resnet")
        page.get_by_label("Use single-key shortcuts").check()
        page.keyboard.press("Escape")
        expect(page.locator("h1")).to_have_text("Which one is it?")
        page.keyboard.press("m")
        expect(page.locator("h1")).to_have_text("Map of the gallery")

    def test_what_is_said_to_those_who_do_not_see(self, page: Page) -> None:
        from_first_image(page)
        expect(page.locator("#said")).to_contain_text("24 hits")
        name = page.locator(".hit-link").first.get_attribute("aria-label") or ""
        assert re.match(r"1: .+, score \d\.\d\d.*\. Search from this image", name)
        unnamed = page.evaluate(
            """[...document.querySelectorAll("button, a, input, select")].filter((node) =>
                !(node.textContent.trim() || node.ariaLabel || node.labels?.length
                  || node.getAttribute("aria-hidden"))).map((node) => node.outerHTML)"""
        )
        assert unnamed == []

    def test_a_narrow_phone(self, phone: Page, site: Site, pictures: Path) -> None:
        expect(phone.get_by_role("button", name="Take a photo")).to_be_visible()
        assert phone.locator("#camera").get_attribute("capture") == "environment"
        no_sideways_scroll(phone)
        phone.screenshot(path=pictures / "phone-home.png")
        phone.locator("#camera").set_input_files(query_file(site.gallery))
        searched(phone)
        no_sideways_scroll(phone)
        first, second = (phone.locator(".hit").nth(place).bounding_box() for place in (0, 1))
        assert first is not None
        assert second is not None
        assert first["y"] == second["y"], "two in a row"
        phone.screenshot(path=pictures / "phone-search.png")
        phone.locator(".hit").first.get_by_role("button", name="Why").tap()
        expect(phone.locator(".heat")).to_have_count(2)
        no_sideways_scroll(phone)
        phone.screenshot(path=pictures / "phone-why.png")
        phone.get_by_role("button", name="Close").tap()
        for view in ("Map", "Codebooks"):
            phone.get_by_role("link", name=view).tap()
            expect(phone.locator("h1")).to_contain_text(view)
            no_sideways_scroll(phone)

    def test_very_narrow(self, page: Page) -> None:
        page.set_viewport_size({"width": 320, "height": 640})
        from_first_image(page)
        no_sideways_scroll(page)

    def test_dark_light_and_what_the_reader_chose(
        self, open_context: Callable[..., BrowserContext], site: Site, pictures: Path
    ) -> None:
        page = open_context(color_scheme="dark").new_page()
        page.goto(site.address)
        from_first_image(page)
        colour = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(colour) == "rgb(17, 22, 27)"
        page.screenshot(path=pictures / "dark.png")
        page.locator("#theme").click()
        assert page.evaluate(colour) == "rgb(246, 247, 249)"
        page.reload()
        assert page.evaluate(colour) == "rgb(246, 247, 249)"

    def test_reduced_motion_stands_still(
        self, open_context: Callable[..., BrowserContext], site: Site
    ) -> None:
        page = open_context(reduced_motion="reduce").new_page()
        page.goto(site.address)
        from_first_image(page)
        page.locator(".hit").first.get_by_role("button", name="Why").click()
        expect(page.locator(".heat").first).to_be_visible()
        assert page.evaluate("document.getAnimations().length") == 0


def test_nothing_is_asked_of_other_hosts(
    open_context: Callable[..., BrowserContext], site: Site
) -> None:
    page = open_context().new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site.address)
    from_first_image(page)
    own = (site.address, "data:", "blob:")
    assert asked
    assert [url for url in asked if not url.startswith(own)] == []
