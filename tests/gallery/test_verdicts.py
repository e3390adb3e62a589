"""What a gallery says of photos, against plain loops over its classes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import DIM, FakeModel, make_codebooks
from own_galleries import codes_of, view_of
from phpq.additive import AdditiveCodebooks, Calibration, softmax
from phpq.config import RunConfig
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery.calibration import calibrate, describe, set_parents
from phpq.gallery.models import MODEL
from phpq.gallery.owned import read_calibration
from phpq.gallery.shards import LocalShards
from phpq.gallery.verdicts import predict
from phpq.gallery.view import GalleryView, Page
from phpq.hits import Sure
from phpq.model.checkpoint import ModelCard, write_card, write_chances
from sure_galleries import (
    COLOURS,
    PARENTS,
    STRANGE,
    certain,
    coded_question,
    coded_store,
    photos,
    question,
    sure_store,
)

ALL = np.arange(len(COLOURS))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> AdditiveCodebooks:
    store = sure_store(tmp_path_factory.mktemp("sure") / "g")
    set_parents(store, PARENTS)
    return store.own_codebooks()


def probabilities_by_hand(books: AdditiveCodebooks, kind: str) -> dict[str, float]:
    """Return the probability of every class."""
    assert books.probabilities is not None
    scores = books.class_scores(question(kind))
    known = float(books.probabilities.known(scores, books.sharpness)[0])
    shares = softmax(books.sharpness * scores)[0].tolist()
    return {n: known * share for n, share in zip(books.class_names, shares, strict=True)}


@pytest.mark.parametrize("kind", [*COLOURS, *STRANGE])
@pytest.mark.parametrize("accepted", [0.0, 0.05, 0.4, 1.0])
def test_the_most_specific_name_that_is_sure(
    books: AdditiveCodebooks, kind: str, accepted: float
) -> None:
    (predicted,) = predict(books, question(kind), ALL, accepted)
    by_hand, fitted = probabilities_by_hand(books, kind), books.probabilities
    assert fitted is not None
    best = max(by_hand, key=by_hand.__getitem__)
    assert predicted.known == pytest.approx(sum(by_hand.values()))
    assert predicted.kinds is not None
    assert predicted.kinds[0][0] == best
    for name, probability in by_hand.items():
        assert predicted.probability(name) == pytest.approx(probability, abs=1e-6)
    assert predicted.probability(None) is None
    assert predicted.probability("no label") is None
    levels = [(best, by_hand[best])]
    known = sum(by_hand.values())
    for level, steps in enumerate(({}, {"red": "warm", "green": "cold"}), start=1):
        sums: dict[str, float] = {}
        for name, probability in by_hand.items():
            parent = PARENTS[name]
            parent = steps.get(parent, parent)
            sums[parent] = sums.get(parent, 0.0) + probability / known
        group = max(sums, key=sums.__getitem__)
        probability = fitted.parent(level, np.array([known]), np.array([sums[group]]))[0]
        levels.append((group, float(probability)))
    expected = Sure(None, None, by_hand[best], accepted)
    for level, (name, probability) in enumerate(levels):
        if probability >= fitted.cut_off(level, accepted):
            expected = Sure(name, level, probability, accepted)
            break
    assert predicted.sure is not None
    assert predicted.sure.probability == pytest.approx(expected.probability, abs=1e-4)
    assert replace(predicted.sure, probability=0) == replace(expected, probability=0)
    assert (accepted != 0.0) or predicted.sure.label is None
    assert (accepted != 1.0) or predicted.sure.label == best


def test_a_filter_leaves_probabilities_as_they_are(books: AdditiveCodebooks) -> None:
    by_hand = probabilities_by_hand(books, "red light")
    passing = np.array([place for place, n in enumerate(books.class_names) if n != "red light"])
    (predicted,) = predict(books, question("red light"), passing, 0.05)
    for name in by_hand.keys() - {"red light"}:
        assert predicted.probability(name) == pytest.approx(by_hand[name], abs=1e-6)
    assert predicted.probability("red light") is None
    assert predicted.sure is not None
    assert predicted.sure.label not in ("red light", "red dark")
    (predicted,) = predict(books, question("red light"), np.empty(0, np.int64), 0.05)
    assert (predicted.kinds, predicted.known, predicted.sure) == ((), None, None)


def test_without_probabilities_kinds_are_the_same(books: AdditiveCodebooks) -> None:
    query = question("red light")
    (predicted,) = predict(books, query, ALL, 0.05)
    (plain,) = predict(replace(books, probabilities=None), query, ALL, 0.05)
    assert plain.kinds == predicted.kinds
    assert (plain.known, plain.sure, plain.probability("red light")) == (None, None, None)


def test_hits_and_verdicts_of_a_search_carry_them(tmp_path: Path) -> None:
    store = sure_store(tmp_path / "g")
    view = view_of(store)
    found = view.search(question("blue dark")[0], Page(top_k=60))
    verdict = found.verdict
    assert verdict is not None
    assert verdict.probability == pytest.approx(found[0].probability)
    for hit in found:
        assert hit.label is not None
        by_hand = probabilities_by_hand(store.own_codebooks(), "blue dark")
        assert hit.probability == pytest.approx(by_hand[hit.label], abs=1e-6)
    # Codebooks were fitted to the images of the gallery: how sure these are says nothing.
    place, record = view.find("red light/0/0")
    itself = view.search(view.query_of(record), Page(), leave_out=(place,))
    assert itself.verdict is not None
    assert (itself.verdict.sure, itself[0].probability) == (None, None)


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> GalleryStore:
    """Return a gallery with the codebooks of its model, which is calibrated and has parents."""
    store = coded_store(tmp_path_factory.mktemp("coded") / "g")
    set_parents(store, PARENTS)
    calibrate(store, lambda: FakeModel().model, photos([*COLOURS, *STRANGE], 60, seed=4))
    return store


@pytest.mark.parametrize("kind", [*COLOURS, *STRANGE])
def test_hits_of_a_models_codes_carry_probabilities(coded: GalleryStore, kind: str) -> None:
    found = view_of(coded).search(coded_question(kind)[0], Page(top_k=60))
    calibration, words = read_calibration(coded.folder, coded.manifest), make_codebooks()
    assert calibration.probabilities is not None
    scores = []  # by loops over the images of each class
    for name in sorted(COLOURS):
        images = [code for id, code in codes_of(coded).items() if id.startswith(name)]
        mean = np.mean([words.decode(np.frombuffer(c, np.uint8)[None])[0] for c in images], axis=0)
        scores.append(float(words.vectors(coded_question(kind))[0] @ mean / np.linalg.norm(mean)))
    known = calibration.probabilities.known(np.array([scores]), calibration.sharpness)[0]
    shares = softmax(calibration.sharpness * np.array([scores]))[0]
    by_hand = dict(zip(sorted(COLOURS), (known * shares).tolist(), strict=True))
    verdict = found.verdict
    assert verdict is not None
    assert (verdict.by, verdict.label) == ("kinds", max(by_hand, key=by_hand.__getitem__))
    assert verdict.probability == pytest.approx(max(by_hand.values()), abs=1e-4)
    assert verdict.sure is not None
    for hit in found:
        assert hit.probability == pytest.approx(by_hand[str(hit.label)], abs=1e-4)


def test_shards_predict_the_same_bits(coded: GalleryStore) -> None:
    queries = np.concatenate([coded_question(kind) for kind in (*COLOURS, *STRANGE)])
    pages = [Page(top_k=7), Page(labels=("red light", "blue dark")), Page(where="id LIKE '%1%'")]
    whole = view_of(coded)
    cut = GalleryView(GalleryStore.open(coded.folder), make_codebooks(), LocalShards(3))
    for page in pages:
        assert cut.search_many(queries, page) == whole.search_many(queries, page)


def test_images_of_the_gallery_itself_have_no_probability(coded: GalleryStore) -> None:
    view = view_of(coded)
    place, record = view.find("red light/0/0")
    itself = view.search(view.query_of(record), Page(), leave_out=(place,))
    assert itself.verdict is not None
    assert (itself.verdict.by, itself.verdict.sure) == ("kinds", None)
    assert itself[0].probability is None


def test_the_calibration_of_the_model_holds_for_kinds_that_it_learned(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    asked, plain = coded_question("red light")[0], Page(top_k=5)
    before = view_of(store).search(asked, plain)
    assert before.verdict is not None
    assert (before.verdict.by, before[0].probability) == ("hits", None)  # as in older galleries
    calibration = Calibration(sharpness=3.0, probabilities=certain(0))
    home = store.folder / MODEL
    names = ("red light", "red dark", "blue dark", "another")
    write_card(home, ModelCard(config=RunConfig(), class_names=names, dataset="colours"))
    write_chances(home, calibration, "made-up")
    found = view_of(store).search(asked, plain)
    assert found.verdict is not None
    assert (found.verdict.by, found.verdict.label) == ("kinds", "red light")
    assert describe(store)["by"] == "model"
    # Parents are calibration of the gallery, fitted are still those of the model.
    assert set_parents(store, PARENTS)["by"] == "model"
    # What is fitted for the gallery itself wins.
    predicted = calibrate(store, lambda: FakeModel().model, photos(list(COLOURS), 20, seed=4))
    assert predicted["by"] == "photos"
    set_parents(store, {})
    strange = coded_store(tmp_path / "h", kinds=["green light", "green dark", "red dark"])
    shutil.copytree(home, strange.folder / MODEL)
    assert "kinds the model never learned" in describe(strange)["why_not"]
    verdict = view_of(strange).search(asked, plain).verdict
    assert verdict is not None
    assert verdict.by == "hits"


def test_a_calibration_of_other_weights_is_refused(tmp_path: Path) -> None:
    store = coded_store(tmp_path / "g")
    (store.folder / MODEL).mkdir()
    write_chances(store.folder / MODEL, Calibration(probabilities=certain(0)), "other weights")
    with pytest.raises(FormatError, match="does not belong to the weights"):
        view_of(store).search(coded_question("red light")[0], Page())


def test_very_many_labels_have_a_verdict_by_hits(
    coded: GalleryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phpq.gallery.verdicts._MAX_VALUES", 5 * DIM)
    verdict = view_of(coded).search(coded_question("red light")[0], Page()).verdict
    assert verdict is not None
    assert verdict.by == "hits"
    assert describe(coded)["why_not"] == "6 labels are too many to compare with each"


def test_shares_are_between_none_and_all(tmp_path: Path) -> None:
    view = view_of(sure_store(tmp_path / "g"))
    for share in (-0.01, 1.01, float("nan"), 5):
        with pytest.raises(ConfigError, match=r"wrong_at_most=.* a share from 0 to 1"):
            view.search(question("red light")[0], Page(wrong_at_most=share))
