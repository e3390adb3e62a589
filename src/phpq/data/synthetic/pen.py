"""Drawing with floating-point coordinates: smooth shapes in bird units in, antialiased pixels out.

One unit is about the length of a bird's body; x points to the beak, y points down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import ImageDraw

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
        inner = (cos, -sin, sin, cos, x - cos * x + sin * y, y - sin * x - cos * y)
        return Pen(self.draw, _compose(self.matrix, inner))

    def place(self, points: Sequence[Point]) -> list[Point]:
        """Return the points in canvas pixels."""
        a, b, c, d, e, f = self.matrix
        return [(a * x + b * y + e, c * x + d * y + f) for x, y in points]

    def fill(self, points: Sequence[Point], colour: Colour, outline: Colour | None = None) -> None:
        """Fill a closed shape; an outline is drawn thin."""
        placed = self.place(points)
        self.draw.polygon(placed, fill=colour)
        if outline:
            width = max(1, round(0.022 * self.scale))
            self.draw.line(
                [*placed, placed[0], placed[1]], fill=outline, width=width, joint="curve"
            )

    def stroke(self, points: Sequence[Point], colour: Colour, width: float) -> None:
        """Draw an open line whose width is in units."""
        pixels = max(1, round(width * self.scale))
        self.draw.line(self.place(points), fill=colour, width=pixels, joint="curve")


def _compose(outer: Matrix, inner: Matrix) -> Matrix:
    a, b, c, d, e, f = outer
    p, q, r, s, t, u = inner
    return (
        a * p + b * r,
        a * q + b * s,
        c * p + d * r,
        c * q + d * s,
        a * t + b * u + e,
        c * t + d * u + f,
    )


def path(text: str) -> list[Point]:
    """Return the points of a text such as "0.5,-0.1 0.4,0.2"."""
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in text.split())]


def smooth(points: Sequence[Point], steps: int = 5) -> list[Point]:
    """Return a closed Catmull-Rom curve through the points, `steps` points per segment."""
    curve: list[Point] = []
    n = len(points)
    for i in range(n):
        p0, p1, p2, p3 = (points[(i + k - 1) % n] for k in range(4))
        for step in range(steps):
            t = step / steps
            curve.append(
                (_spline(p0[0], p1[0], p2[0], p3[0], t), _spline(p0[1], p1[1], p2[1], p3[1], t))
            )
    return curve


def _spline(p0: float, p1: float, p2: float, p3: float, t: float) -> float:
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
    return (
        round(one[0] + (other[0] - one[0]) * share),
        round(one[1] + (other[1] - one[1]) * share),
        round(one[2] + (other[2] - one[2]) * share),
    )


def shade(colour: Colour, factor: float) -> Colour:
    """Return the colour darker (factor below 1) or lighter (above)."""
    target = (0, 0, 0) if factor < 1 else (255, 255, 255)
    return mix(colour, target, abs(1 - factor))
