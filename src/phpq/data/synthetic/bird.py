"""One bird: marks and posture in, shapes on a canvas and the places of its marks out."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phpq.data.synthetic.pen import Colour, Pen, Point, arc, ellipse, mix, path, shade, smooth
from phpq.data.synthetic.species import Marks

COLOURS: dict[str, Colour] = {
    "white": (250, 249, 243),
    "yellow": (250, 204, 36),
    "red": (214, 40, 36),
    "black": (28, 26, 30),
    "dark": (52, 44, 44),
    "orange": (240, 126, 26),
    "rufous": (166, 70, 28),
}
HEAD, HEAD_RADIUS = (0.36, -0.44), 0.3
EYE, EYE_RADIUS = (0.455, -0.49), 0.06
BEAK_BASE = (0.635, -0.42)
SHOULDER, WING_TIP = (0.13, -0.17), (-0.74, 0.20)
TAIL_BASE, TAIL_TIP = (-0.46, 0.06), (-1.06, 0.22)

_BODY = smooth(
    path(
        "0.56,-0.12 0.55,0.12 0.38,0.35 0.08,0.45 -0.26,0.38 -0.50,0.20 -0.60,0.06 "
        "-0.42,-0.12 -0.10,-0.30 0.14,-0.46 0.42,-0.36"
    )
)
_BELLY = smooth(
    path(
        "0.53,-0.10 0.53,0.12 0.37,0.33 0.08,0.43 -0.25,0.36 -0.44,0.22 -0.12,0.18 0.14,0.06 "
        "0.33,-0.14"
    )
)
_BEAKS: dict[str, list[Point]] = {
    "short": path("0,-0.105 0.1,-0.075 0.21,0.01 0.1,0.075 0,0.1"),
    "long": path("0,-0.065 0.2,-0.04 0.46,0.015 0.2,0.04 0,0.06"),
    "hooked": path("0,-0.1 0.13,-0.1 0.25,-0.02 0.27,0.15 0.17,0.06 0,0.08"),
}
_FACE: dict[str, list[Point]] = {  # in the order in which they are painted
    "crown": arc(HEAD, HEAD_RADIUS * 0.97, HEAD_RADIUS * 0.93, 205, 308, 18)
    + path("0.48,-0.62 0.30,-0.61"),
    "throat": arc(HEAD, HEAD_RADIUS * 0.98, HEAD_RADIUS * 0.94, 28, 100, 14)
    + path("0.36,-0.27 0.52,-0.345"),
    "eye_stripe": smooth(
        path("0.62,-0.47 0.46,-0.54 0.28,-0.52 0.12,-0.44 0.28,-0.455 0.46,-0.445"), 4
    ),
    "eye_ring": ellipse(EYE, EYE_RADIUS * 1.7, EYE_RADIUS * 1.7),
}


@dataclass(frozen=True, slots=True)
class Bird:
    """One bird of a species: how it holds itself and how it is worn, which tells nothing."""

    head: float  # turn in degrees
    tail: float
    wing: float
    coat: Colour  # of back and head; no species has its own
    belly: Colour
    wear: Mapping[str, float]  # how far each mark has faded into its surroundings, from 0 to 1

    def ink(self, mark: str, colour: str, ground: Colour) -> Colour:
        """Return the worn colour of a mark on the colour around it."""
        return mix(COLOURS[colour], ground, self.wear[mark])


@dataclass(frozen=True, slots=True)
class MarkSite:
    """The place of a mark on the canvas, drawn or not."""

    mark: str  # the name of the field of `Marks`
    value: str  # "none" is a place left plain
    shapes: tuple[tuple[Point, ...], ...]  # outlines in canvas pixels


def draw_bird(pen: Pen, marks: Marks, bird: Bird, rng: random.Random) -> list[MarkSite]:
    """Draw a bird that faces along x.

    Args:
        pen: Its units are bird units.
        marks: What the species looks like.
        bird: What this bird looks like besides.
        rng: Jitters the streaks of the breast.

    Returns:
        A site for every mark of `Marks`.
    """
    sites = [_draw_tail(pen.turned(bird.tail, TAIL_BASE), marks, bird)]
    _draw_legs(pen)
    pen.fill(_BODY, bird.coat, _edge(bird))
    pen.fill(_BELLY, bird.belly)
    sites.append(_draw_breast(pen, marks, bird, rng))
    sites.append(_draw_wing(pen.turned(bird.wing, SHOULDER), marks, bird))
    sites.extend(_draw_head(pen.turned(bird.head, (0.28, -0.25)), marks, bird))
    return sites


def _edge(bird: Bird) -> Colour:
    return shade(bird.coat, 0.55)


def _site(pen: Pen, mark: str, marks: Marks, shapes: Sequence[Sequence[Point]]) -> MarkSite:
    placed = tuple(tuple(pen.place(shape)) for shape in shapes)
    return MarkSite(mark, str(getattr(marks, mark)), placed)


def _draw_legs(pen: Pen) -> None:
    for x in (-0.04, 0.12):
        pen.stroke([(x, 0.40), (x + 0.03, 0.62)], (92, 70, 58), 0.035)


def _draw_tail(pen: Pen, marks: Marks, bird: Bird) -> MarkSite:
    dark = shade(bird.coat, 0.72)
    pen.fill(_taper(TAIL_BASE, TAIL_TIP, 0.0, 1.0, (0.085, 0.125)), dark, _edge(bird))
    pen.stroke([TAIL_BASE, TAIL_TIP], shade(dark, 0.8), 0.018)
    band = _taper(TAIL_BASE, TAIL_TIP, 0.72, 0.92, (0.085, 0.125))
    if marks.tail_band != "none":
        pen.fill(band, bird.ink("tail_band", marks.tail_band, dark))
    return _site(pen, "tail_band", marks, [band])


def _taper(
    start: Point, end: Point, first: float, last: float, widths: tuple[float, float]
) -> list[Point]:
    """Return the part from `first` to `last` of a strip whose half-width changes evenly."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    nx, ny = -dy / length, dx / length

    def at(t: float, side: int) -> Point:
        half = side * (widths[0] + (widths[1] - widths[0]) * t)
        return start[0] + dx * t + nx * half, start[1] + dy * t + ny * half

    return [at(first, -1), at(last, -1), at(last, 1), at(first, 1)]


def _draw_wing(pen: Pen, marks: Marks, bird: Bird) -> MarkSite:
    ground, edge = shade(bird.coat, 0.8), _edge(bird)
    steps = [k / 16 for k in range(17)]
    outline = [_wing(t, -1) for t in steps] + [_wing(t, 1) for t in reversed(steps)]
    pen.fill(outline, ground, edge)
    for side in (-0.35, 0.3):  # the long feathers
        pen.stroke([_wing(t, side) for t in (0.55, 0.75, 0.95)], edge, 0.018)
    count, _, name = marks.wing_bars.partition(" ")
    bars = [_bar(0.19, 0.26), _bar(0.36, 0.43)]
    for bar in bars[: int(count)] if name else ():
        pen.fill(bar, bird.ink("wing_bars", name, ground))
    return _site(pen, "wing_bars", marks, bars)


def _wing(t: float, side: float) -> Point:
    """Return the point at `t` along the wing, from edge (-1) to edge (1) across it."""
    half = 0.6 * max(t, 0.0) ** 0.6 * max(1 - t, 0.0) ** 0.9
    dx, dy = WING_TIP[0] - SHOULDER[0], WING_TIP[1] - SHOULDER[1]
    length = (dx * dx + dy * dy) ** 0.5
    sag = 0.06 * t * (1 - t) * 4  # the wing hangs a little below its axis
    x, y = SHOULDER[0] + dx * t, SHOULDER[1] + dy * t + sag
    return x + dy / length * half * side, y - dx / length * half * side


def _bar(first: float, last: float) -> list[Point]:
    across = [-0.94, -0.5, 0.0, 0.5, 0.94]
    bulge = [0.0, 0.03, 0.04, 0.03, 0.0]
    front = [_wing(first + b, side) for side, b in zip(across, bulge, strict=True)]
    back = [_wing(last + b, side) for side, b in zip(across, bulge, strict=True)]
    return front + back[::-1]


def _draw_breast(pen: Pen, marks: Marks, bird: Bird, rng: random.Random) -> MarkSite:
    centre, rx, ry = (0.3, 0.14), 0.2, 0.21
    name, _, kind = marks.breast.partition(" ")
    colour = bird.ink("breast", name, bird.belly) if kind else bird.belly
    for row in range(4) if kind else ():
        y = centre[1] + ry * (row - 1.5) / 1.65
        half = rx * (1 - ((y - centre[1]) / ry) ** 2) ** 0.5
        if kind == "bars":
            bar = [(-half, y - 0.02), (0.0, y + 0.012), (half, y - 0.02)]
            pen.stroke([(centre[0] + x, height) for x, height in bar], colour, 0.034)
            continue
        for column in range(4):
            x = rx * (column - 1.75 + 0.5 * (row % 2)) / 1.9
            if abs(x) > half + 0.05:
                continue
            x, height = centre[0] + x + rng.uniform(-0.012, 0.012), y + rng.uniform(-0.012, 0.012)
            if kind == "streaks":
                ends = [(x + 0.012, height - 0.05), (x - 0.012, height + 0.05)]
                pen.stroke(ends, colour, 0.032)
            else:
                pen.fill(ellipse((x, height), 0.03, 0.03, 10), colour)
    return _site(pen, "breast", marks, [ellipse(centre, rx * 1.15, ry * 1.2)])


def _draw_head(pen: Pen, marks: Marks, bird: Bird) -> list[MarkSite]:
    r = HEAD_RADIUS
    pen.fill(ellipse(HEAD, r, r * 0.96), bird.coat)
    pen.stroke(arc(HEAD, r, r * 0.96, 150, 395, 24), _edge(bird), 0.022)
    for mark, shape in _FACE.items():
        value = str(getattr(marks, mark))
        if value != "none":
            pen.fill(shape, bird.ink(mark, value, bird.coat))
    pen.fill(ellipse(EYE, EYE_RADIUS, EYE_RADIUS, 14), (16, 14, 18))
    pen.fill(ellipse((EYE[0] + 0.018, EYE[1] - 0.02), 0.018, 0.018, 8), (255, 255, 255))

    kind, _, name = marks.beak.partition(" ")
    beak = [(BEAK_BASE[0] + x, BEAK_BASE[1] + y) for x, y in _BEAKS[kind]]
    ink = bird.ink("beak", name, bird.coat)
    pen.fill(beak, ink, shade(ink, 0.55))
    return [_site(pen, mark, marks, [shape]) for mark, shape in (_FACE | {"beak": beak}).items()]
