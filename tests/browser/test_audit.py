"""The audit in a browser: every state, decisions by mouse and by keys, a yes before a delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser_pages import Site, labels_of, make_gallery, spoken_errors, until
from phpq.audit.decisions import DECISIONS
from phpq.audit.report import (
    HOME,
    REPORT,
    Audit,
    ConfusedPair,
    CopyGroup,
    Outlier,
    ToLabel,
    WrongLabel,
    keep_report,
)
from phpq.gallery import GalleryStore

pytestmark = pytest.mark.slow  # a real browser
TOKEN = "a-token-for-tests-only"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gallery(tmp_path_factory.mktemp("audited"), codebooks="own", bits=16)


def report_of(gallery: Path) -> Audit:
    """Return one finding or more of each kind, on images that are there."""
    store = GalleryStore.open(gallery)
    ids = sorted(store.dataset.to_table(columns=["id"])["id"].to_pylist())
    one, other, *_ = labels_of(gallery)
    mine = [name for name in ids if name.startswith(one)]
    return Audit(
        gallery=gallery.name,
        version=store.version,
        images=len(store),
        vectors="kept embeddings",
        copies=(
            CopyGroup("c1", (mine[0], mine[1], mine[2]), False, (one, one, one)),
            CopyGroup("c2", (mine[3], mine[4]), True, (one, one)),
        ),
        wrong_labels=tuple(
            WrongLabel(f"w{n}", name, one, other, 0.84, 0.97) for n, name in enumerate(mine[5:8])
        ),
        wrong_share=0.03,
        outliers=(Outlier("o1", mine[6], one, 0.21, 0.74),),
        to_label=(ToLabel("t1", mine[7], other, 0.61),),
        confused=(ConfusedPair("p1", (one, other), (8, 8), 0.31),),
        notes=("3 images cannot be read: only equal files are told of them.",),
    )


@pytest.fixture
def writable(audited: Path) -> Path:
    """Forget what other tests decided; images that they deleted are put back by them."""
    for name in (REPORT, DECISIONS):
        (audited / HOME / name).unlink(missing_ok=True)
    return audited


def opened(
    context: BrowserContext, site: Site, kind: str = "", token: str = TOKEN
) -> tuple[Page, list[str]]:
    page = context.new_page()
    page.emulate_media(reduced_motion="reduce")
    errors = spoken_errors(page)
    page.goto(f"{site.address}#/audit{kind}?token={token}")
    return page, errors


def looked_at(page: Page, pictures: Path, name: str, *, phone: bool) -> None:
    """Nothing is wider than the screen, in light and dark."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for look in ("light", "dark"):
        page.emulate_media(color_scheme=look)
        size = "narrow" if phone else "wide"
        page.screenshot(path=pictures / f"audit-{name}-{look}-{size}.png")


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "narrow"])
def test_every_kind_of_finding_is_shown(
    writable: Path, open_context: Callable[..., BrowserContext], pictures: Path, phone: bool
) -> None:
    keep_report(writable, report_of(writable))
    with Site(writable, token=TOKEN) as site:
        page, errors = opened(open_context(phone=phone), site)
        expect(page).to_have_url(f"{site.address}#/audit")  # the token is not in the address
        for kind, cards, words in (
            ("copies", 2, "3 copies of one picture"),
            ("wrong_labels", 3, "Looks like"),
            ("outliers", 1, "is usual here"),
            ("to_label", 1, "likely by its looks"),
            ("confused", 1, "31 % of their hits"),
        ):
            page.evaluate(f"location.hash = '#/audit/{kind}'")
            expect(page.locator(".finding")).to_have_count(cards)
            expect(page.locator(".findings")).to_contain_text(words)
            expect(page.locator(".tabs a[aria-current]")).to_have_count(1)
            if kind != "confused":
                expect(page.locator(".shot img").first).to_be_visible()
                until(page, "document.querySelector('.shot img').naturalWidth > 0")
            looked_at(page, pictures, kind, phone=phone)
        expect(page.get_by_text("only equal files are told of them")).to_be_visible()
        assert errors == []


def test_decisions_by_keys_and_undo(
    writable: Path, open_context: Callable[..., BrowserContext], pictures: Path
) -> None:
    keep_report(writable, report_of(writable))
    one, other, *_ = labels_of(writable)
    with Site(writable, token=TOKEN) as site:
        page, errors = opened(open_context(), site, "/wrong_labels")
        first = page.locator(".finding").first
        name = report_of(writable).wrong_labels[0].id
        first.get_by_role("button", name="Relabel").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".finding")).to_have_count(2)
        expect(page.locator("#said")).to_contain_text(f"Relabelled {name}")
        assert page.evaluate("document.activeElement.closest('.finding') !== null")
        assert GalleryStore.open(writable).find([name])[name].label == other
        page.locator(".finding").first.get_by_role("button", name="Keep").click()
        expect(page.locator(".finding")).to_have_count(1)
        bar = page.get_by_role("region", name="Last decision")
        expect(bar).to_contain_text("2 decisions")
        looked_at(page, pictures, "decided", phone=False)
        page.keyboard.press("u")
        expect(page.locator(".finding")).to_have_count(2)
        bar.get_by_role("button", name="Undo").click()
        expect(page.locator(".finding")).to_have_count(3)
        expect(bar).to_be_hidden()
        assert GalleryStore.open(writable).find([name])[name].label == one
        field = page.get_by_role("combobox").first  # another label, by typing
        field.fill(other[-8:].replace("_", " "))
        page.keyboard.press("Enter")  # before the list is there
        expect(page.locator(".finding")).to_have_count(2)
        page.keyboard.press("u")
        expect(page.locator(".finding")).to_have_count(3)
        assert errors == []


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "narrow"])
def test_nothing_is_deleted_without_a_yes(
    writable: Path, open_context: Callable[..., BrowserContext], pictures: Path, phone: bool
) -> None:
    keep_report(writable, report_of(writable))
    count = len(GalleryStore.open(writable))
    with Site(writable, token=TOKEN) as site:
        page, errors = opened(open_context(phone=phone), site)
        card = page.locator(".finding").first
        card.get_by_role("radio").nth(1).check()
        card.get_by_role("button", name="Merge").click()
        ask = page.get_by_role("dialog", name="Delete 2 images?")
        expect(ask).to_be_visible()
        looked_at(page, pictures, "yes", phone=phone)
        expect(ask.get_by_role("button", name="No, keep")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator(".finding")).to_have_count(2)
        assert len(GalleryStore.open(writable)) == count
        card.get_by_role("button", name="Merge").click()
        ask.get_by_role("button", name="Yes, delete").click()
        expect(page.locator(".finding")).to_have_count(1)
        kept = report_of(writable)  # of what is left now
        assert kept.images == count - 2
        page.get_by_role("region", name="Last decision").get_by_role("button").click()
        expect(page.locator(".finding")).to_have_count(2)
        assert len(GalleryStore.open(writable)) == count
        assert errors == []


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "narrow"])
def test_states_never_working_done_failed_and_empty(
    writable: Path, open_context: Callable[..., BrowserContext], pictures: Path, phone: bool
) -> None:
    with Site(writable, token=TOKEN) as site:
        page, errors = opened(open_context(phone=phone), site)
        expect(page.get_by_role("heading", name="Nobody has looked yet")).to_be_visible()
        looked_at(page, pictures, "never", phone=phone)
        working = (
            '{"state": "working", "progress": {"what": "looking at pixels", "done": 24, '
            '"total": 32}, "decided": 0}'
        )
        failed = '{"state": "failed", "error": "The gallery is damaged.", "decided": 0}'
        said = {"body": working}
        page.route("**/api/v1/audit", lambda route: route.fulfill(json=None, **said))
        page.get_by_role("button", name="Look through the gallery").click()
        expect(page.get_by_role("progressbar")).to_be_visible()
        expect(page.get_by_text("Looking at pixels: 24 of 32")).to_be_visible()
        looked_at(page, pictures, "working", phone=phone)
        said["body"] = failed
        expect(page.get_by_role("alert")).to_contain_text("The gallery is damaged.")
        looked_at(page, pictures, "failed", phone=phone)
        page.unroute("**/api/v1/audit")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("button", name="Look again")).to_be_visible(timeout=30_000)
        keep_report(writable, Audit(gallery="g", version=1, images=32, vectors="kept embeddings"))
        page.reload()
        expect(page.get_by_role("heading", name="No copies")).to_be_visible()
        expect(page.locator(".summary")).to_contain_text("Nothing is left to decide on")
        looked_at(page, pictures, "empty", phone=phone)
        assert errors == []


def test_without_the_token_it_is_asked_for_and_a_read_only_server_says_so(
    writable: Path, open_context: Callable[..., BrowserContext], pictures: Path
) -> None:
    keep_report(writable, report_of(writable))
    with Site(writable, token=TOKEN) as site:
        page, errors = opened(open_context(), site, token="")
        expect(page.locator(".finding")).to_have_count(2)
        expect(page.locator(".finding button")).to_have_count(0)
        field = page.get_by_label("enter the token of the server")
        field.fill("wrong-token-of-16-signs")
        looked_at(page, pictures, "token", phone=False)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Keep all").first.click()
        expect(page.get_by_role("alert")).to_contain_text("need the token")
        field.fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Keep all").first.click()
        expect(page.locator(".finding")).to_have_count(1)
        page.keyboard.press("u")
        expect(page.locator(".finding")).to_have_count(2)
        assert [text for text in errors if "401" not in text] == []
    with Site(writable) as site:
        page, errors = opened(open_context(), site, token="")
        expect(page.get_by_text("This server is read-only")).to_be_visible()
        expect(page.locator(".finding button")).to_have_count(0)
        assert errors == []
