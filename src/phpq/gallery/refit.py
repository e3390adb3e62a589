"""Fit a gallery's own codebooks to what it holds now, and say when that is due.

A refit encodes all rows anew for the model that the gallery has (`reencode`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.additive.grow import MAX_DISTORTION, MIN_SHARE
from phpq.errors import ConfigError
from phpq.gallery._embedded import Kept, kept_embeddings
from phpq.gallery.ingest import Progress
from phpq.gallery.reencode import Reencoded, Target, reencode, rewrite_codes
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

DUE_ROWS = 2.0  # times the rows at the fit: a refit is due
_CHECKED_ROWS = 5000  # whose distortion is measured


@dataclass(frozen=True, slots=True)
class RefitReport:
    """What became of a gallery."""

    images: int
    bits: int
    trust: float
    distortion: float  # mean squared distance of rows from what their codes stand for
    from_codes: int = 0  # images that are gone and whose embeddings are not kept: from old codes

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the codebooks of a version fit what it holds."""

    classes: int  # that the codebooks know
    unknown_labels: int  # of the gallery, which they do not know
    fitted_rows: int  # of the gallery when they were fitted
    distortion_at_fit: float
    distortion: float | None  # of a sample now; None where embeddings are not kept
    due: str | None  # a sentence that says why a refit is due; None if it is not


def refit(
    store: GalleryStore,
    load: Callable[[], Model],
    *,
    trust: float | None = None,
    bits: int | None = None,
    progress: Progress | None = None,
) -> RefitReport:
    """Fit the codebooks that a gallery owns to what it holds, and encode all rows anew.

    `load` gives the model, which is asked for only if embeddings are not kept. `trust` and `bits`
    stay as they are unless they are given. Other changes wait, but for the time in which images are
    embedded. `progress` is called with (what is done, images done, images in all).
    """
    if not store.manifest.owns_codebooks:
        raise ConfigError(
            f"The gallery {str(store.folder)!r} has the codebooks of its model, which were learned "
            "with it: there is nothing to fit. Galleries made with codebooks='own' (phpq index "
            "--own-codebooks) can be fitted anew."
        )
    done = reencode(store, load, Target(bits=bits, trust=trust), progress)
    assert done is not None  # a refit always has something to do
    return _report(store, done)


def refit_from_kept(store: GalleryStore) -> RefitReport:
    """Do as `refit` from kept embeddings, for one who holds the lock."""
    return _report(store, rewrite_codes(store, Kept(), Target()))


def _report(store: GalleryStore, done: Reencoded) -> RefitReport:
    manifest = store.manifest
    return RefitReport(
        done.images, manifest.bits, manifest.trust, done.distortion or 0.0, done.from_codes
    )


def describe_fit(store: GalleryStore) -> Fit:
    """Compare what the codebooks were fitted to with what the gallery holds now."""
    books, manifest, rows = store.own_codebooks(), store.manifest, len(store)
    labels = set(store.dataset.to_table(columns=["label"])["label"].unique().to_pylist()) - {None}
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
        due = f"its codes are off by {now:.3g}, and were by {books.fitted_distortion:.3g} at first"
    fitted = (manifest.fitted_rows, books.fitted_distortion)
    return Fit(len(books.class_names), unknown, *fitted, now, due if rows else None)


def outgrown(store: GalleryStore, added: int) -> bool:
    """Say whether a gallery that keeps embeddings should be fitted anew after so many came."""
    manifest = store.manifest
    if not (manifest.owns_codebooks and manifest.keep_embeddings and len(store)):
        return False
    # Looking takes a second or two: a few images more cannot change much, unless of a new class.
    if added < MIN_SHARE * manifest.fitted_rows and not store.own_codebooks().colliding_classes:
        return False
    return describe_fit(store).due is not None
