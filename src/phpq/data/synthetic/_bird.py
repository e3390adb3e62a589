"""One bird: marks and posture in, shapes on a canvas and the places of its marks out.

The pen draws smooth shapes. Its unit is about the length of a bird's body; x points to the beak, y
points down.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import ImageDraw

from phpq.data.synthetic.species import Marks

Point = tuple[float, float]
Colour = tuple[int, int, int]
Matrix = tuple[float, float, float, float, float, float]  # x' = a x + b y + e, y' = c x + d y + f


@dataclass(frozen=True, slots=True)
class Pen:
    """Draws on a canvas through an affine map."""

    draw: ImageDraw.ImageDraw  # the canvas, several times the size of the final image
    matrix: Matrix  # from the pen's units to canvas pixels

    @property
    def scale(self) -> float:
        """Canvas pixels to the unit."""
        a, b, c, d, _, _ = self.matrix
        return math.sqrt(abs(a * d - b * c))

    def turned(self, degrees: float, about: Point) -> Pen:
        """Return a pen that draws the same shapes turned about a point, as a head is."""
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        x, y = about
        a, b, c, d, _, _ = self.matrix
        origin = self.place([(x - cos * x + sin * y, y - sin * x - cos * y)])[0]
        columns = (a * cos + b * sin, b * cos - a * sin, c * cos + d * sin, d * cos - c * sin)
        return Pen(self.draw, (*columns, *origin))

    def place(self, points: Sequence[Point]) -> list[Point]:
        """Return the points in canvas pixels."""
        a, b, c, d, e, f = self.matrix
        return [(a * x + b * y + e, c * x + d * y + f) for x, y in points]

    def fill(self, points: Sequence[Point], colour: Colour, outline: Colour | None = None) -> None:
        """Fill a closed shape; an outline is drawn thin."""
        self.draw.polygon(self.place(points), fill=colour)
        if outline:
            self.stroke([*points, points[0], points[1]], outline, 0.022)

    def stroke(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """Draw an open line whose width is in units."""
        pixels = max(1, round(width * self.scale))
        self.draw.line(self.place(points), fill=colour, width=pixels, joint="curve")


def path(text: str) -> list[Point]:
    """Return the points of a text such as "0.5,-0.1 0.4,0.2"."""
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


def smooth(points: Sequence[Point], steps: int = 5) -> list[Point]:
    """Return a closed Catmull-Rom curve through the points, `steps` points per segment."""
    curve: list[Point] = []
    for i in range(len(points)):
        xs, ys = zip(*(points[(i + k - 1) % len(points)] for k in range(4)), strict=True)
        curve += [(_spline(xs, k / steps), _spline(ys, k / steps)) for k in range(steps)]
    return curve


def _spline(points: Sequence[float], t: float) -> float:
    p0, p1, p2, p3 = points
    return p1 + 0.5 * t * (
        p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0))
    )


def ellipse(centre: Point, rx: float, ry: float, steps: int = 24) -> list[Point]:
    """Return the outline of an ellipse."""
    return arc(centre, rx, ry, 0.0, 360.0 * (steps - 1) / steps, steps)


def arc(
    centre: Point, rx: float, ry: float, start: float, end: float, steps: int = 14
) -> list[Point]:
    """Return points of an ellipse from angle `start` to `end` in degrees; 90 is downwards."""
    angles = (math.radians(start + (end - start) * k / (steps - 1)) for k in range(steps))
    return [(centre[0] + rx * math.cos(t), centre[1] + ry * math.sin(t)) for t in angles]


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Return the colour that is `share` of the way from one to the other."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def shade(colour: Colour, factor: float) -> Colour:
    """Return the colour darker (factor below 1) or lighter (above)."""
    target = (0, 0, 0) if factor < 1 else (255, 255, 255)
    return mix(colour, target, abs(1 - factor))


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

    @property
    def edge(self) -> Colour:
        """The colour of its outlines."""
        return shade(self.coat, 0.55)

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
    """Draw a bird that faces along x; returns a site for every mark. `rng` jitters the breast."""
    tail = _draw_tail(pen.turned(bird.tail, TAIL_BASE), marks, bird)
    for x in (-0.04, 0.12):  # the legs
        pen.stroke([(x, 0.40), (x + 0.03, 0.62)], (92, 70, 58), 0.035)
    pen.fill(_BODY, bird.coat, bird.edge)
    pen.fill(_BELLY, bird.belly)
    breast = _draw_breast(pen, marks, bird, rng)
    wing = _draw_wing(pen.turned(bird.wing, SHOULDER), marks, bird)
    return [tail, breast, wing, *_draw_head(pen.turned(bird.head, (0.28, -0.25)), marks, bird)]


def _site(pen: Pen, mark: str, marks: Marks, shapes: Sequence[Sequence[Point]]) -> MarkSite:
    placed = tuple(tuple(pen.place(shape)) for shape in shapes)
    return MarkSite(mark, str(getattr(marks, mark)), placed)


def _draw_tail(pen: Pen, marks: Marks, bird: Bird) -> MarkSite:
    dark = shade(bird.coat, 0.72)
    pen.fill(_tail(0.0, 1.0), dark, bird.edge)
    pen.stroke([TAIL_BASE, TAIL_TIP], shade(dark, 0.8), 0.018)
    band = _tail(0.72, 0.92)
    if marks.tail_band != "none":
        pen.fill(band, bird.ink("tail_band", marks.tail_band, dark))
    return _site(pen, "tail_band", marks, [band])


def _tail(first: float, last: float) -> list[Point]:
    """Return the part of the tail from `first` to `last` along it; it widens evenly."""
    dx, dy = TAIL_TIP[0] - TAIL_BASE[0], TAIL_TIP[1] - TAIL_BASE[1]
    length = (dx * dx + dy * dy) ** 0.5
    outline = []
    for t, side in ((first, -1), (last, -1), (last, 1), (first, 1)):
        half = side * (0.085 + (0.125 - 0.085) * t)
        x, y = TAIL_BASE[0] + dx * t, TAIL_BASE[1] + dy * t
        outline.append((x + -dy / length * half, y + dx / length * half))
    return outline


def _draw_wing(pen: Pen, marks: Marks, bird: Bird) -> MarkSite:
    ground = shade(bird.coat, 0.8)
    steps = [k / 16 for k in range(17)]
    outline = [_wing(t, -1) for t in steps] + [_wing(t, 1) for t in reversed(steps)]
    pen.fill(outline, ground, bird.edge)
    for side in (-0.35, 0.3):  # the long feathers
        pen.stroke([_wing(t, side) for t in (0.55, 0.75, 0.95)], bird.edge, 0.018)
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
    bulge = {-0.94: 0.0, -0.5: 0.03, 0.0: 0.04, 0.5: 0.03, 0.94: 0.0}  # across the wing
    front = [_wing(first + b, side) for side, b in bulge.items()]
    return front + [_wing(last + b, side) for side, b in reversed(bulge.items())]


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
    pen.stroke(arc(HEAD, r, r * 0.96, 150, 395, 24), bird.edge, 0.022)
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
