"""One query of several things, against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from own_galleries import view_of
from phpq.codes import Codebooks, FloatArray, normalise_sub_vectors
from phpq.data.boxes import cut_out
from phpq.errors import ConfigError, ShapeError, UnknownNameError
from phpq.gallery import Gallery, GalleryStore
from phpq.gallery.queries import AWAY, QueryMean, boxes_for, compose_query
from phpq.gallery.view import Page
from served_galleries import ids, shared_gallery
from sure_galleries import question, sure_store
from tiny_runs import tiny_birds


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return Gallery.open(shared_gallery(), device="cpu")


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> GalleryStore:
    return sure_store(tmp_path_factory.mktemp("sure") / "g")


def unit_books() -> Codebooks:
    words = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    return Codebooks(words / np.linalg.norm(words, axis=2, keepdims=True))


def rows(count: int, seed: int = 1) -> list[FloatArray]:
    return list(np.random.default_rng(seed).normal(size=(count, 15)).astype(np.float32))


def test_a_mean_gives_every_row_the_same_weight() -> None:
    books, some = unit_books(), rows(3)
    by_hand = np.zeros(15)
    for row in some:
        for book in range(3):
            part = row[5 * book : 5 * book + 5]
            by_hand[5 * book : 5 * book + 5] += part / np.linalg.norm(part) / 3
    longer = [some[0] * 100, some[1], some[2] * 0.01]
    for given in (some, longer):
        assert QueryMean(books, "unit").of(given) == pytest.approx(by_hand, abs=1e-6)
    assert QueryMean(books, "raw").of(some) == pytest.approx(np.mean(some, axis=0), abs=1e-6)
    assert QueryMean(books, "unit").of(some[:1]) is some[0]


def test_scores_are_means_of_scores_up_to_the_length_of_the_mean() -> None:
    books, some = unit_books(), rows(3)
    mean = QueryMean(books, "unit").of(some)
    tables = books.lookup_tables(np.stack(some))
    together = books.lookup_tables(mean[None], norm="raw")[0]
    assert together == pytest.approx(tables.mean(axis=0), abs=1e-6)


def test_a_query_goes_away_from_what_it_is_not_like() -> None:
    books, like, unlike = unit_books(), rows(2), rows(2, seed=7)
    near, far = (normalise_sub_vectors(np.stack(each), 3).mean(axis=0) for each in (like, unlike))
    found = QueryMean(books, "unit").away(like, unlike)
    assert found == pytest.approx(near + AWAY * (near - far), abs=1e-6)


def test_means_in_a_space_that_a_gallery_projects(sure: GalleryStore) -> None:
    books = sure.own_codebooks()
    some = [question("red light")[0], question("blue dark")[0], question("green dark")[0]]
    alike = books.normalised(np.stack(some))
    assert books.vectors(alike) == pytest.approx(books.vectors(np.stack(some)), abs=1e-4)
    mean = QueryMean(books, "unit").of(some)
    by_hand = books.vectors(np.stack(some)).mean(axis=0)
    by_hand /= np.linalg.norm(by_hand)
    assert books.vectors(mean[None])[0] == pytest.approx(by_hand, abs=1e-4)


def test_several_photos_of_a_kind_have_a_probability_and_examples_have_none(
    sure: GalleryStore,
) -> None:
    view = view_of(sure)
    photos = np.concatenate([question("red light", seed) for seed in (3, 4, 5)])
    asked = compose_query(view, photos)
    found = view.search(asked.query, Page(top_k=3), leave_out=asked.leave_out)
    assert found.sure is not None
    assert found.kinds is not None
    assert found.kinds[0][0] == "red light"
    led = compose_query(view, photos, less=[found[0].id])
    assert np.array_equal(led.photos, asked.query)  # its code is that of the photos
    found = view.search(led.query, Page(top_k=3), leave_out=led.leave_out)
    assert (found.sure, found.known) == (None, None)


def test_examples_are_no_hits_and_stand_for_themselves(gallery: Gallery) -> None:
    first = gallery.search_id(ids()[0], 24)
    assert [hit.id for hit in gallery.search(None, 24, more=[ids()[0]])] == [h.id for h in first]
    with_two = gallery.search(None, 24, more=[ids()[0], first[0].id], less=[first[1].id])
    assert (len(with_two), with_two.total) == (21, 21)
    assert not {ids()[0], first[0].id, first[1].id} & {hit.id for hit in with_two}
    # Twice the same is once.
    again = gallery.search(None, 24, more=[ids()[0], ids()[0]])
    assert [hit.id for hit in again] == [hit.id for hit in first]


def test_less_like_an_image_lowers_what_is_like_it(gallery: Gallery) -> None:
    photo = tiny_birds().test.read(0)
    plain = gallery.search(photo, 24)
    led = gallery.search(photo, 24, less=[plain[-1].id])
    best = {hit.id: hit.rank for hit in led}
    assert plain[-1].id not in best
    other = gallery.search(photo, 24, more=[plain[-1].id])
    assert [hit.id for hit in led] != [hit.id for hit in other]


def test_photos_and_boxes_are_one_query(gallery: Gallery, tmp_path: Path) -> None:
    photos = [tiny_birds().test.read(n).resize((60, 40)) for n in range(3)]
    photos[0].save(tmp_path / "a.png")
    box = (5, 5, 25, 25)
    part = cut_out(photos[0], box)
    expected = [(hit.id, hit.score) for hit in gallery.search(part, 5)]
    for photo in (photos[0], tmp_path / "a.png", str(tmp_path / "a.png")):
        assert [(hit.id, hit.score) for hit in gallery.search(photo, 5, box=box)] == expected
    rows = gallery.embed([part, photos[1], photos[2]])
    by_rows = gallery.search(rows, 5)
    found = gallery.search(photos, 5, box=[box, None, None])
    assert [hit.id for hit in found] == [hit.id for hit in by_rows]


def test_what_makes_no_query_is_named(gallery: Gallery) -> None:
    photo = Image.new("RGB", (60, 40))
    for options, message in (
        ({"less": [ids()[0]]}, "names only what it is not like"),
        ({}, "names nothing: give a photo"),
        ({"query": [photo], "more": [ids()[1]], "less": [ids()[1]]}, "as like and as unlike"),
        ({"query": [photo, photo], "box": (0, 0, 9, 9)}, "is one box for 2 photos"),
        ({"query": photo, "box": [None, None]}, "are 2 boxes for 1 photos"),
        ({"query": photo, "box": (0, 0, 99, 9)}, "not inside the photo"),
        ({"query": np.ones(32, np.float32), "box": (0, 0, 9, 9)}, "not an embedding"),
    ):
        with pytest.raises(ConfigError, match=message):
            gallery.search(**options)
    with pytest.raises(UnknownNameError, match="nobody"):
        gallery.search(photo, more=["nobody"])
    with pytest.raises(ShapeError, match="expected"):
        gallery.search(np.ones((2, 3), np.float32))
    assert boxes_for(None, 2) == [None, None]
    assert boxes_for([(0, 0, 1, 1), None], 2) == [(0, 0, 1, 1), None]
