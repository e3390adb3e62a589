"""The page and the reports look the same: their colours are the same."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STATIC = resources.files("phpq").joinpath("serve", "static")
TEMPLATE = resources.files("phpq").joinpath("report", "templates", "page.html")
COLOUR = re.compile(r"--([\w-]+): (#[0-9a-f]{6});")
PAIR = re.compile(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);")


def theme() -> dict[str, tuple[str, str]]:
    """Return (light, dark) of every plain colour of the page."""
    text = (STATIC / "theme.css").read_text("utf-8")
    return {name: (light, dark) for name, light, dark in PAIR.findall(text)}


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("front", "back", "least"),
    [
        ("ink", "page", 7.0),
        ("soft", "page", 4.5),
        ("soft", "card", 4.5),
        ("soft", "sunken", 4.5),
        ("soft", "tint", 4.5),
        ("accent", "card", 4.5),
        ("accent", "tint", 4.5),
        ("on-accent", "accent", 4.5),
        ("warn", "warn-tint", 4.5),
        ("good", "card", 3.0),
        ("bad", "card", 3.0),
        ("edge", "page", 3.0),
        ("edge", "card", 3.0),
    ],
)
def test_colours_can_be_told_apart(front: str, back: str, least: float) -> None:
    colours = theme()
    for ink, ground in zip(colours[front], colours[back], strict=True):
        dark, light = sorted((luminance(ink), luminance(ground)))
        assert (light + 0.05) / (dark + 0.05) >= least


def test_reports_have_the_colours_of_the_page() -> None:
    light = {name: pair[0] for name, pair in theme().items()}
    dark = {name: pair[1] for name, pair in theme().items()}
    bright, _, night = TEMPLATE.read_text("utf-8").partition("@media (prefers-color-scheme: dark)")
    in_light, in_dark = dict(COLOUR.findall(bright)), dict(COLOUR.findall(night))
    assert in_light.keys() == in_dark.keys() >= {"page", "card", "ink", "accent"}
    assert in_light == {name: light[name] for name in in_light}
    assert in_dark == {name: dark[name] for name in in_dark}


def test_the_page_needs_nothing_inline() -> None:
    """The content security policy would refuse it, and nothing from data may become HTML."""
    html = (STATIC / "index.html").read_text("utf-8")
    assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", html)
    for script in (STATIC / "js").iterdir():
        text = script.read_text("utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert "https://" not in text
