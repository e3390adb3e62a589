from __future__ import annotations

import numpy as np
import pytest

from phpq.data.synthetic.scene import draw_picture
from phpq.data.synthetic.species import draw_species

MARKS = draw_species(1, seed=0)[0].marks


def test_the_same_key_gives_the_same_picture() -> None:
    one, two = (draw_picture(MARKS, size=48, key="a") for _ in range(2))
    assert one.image.tobytes() == two.image.tobytes()
    assert one.sites == two.sites
    assert draw_picture(MARKS, size=48, key="b").image.tobytes() != one.image.tobytes()


def test_the_scene_is_the_same_at_every_size() -> None:
    small = draw_picture(MARKS, size=48, key="a")
    large = draw_picture(MARKS, size=192, key="a")
    reduced = np.asarray(large.image.reduce(4), dtype=np.float64)
    assert np.abs(reduced - np.asarray(small.image)).mean() < 8
    for one, other in zip(small.sites, large.sites, strict=True):
        assert np.array(other.shapes[0]) / 4 == pytest.approx(np.array(one.shapes[0]), abs=1e-6)


def test_the_scene_varies_in_pose_light_and_place() -> None:
    pictures = [draw_picture(MARKS, size=32, key=str(i)) for i in range(40)]
    means = [np.asarray(picture.image).mean() for picture in pictures]
    eyes = np.array(
        [
            np.mean(site.shapes[0], axis=0)
            for picture in pictures
            for site in picture.sites
            if site.mark == "eye_ring"
        ]
    )
    assert np.std(means) > 10
    assert (eyes[:, 0] < 16).sum() > 8  # birds look both ways
    assert (eyes[:, 0] > 16).sum() > 8
    assert eyes.min() > 0
    assert eyes.max() < 32  # the head is never out of the picture
