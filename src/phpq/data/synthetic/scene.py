"""Everything that must not matter: place, pose, coat, background, light and what hides the bird.

A seed, a species and an index in, one picture out, always the same.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from phpq.data.synthetic.bird import COLOURS, Bird, MarkSite, draw_bird
from phpq.data.synthetic.pen import Colour, Pen, Point, ellipse, mix, shade, smooth
from phpq.data.synthetic.species import VALUES, Marks

_COATS: tuple[Colour, ...] = (
    (132, 106, 82),
    (118, 118, 122),
    (122, 128, 88),
    (104, 124, 142),
    (156, 128, 96),
    (128, 104, 112),
    (96, 120, 112),
)
_SKIES: tuple[tuple[Colour, Colour], ...] = (
    ((186, 214, 232), (222, 232, 216)),
    ((168, 196, 148), (98, 138, 92)),
    ((236, 214, 176), (192, 156, 122)),
    ((206, 198, 222), (156, 172, 198)),
    ((122, 154, 138), (62, 96, 92)),
    ((238, 222, 206), (214, 190, 178)),
)
_LEAVES: tuple[Colour, ...] = ((86, 132, 62), (122, 152, 72), (62, 104, 74), (176, 142, 62))
_BARK: tuple[Colour, ...] = ((98, 76, 60), (122, 100, 82), (76, 66, 62))


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One drawn image."""

    image: Image.Image  # mode RGB, square
    sites: tuple[MarkSite, ...]  # where each mark is, in pixels of `image`


def draw_picture(marks: Marks, *, size: int, key: str) -> Picture:
    """Draw one bird in its surroundings.

    Args:
        marks: What the species looks like.
        size: Side of the image in pixels; the scene is the same at every size.
        key: Decides everything else; the same key gives the same picture.
    """
    rng = random.Random(key)
    factor = 3 if size <= 128 else 2
    side = size * factor
    canvas = _background(rng, side)
    draw = ImageDraw.Draw(canvas)
    pen = _stand(rng, draw, side)
    _perch(rng, pen)
    sites = draw_bird(pen, marks, _individual(rng), rng)
    _hide(rng, pen)
    light = _light(rng, size)
    focus = rng.choice((0.0, 0.0, 0.3, 0.55)) * size / 96
    small = canvas.reduce(factor).filter(ImageFilter.GaussianBlur(focus))
    pixels = np.asarray(small, dtype=np.float32) * light[..., :3] + light[..., 3:]
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return Picture(image, tuple(_shrunk(site, factor) for site in sites))


def _stand(rng: random.Random, draw: ImageDraw.ImageDraw, side: int) -> Pen:
    """Return a pen in bird units: where the bird is, how large, how tilted, which way it looks."""
    scale = side * rng.uniform(0.36, 0.53)
    tilt = math.radians(rng.uniform(-28, 18))
    flip = rng.choice((-1.0, 1.0)) * rng.uniform(0.78, 1.0)  # a bird half turned away looks short
    cos, sin = math.cos(tilt) * scale, math.sin(tilt) * scale
    x = side * (0.5 + rng.uniform(-0.06, 0.06)) + flip * 0.10 * scale
    y = side * (0.5 + rng.uniform(-0.06, 0.06)) + 0.06 * scale
    return Pen(draw, (flip * cos, -flip * sin, sin, cos, x, y))


def _individual(rng: random.Random) -> Bird:
    coat = shade(rng.choice(_COATS), rng.uniform(0.85, 1.12))
    return Bird(
        head=rng.uniform(-18, 20),
        tail=rng.uniform(-20, 22),
        wing=rng.uniform(-8, 10),
        coat=coat,
        belly=mix(coat, (244, 236, 220), rng.uniform(0.5, 0.75)),
        wear={mark: rng.uniform(0.0, 0.45) for mark in VALUES},
    )


def _background(rng: random.Random, side: int) -> Image.Image:
    """Paint a gradient with soft blobs: drawn tiny and enlarged, which blurs it for nothing."""
    top, bottom = rng.choice(_SKIES)
    small = Image.new("RGB", (24, 24), top)
    draw = ImageDraw.Draw(small)
    for row in range(24):
        draw.line([(0, row), (24, row)], fill=mix(top, bottom, row / 23))
    for _ in range(rng.randint(5, 11)):
        x, y, r = rng.uniform(0, 24), rng.uniform(0, 24), rng.uniform(1.2, 4.5)
        colour = mix(mix(top, bottom, y / 24), rng.choice(_LEAVES), rng.uniform(0.2, 0.7))
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    soft = small.filter(ImageFilter.BoxBlur(0.8))
    canvas = soft.resize((side, side), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(canvas)
    for _ in range(rng.randint(0, 2)):  # distant twigs
        y, slope = rng.uniform(0, side), rng.uniform(-0.6, 0.6) * side
        colour = mix(rng.choice(_BARK), mix(top, bottom, 0.5), 0.45)
        draw.line([(0, y), (side, y + slope)], fill=colour, width=rng.randint(3, 8) * side // 288)
    leaves = Pen(draw, (side, 0.0, 0.0, side, 0.0, 0.0))
    for _ in range(rng.randint(0, 6)):
        place = (rng.uniform(0, 1), rng.uniform(0, 1))
        colour = mix(rng.choice(_LEAVES), mix(top, bottom, 0.5), rng.uniform(0.15, 0.5))
        _leaf(leaves, place, rng.uniform(0.05, 0.1), rng.uniform(0, 360), colour)
    for _ in range(rng.choice((0, 0, 3, 6, 9))):
        _berry(rng, leaves, (rng.uniform(0, 1), rng.uniform(0, 1)), rng.uniform(0.012, 0.03))
    return canvas


def _perch(rng: random.Random, pen: Pen) -> None:
    bark = rng.choice(_BARK)
    rise, width = rng.uniform(-0.12, 0.12), rng.uniform(0.09, 0.15)
    ends = [(-2.4, 0.66 - rise), (0.05, 0.66), (2.4, 0.66 + rise * rng.uniform(-0.5, 1.5))]
    pen.stroke(ends, shade(bark, 0.75), width)
    pen.stroke([(x, y - width * 0.15) for x, y in ends], bark, width * 0.6)
    for _ in range(rng.randint(0, 3)):
        place = (rng.uniform(-1.2, 1.2), 0.66 + rng.uniform(-0.02, 0.1))
        _leaf(pen, place, rng.uniform(0.14, 0.26), rng.uniform(20, 160), rng.choice(_LEAVES))


def _leaf(pen: Pen, place: Point, length: float, angle: float, colour: Colour) -> None:
    x, y = place
    outline = [(0.0, 0.0), (0.35, -0.26), (0.75, -0.2), (1.0, 0.0), (0.75, 0.2), (0.35, 0.26)]
    turned = pen.turned(angle, place)
    turned.fill(smooth([(x + u * length, y + v * length) for u, v in outline], 3), colour)
    turned.stroke([(x, y), (x + 0.9 * length, y)], shade(colour, 0.75), 0.06 * length)


def _berry(rng: random.Random, pen: Pen, place: Point, radius: float) -> None:
    """Draw a berry or blossom in the colour of some mark, so that colour alone tells nothing."""
    colour = COLOURS[rng.choice(("red", "yellow", "white", "orange", "black"))]
    pen.fill(ellipse(place, radius, radius, 12), mix(colour, (120, 120, 110), rng.uniform(0, 0.4)))


def _hide(rng: random.Random, pen: Pen) -> None:
    """Lay leaves, twigs or berries over small parts of the bird, or nothing."""
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        kind = rng.random()
        place = (rng.uniform(-0.8, 0.7), rng.uniform(-0.6, 0.45))
        if kind < 0.5:
            _leaf(pen, place, rng.uniform(0.2, 0.38), rng.uniform(0, 360), rng.choice(_LEAVES))
        elif kind < 0.75:
            slope = rng.uniform(-1.5, 1.5)
            ends = [(place[0] - 2, place[1] - 2 * slope), (place[0] + 2, place[1] + 2 * slope)]
            pen.stroke(ends, rng.choice(_BARK), rng.uniform(0.04, 0.07))
        else:
            _berry(rng, pen, place, rng.uniform(0.04, 0.07))


def _light(rng: random.Random, size: int) -> NDArray[np.float32]:
    """Return (size, size, 4) float32: a gain per channel, and an offset common to all."""
    contrast, brightness = rng.uniform(0.7, 1.15), rng.uniform(-26, 20)
    angle, fall = rng.uniform(0, 2 * math.pi), rng.uniform(0.0, 0.22)
    axis = np.linspace(-0.5, 0.5, size, dtype=np.float32)
    slope = 1 + fall * (math.cos(angle) * axis[None, :] + math.sin(angle) * axis[:, None])
    cast = np.array([rng.uniform(0.92, 1.08) for _ in range(3)], dtype=np.float32)
    light = np.empty((size, size, 4), dtype=np.float32)
    light[..., :3] = slope[..., None] * cast * contrast
    light[..., 3] = 128 * (1 - contrast) + brightness
    return light


def _shrunk(site: MarkSite, factor: int) -> MarkSite:
    shapes = tuple(tuple((x / factor, y / factor) for x, y in shape) for shape in site.shapes)
    return MarkSite(site.mark, site.value, shapes)
