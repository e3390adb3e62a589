"""A trained model and a data set in, every measure of its retrieval out, and a folder to look at.

    metrics.json  report.html  precision_at.png  precision_recall.png  top10.png
    gallery.npz   the coded gallery, which `phpq.gallery.of_run` makes searchable

Codes, two float searches and post-hoc PQ are measured on the same embeddings. The model comes as an
argument, so that this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq._version import __version__
from phpq.additive import fit_additive
from phpq.codes import CodeArray, FloatArray, normalise_sub_vectors
from phpq.config import RECIPES, to_dict
from phpq.data import Dataset, SkippedImage, learned_part, unseen_split
from phpq.errors import ConfigError
from phpq.evaluation.coded import write_coded
from phpq.evaluation.embedding import (
    Embed,
    EmbeddedImages,
    Progress,
    edited_copies,
    embed_readable,
)
from phpq.evaluation.history import EpochScores
from phpq.evaluation.metrics import RetrievalScores
from phpq.evaluation.page import write_page
from phpq.evaluation.protocol import (
    LabelledEmbeddings,
    evaluate_codes,
    evaluate_float,
    evaluate_soft,
)
from phpq.evaluation.search import ClassSplit, SearchSetup, evaluate_pq
from phpq.evaluation.timing import SearchTiming, time_search
from phpq.evaluation.unseen import UnseenScores, evaluate_unseen
from phpq.files import make_folder, write_json
from phpq.index import CodeIndex
from phpq.report.pictures import draw_hits, hit_rows, spread_queries

if TYPE_CHECKING:
    from phpq.model import Model

METRICS = "metrics.json"
CUTOFFS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
TIMED_QUERIES = 1000
SHOWN_QUERIES = 8
SHOWN_HITS = 10
UNSEEN_BITS = (32, 64, 128)  # of codes of unseen classes
COPIES = 1000  # images of unseen classes whose edited copies are searched with
GENERAL = "general"  # the embedding for unseen classes


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model achieves on a data set."""

    dataset: str  # its name
    source: str  # for `open_dataset`; may be empty
    # > 0: the queries are that many images per class of the training split, as while training,
    # and the test split is not used.
    held_out: int
    bits: int  # of a code
    settings: dict[str, dict[str, Any]]  # the model's resolved config, as plain data
    epochs_trained: int  # that the model has learned
    fingerprint: str  # of its weights
    codes: RetrievalScores  # search over the learned codes
    float_search: RetrievalScores  # exhaustive search over the same embeddings
    # None for both if codes are not those of normalised sub-vectors.
    pq: RetrievalScores | None  # product quantization of as many bytes, fitted afterwards
    soft: RetrievalScores | None  # float queries against soft reconstructions
    timing: SearchTiming  # 1,000 queries by codes and by float search
    epochs: EpochScores | None  # MAP of the run's last and best epoch; None without a run
    skipped: tuple[SkippedImage, ...]  # images that could not be read
    # By codebooks that the gallery owns, over the general embedding, without and with its labels.
    own: dict[str, RetrievalScores] = field(default_factory=dict)
    unseen: UnseenScores | None = None  # of classes that the run held out; None if there are none
    folder: Path | None = None  # where the files are; None if none were written
    # Codes decode to the embeddings themselves, as with hashing: float search finds the same.
    lossless: bool = False

    @property
    def ways(self) -> dict[str, RetrievalScores]:
        """Scores worth comparing, by what was searched; the learned codes first."""
        codes = {f"{self.title} codes": self.codes}
        if self.lossless:
            return codes | self.own
        others = {
            "float search": self.float_search,
            "float against soft reconstructions": self.soft,
            "post-hoc PQ": self.pq,
        }
        return codes | {name: one for name, one in others.items() if one is not None} | self.own

    @property
    def posthoc_pq(self) -> RetrievalScores:
        """The scores of `pq`; a `ConfigError` if they were not measured."""
        if self.pq is None:
            raise ConfigError(
                f"Post-hoc PQ was not measured: codes of {self.title} are no product codes of "
                "normalised embeddings. Ask for it of phpq or pqn."
            )
        return self.pq

    @property
    def title(self) -> str:
        """The method, as tables name it."""
        return RECIPES[self.settings["method"]["name"]].title

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; MAP and P@N in per cent."""
        return {
            "phpq_version": __version__,
            "dataset": self.dataset,
            "source": self.source,
            "held_out_per_class": self.held_out,
            "bits": self.bits,
            "map": {str(self.bits): self.codes.map_percent},
            "lossless": self.lossless,
            "map_float": self.float_search.map_percent,
            "map_soft": self.soft and self.soft.map_percent,
            "map_pq": self.pq and self.pq.map_percent,
            "scores": {
                "codes": self.codes.to_dict(),
                "float": self.float_search.to_dict(),
                "soft": self.soft and self.soft.to_dict(),
                "pq": self.pq and self.pq.to_dict(),
            },
            "own_codebooks": {name: scores.to_dict() for name, scores in self.own.items()},
            "unseen": self.unseen and self.unseen.to_dict(),
            "timing": self.timing.to_dict(),
            "epochs": None if self.epochs is None else asdict(self.epochs),
            "skipped": [asdict(image) for image in self.skipped],
            "model": {
                "fingerprint": self.fingerprint,
                "epochs_trained": self.epochs_trained,
                "config": self.settings,
            },
        }


def evaluate_model(
    model: Model,
    dataset: Dataset,
    *,
    out: Path | None = None,
    epochs: EpochScores | None = None,
    frozen: Embed | None = None,
    own_codebooks: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model: the test split are the queries, the training split is the gallery.

    On the data set that it was trained on, a model is measured as while training: with held-out
    queries, so that settings can be compared without the test split, and with held-out classes as
    unseen ones. Other data sets may have other classes. Files go to the folder `out`; None writes
    nothing. `epochs` of the run are shown on the page. `frozen` embeds by the backbone before
    training, as a baseline for unseen classes. With `own_codebooks` the gallery is also searched by
    codebooks of its own, over the general embedding.
    """
    if own_codebooks:
        model.embedding_dim("general")  # raises, if there is none, before any image is embedded
    if out is not None:
        make_folder(out)
    own = model.card.dataset in (dataset.source, dataset.name)
    settings, whole = model.card.config.data, dataset
    dataset = learned_part(dataset, settings) if own else dataset
    held_out = unseen_split(whole, settings) if own and settings.holdout_classes else ()
    spaces = _other_spaces(model, frozen) if held_out or own_codebooks else {}
    embed = partial(embed_readable, model, others=spaces, progress=progress)
    parts = (dataset.train, dataset.test, *held_out)
    gallery, queries, *unseen = [embed(part) for part in parts]
    if unseen:
        unseen.append(embed(edited_copies(unseen[0].images, COPIES)))
    codes = model.codebooks.encode(gallery.embeddings)
    codes_scores, float_scores, soft_scores, pq_scores = _measure(
        model, queries.labelled(), gallery.labelled(), codes
    )
    evaluation = Evaluation(
        dataset=dataset.name,
        source=dataset.source,
        held_out=settings.holdout_per_class if own else 0,
        bits=model.bits,
        settings=to_dict(model.card.config),
        epochs_trained=model.epochs,
        fingerprint=model.fingerprint(),
        codes=codes_scores,
        float_search=float_scores,
        soft=soft_scores,
        pq=pq_scores,
        timing=time_search(
            queries.embeddings,
            gallery.embeddings,
            codebooks=model.codebooks,
            num_queries=TIMED_QUERIES,
            query_norm=model.query_norm,
        ),
        epochs=epochs,
        skipped=tuple(image for part in (gallery, queries, *unseen) for image in part.skipped),
        own=_measure_own(model, queries, gallery) if own_codebooks else {},
        unseen=_measure_unseen(model, (gallery, queries, *unseen)) if unseen else None,
        folder=out,
        lossless=np.array_equal(model.codebooks.decode(codes), gallery.embeddings),
    )
    if out is not None:
        if find_spec("matplotlib") is not None:  # a machine that only measures needs no pictures
            write_page(evaluation, out, top10=_draw_top10(model, queries, gallery, codes))
        write_json(out / METRICS, evaluation.to_dict())
        write_coded(
            out, gallery.images, codes, gallery.embeddings, fingerprint=evaluation.fingerprint
        )
    return evaluation


def _measure(
    model: Model, queries: LabelledEmbeddings, gallery: LabelledEmbeddings, codes: CodeArray
) -> tuple[RetrievalScores, RetrievalScores, RetrievalScores | None, RetrievalScores | None]:
    """Return the scores of the codes, of float search, of soft reconstructions and post-hoc PQ."""
    codebooks, books = model.codebooks, model.codebooks.num_codebooks
    # P@N is of no use for an N larger than the gallery.
    cutoffs = [n for n in CUTOFFS if n <= len(gallery)]
    by_codes = evaluate_codes(
        queries,
        codes,
        gallery.labels,
        codebooks,
        query_norm=model.query_norm,
        cutoffs=cutoffs,
        kept=gallery.embeddings,
    )
    parts = books if codebooks.unit else 0  # other methods do not normalise
    by_floats = evaluate_float(queries, gallery, sub_vectors=parts, cutoffs=cutoffs)
    if not codebooks.unit:
        return by_codes, by_floats, None, None
    config, size = model.card.config, codebooks.codebook_size
    # PQN attends to all codewords, whatever kappa is set for PHPQ.
    kappa = size if config.method.name == "pqn" else config.quantizer.kappa
    soft = None
    if config.quantizer.kappa_mode != "nucleus":  # which has no single kappa
        alpha = config.quantizer.alpha
        soft = evaluate_soft(queries, gallery, codebooks, alpha=alpha, kappa=kappa, cutoffs=cutoffs)
    units, rows = (
        LabelledEmbeddings(normalise_sub_vectors(part.embeddings, books), part.labels)
        for part in (queries, gallery)
    )
    fitted = evaluate_pq(units, rows, num_codebooks=books, largest=size, cutoffs=cutoffs)
    return by_codes, by_floats, soft, fitted


def _measure_own(
    model: Model, queries: EmbeddedImages, gallery: EmbeddedImages
) -> dict[str, RetrievalScores]:
    """Measure codebooks that are fitted to the gallery, of as many bytes."""
    vectors = LabelledEmbeddings(queries.others[GENERAL], queries.images.labels)
    rows, labels = gallery.others[GENERAL], gallery.images.labels
    names = [gallery.images.class_names[label] for label in labels]
    cutoffs = [n for n in CUTOFFS if n <= len(rows)]
    found = {}
    for way, given in (("without labels", [None] * len(rows)), ("with its labels", names)):
        books = fit_additive(rows, given, num_codebooks=max(1, model.bits // 8))
        codes = books.encode(rows, given)
        scores = evaluate_codes(vectors, codes, labels, books, cutoffs=cutoffs, kept=rows)
        found[f"gallery's own codebooks, {way}"] = scores
    return found


def _other_spaces(model: Model, frozen: Embed | None) -> dict[str, Embed]:
    """Return the other embeddings that unseen classes are searched by."""
    spaces: dict[str, Embed] = {}
    if model.has_general:
        spaces[GENERAL] = partial(model.embed_pixels, space="general")
    return spaces | ({} if frozen is None else {"frozen": frozen})


def _measure_unseen(model: Model, parts: Sequence[EmbeddedImages]) -> UnseenScores:
    """Measure unseen classes: gallery and queries of learned, then of unseen ones; copies last."""
    *known, copies = parts
    labels = np.concatenate([part.images.labels for part in known])
    sizes = [len(part.images) for part in known]
    unseen = np.repeat([False, False, True, True], sizes)
    split = ClassSplit(unseen, np.repeat([False, True, False, True], sizes))
    learned = np.concatenate([part.embeddings for part in known])
    others: Mapping[str, FloatArray] = {
        name: np.concatenate([part.others[name] for part in known]) for name in known[0].others
    }
    row_of = {image: sum(sizes[:2]) + row for row, image in enumerate(known[2].images.ids)}
    originals = np.array([row_of[image] for image in copies.images.ids], dtype=np.int64)
    title, books = RECIPES[model.card.config.method.name].title, model.codebooks
    setups = [SearchSetup(f"{title} codes", learned, lambda *_: books, norm=model.query_norm)]
    units, changed = (
        normalise_sub_vectors(rows, books.num_codebooks) if books.unit else rows
        for rows in (learned, copies.embeddings)
    )
    if GENERAL in others:
        setups.append(SearchSetup(f"{title} float", units))
    if "frozen" in others:
        setups.append(
            SearchSetup("frozen features, float", normalise_sub_vectors(others["frozen"], 1))
        )
    found = evaluate_unseen(
        others.get(GENERAL, units),
        labels,
        split,
        bits=UNSEEN_BITS,
        others=setups,
        copies=(copies.others.get(GENERAL, changed), originals),
    )
    absent = [
        reason
        for name, reason in (
            (
                GENERAL,
                "the general embedding: this model has none, so the learned one stands in; add it "
                "with: phpq train --resume RUN",
            ),
            ("frozen", "frozen features: the weights that training began with are not here"),
        )
        if name not in others
    ]
    return UnseenScores(found.scores, (*found.left_out, *absent))


def _draw_top10(
    model: Model, queries: EmbeddedImages, gallery: EmbeddedImages, codes: CodeArray
) -> bytes:
    """Draw the first hits of a few queries, as a PNG."""
    chosen = spread_queries(queries.images.labels, SHOWN_QUERIES)
    result = CodeIndex(model.codebooks, codes).search(
        queries.embeddings[chosen], SHOWN_HITS, query_norm=model.query_norm
    )
    rows = hit_rows(
        result.ids,
        chosen,
        query_labels=queries.images.labels,
        gallery_labels=gallery.images.labels,
        class_names=gallery.images.class_names,
    )
    return draw_hits(rows, query_image=queries.images.read, gallery_image=gallery.images.read)
