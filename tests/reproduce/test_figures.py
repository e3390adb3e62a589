from __future__ import annotations

import io

from PIL import Image

from phpq.reproduce.figures import plot_curves, plot_scatter


def pixels(image: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(image)) as opened:
        return opened.size


def test_curves() -> None:
    curves = {f"method {n}": {1.0: n, 10.0: n / 2, 100.0: n / 4} for n in range(1, 25)}
    image = plot_curves(curves, title="t", x_label="N", y_label="P", strong="method 3")
    assert min(pixels(image)) > 300
    assert image == plot_curves(curves, title="t", x_label="N", y_label="P", strong="method 3")
    other = plot_curves(curves, title="t", x_label="N", y_label="P", strong="method 4", log=False)
    assert other != image


def test_scatter() -> None:
    points = [("PHPQ", 3.0, 80.0), ("float", 30.0, 79.0)]
    image = plot_scatter(points, title="t", x_label="ms", y_label="MAP", strong="PHPQ")
    assert min(pixels(image)) > 300
    assert image != plot_scatter(points, title="t", x_label="ms", y_label="MAP", strong="float")
