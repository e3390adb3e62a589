"""Fit a gallery's own codebooks to its images again, and say when that is due.

A refit encodes all rows again, for the same model (`reencode`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.additive import fits_badly
from phpq.additive.grow import MAX_DISTORTION, MIN_SHARE
from phpq.errors import ConfigError
from phpq.gallery._embedded import DecodedCodes, kept_embeddings
from phpq.gallery.ingest import Progress, needs_fit_before_adding
from phpq.gallery.records import Record
from phpq.gallery.reencode import Target, reencode, rewrite_codes
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

DUE_ROWS = 2.0  # a refit is due at this many times the rows of the fit
_CHECKED_ROWS = 5000  # that the distortion is measured on


@dataclass(frozen=True, slots=True)
class RefitReport:
    """A gallery after a refit."""

    images: int
    bits: int
    trust: float
    distortion: float  # mean squared error of the codes
    from_codes: int = 0  # images without file and embedding, decoded from their old codes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the codebooks of a version fit its images."""

    classes: int  # of the codebooks
    unknown_labels: int  # labels of the gallery without a class
    fitted_rows: int  # rows of the gallery at the fit
    distortion_at_fit: float
    distortion: float | None  # of a sample now; None if embeddings are not kept
    due: str | None  # why a refit is due; None if it is not


def refit(
    store: GalleryStore,
    load: Callable[[], Model],
    *,
    trust: float | None = None,
    bits: int | None = None,
    progress: Progress | None = None,
) -> RefitReport:
    """Fit the codebooks that a gallery owns to its images, and encode all rows again.

    `trust` and `bits` stay unless they are given; the others are as in `reencode`.
    """
    if not store.manifest.owns_codebooks:
        raise ConfigError(
            f"The gallery {str(store.folder)!r} has the codebooks of its model, which were learned "
            "with it: there is nothing to fit. Galleries made with codebooks='own' (phpq index "
            "--own-codebooks) can be fitted anew."
        )
    done = reencode(store, load, Target(bits=bits, trust=trust), progress)
    assert done is not None  # a refit always has something to do
    manifest = store.manifest
    return RefitReport(
        done.images, manifest.bits, manifest.trust, done.distortion or 0.0, done.from_codes
    )


def refit_for(store: GalleryStore, records: Sequence[Record]) -> bool:
    """Fit codebooks again before records are added that they fit badly, where nothing else helps.

    That is in a gallery that keeps no embeddings, and whose codebooks have no room to grow: once
    the records are in it, nobody knows them better than their bad codes. What the codes of the
    other rows tell is nearly as good as their embeddings. Says whether it was so; the caller holds
    the lock.
    """
    new = [(each.embedding, each.label) for each in records if each.embedding is not None]
    if not new or not needs_fit_before_adding(store):
        return False
    vectors = np.stack([vector for vector, _ in new]).astype(np.float32)
    labels = [label for _, label in new]
    if not fits_badly(store.own_codebooks(), vectors, labels):
        return False
    rewrite_codes(store, DecodedCodes(), Target(), joining=(vectors, labels))
    return True


def describe_fit(store: GalleryStore) -> Fit:
    """Compare the gallery at the fit of its codebooks with what it holds now."""
    books, manifest, rows = store.own_codebooks(), store.manifest, len(store)
    labels = set(store.label_counts())
    unknown = len(labels - set(books.class_names)) if manifest.trust else 0
    now = None
    if manifest.keep_embeddings and rows:
        chosen = np.random.default_rng(0).permutation(rows)[:_CHECKED_ROWS]
        table = store.dataset.take(np.sort(chosen).tolist(), columns=["label", "embedding"])
        now = books.distortion(kept_embeddings(table), table["label"].to_pylist())
    due = None
    if rows > DUE_ROWS * manifest.fitted_rows:
        due = f"it holds {rows:,} images, and its codebooks were fitted to {manifest.fitted_rows:,}"
    elif unknown:
        due = f"its codebooks do not know {unknown:,} of its {len(labels):,} labels"
    elif books.colliding_classes:
        due = f"{books.colliding_classes:,} of its kinds have the code of another"
    elif now is not None and now > MAX_DISTORTION * books.fitted_distortion + 1e-3:
        due = f"its codes are off by {now:.4f}, and were by {books.fitted_distortion:.4f} at first"
    fitted = (manifest.fitted_rows, books.fitted_distortion)
    return Fit(len(books.class_names), unknown, *fitted, now, due if rows else None)


def outgrown(store: GalleryStore, added: int) -> bool:
    """Say whether a gallery that keeps embeddings needs a refit after images were added."""
    manifest = store.manifest
    if not (manifest.owns_codebooks and manifest.keep_embeddings and len(store)):
        return False
    # `describe_fit` takes a second or two, and a few images only matter if classes collide.
    if added < MIN_SHARE * manifest.fitted_rows and not store.own_codebooks().colliding_classes:
        return False
    return describe_fit(store).due is not None
