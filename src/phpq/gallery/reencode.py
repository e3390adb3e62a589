"""Encode all images of a gallery again, in one commit: shared by refits and upgrades.

Embeddings are those that the gallery keeps of the model, or else the images are embedded again,
while the gallery can still be changed. Then, under the writer's lock, codebooks are fitted if the
gallery owns them, and rows are encoded, a table at a time. Until the commit readers see the old
codes with their codebooks and their model.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from phpq.additive import FIT_ROWS, AdditiveCodebooks, Calibration
from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.errors import ConfigError, DataError, FormatError
from phpq.files import write_json
from phpq.gallery._embedded import EmbeddingSource, KeptEmbeddings, ReembeddedImages
from phpq.gallery._part import batches, find_part
from phpq.gallery._rows import keep_version
from phpq.gallery.folder import (
    EMBEDDING_LOCK,
    MANIFEST,
    UPGRADED_FORMAT_VERSION,
    Manifest,
    check_own,
    damage_named,
    read_manifest,
    writing,
)
from phpq.gallery.ingest import Progress
from phpq.gallery.models import manifest_for, save_model
from phpq.gallery.owned import read_calibration, write_calibration, write_codebooks
from phpq.gallery.records import base_schema, row_checks
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

Joining = tuple[FloatArray, Sequence[str | None]]  # embeddings (n, D) and labels of new rows

_MAX_ROWS = 2 * FIT_ROWS  # with one row of each class that the sample missed
_LISTED = 10  # ids that a message names


@dataclass(frozen=True, slots=True)
class Target:
    """Model and settings of the new codes."""

    model: Model | None = None  # None: that of the gallery
    bits: int | None = None  # None: as before, or as the model has
    trust: float | None = None  # weight of labels; None: as before
    keep_old: bool = False  # keep the old version for a rollback: an upgrade
    drop_missing: bool = False  # leave out images that cannot be embedded

    def is_met(self, manifest: Manifest) -> bool:
        """Say whether an upgrade would change nothing; a refit always does."""
        return self.keep_old and self.planned(manifest) == manifest

    def planned(self, manifest: Manifest) -> Manifest:
        """Return the manifest of the next version, as far as it is known before the commit."""
        bits = self.bits or manifest.bits
        trust = manifest.trust if self.trust is None else self.trust
        if self.model is None:
            check_own(bits, trust)
            return replace(manifest, num_codebooks=bits // 8, trust=trust)
        new = manifest_for(
            self.model,
            manifest.codebooks,
            bits=bits,
            trust=trust,
            keep_embeddings=manifest.keep_embeddings,
        )
        if self.bits not in (None, new.bits):
            raise ConfigError(
                f"The codes of this model have {new.bits} bits, not {self.bits}: the gallery has "
                "the codebooks of its model, which were learned with it. Leave out the bits, or "
                "choose a model of that length."
            )
        other = new.model_fingerprint != manifest.model_fingerprint
        return replace(
            new,
            created=manifest.created,
            phpq_version=manifest.phpq_version,
            format_version=manifest.format_version,
            books=manifest.books,
            fit=manifest.fit,
            fitted_rows=manifest.fitted_rows,
            model=new.model_fingerprint if other else manifest.model,
            before=manifest.before,
            left_out=manifest.left_out,
            chances="" if other else manifest.chances,
        )


@dataclass(frozen=True, slots=True)
class Reencoded:
    """What was done."""

    images: int
    distortion: float | None  # mean squared error of the codes
    from_codes: int  # images without file and embedding, decoded from their old codes
    dropped: tuple[str, ...]  # ids of images that were left out


def reencode(
    store: GalleryStore,
    load: Callable[[], Model],
    target: Target,
    progress: Progress | None = None,
) -> Reencoded | None:
    """Encode all rows again; None if the target is met already.

    `load` gives the model of the gallery, and is called only if images must be embedded. Other
    changes wait, except while images are embedded. `progress` is called with (what is done, images
    done, images in all).
    """
    store.refresh()
    if target.is_met(store.manifest):
        return None
    source = _source(store, load, target)
    alone: AbstractContextManager[None] = nullcontext()
    if isinstance(source, ReembeddedImages):
        alone = writing(store.folder, timeout=0, lock_file=EMBEDDING_LOCK)
    with _full_disk_named(store.folder), alone:
        if isinstance(source, ReembeddedImages):
            _check_missing(store, source, target)
            source.prepare(store, progress)
        with store.changing():
            if target.is_met(store.manifest):  # another process was faster
                return None
            if not len(store):
                raise ConfigError(
                    f"The gallery {str(store.folder)!r} holds no images to encode anew. Add some."
                )
            dropped: list[str] = []
            if isinstance(source, ReembeddedImages):
                source.prepare(store, None)  # images that were added meanwhile
                dropped = _check_missing(store, source, target)
            done = rewrite_codes(store, source, target, progress, dropped)
        if isinstance(source, ReembeddedImages):
            source.remove()
    return done


def _source(store: GalleryStore, load: Callable[[], Model], target: Target) -> EmbeddingSource:
    """Choose where the embeddings come from."""
    manifest, planned = store.manifest, target.planned(store.manifest)
    same = planned.model_fingerprint == manifest.model_fingerprint
    # Rows with codes of this very model keep them.
    if same and (manifest.keep_embeddings or not manifest.owns_codebooks):
        return KeptEmbeddings()
    _check_room(store, planned)
    return ReembeddedImages(store, target.model if target.model and not same else load(), planned)


def _check_missing(store: GalleryStore, source: ReembeddedImages, target: Target) -> list[str]:
    """Return the images that cannot be embedded; a `DataError` unless they may be dropped."""
    missing = source.find_missing(store)
    if len(missing) == len(store) and missing:
        raise DataError(
            f"None of the {len(missing):,} images of the gallery {str(store.folder)!r} can be read "
            "where they were indexed: there is nothing for another model to see. Put the files "
            "back. Nothing was changed."
        )
    if missing and not target.drop_missing:
        listed = ", ".join(repr(name) for name in missing[:_LISTED])
        more = f" and {len(missing) - _LISTED:,} more" if len(missing) > _LISTED else ""
        raise DataError(
            f"{len(missing):,} of {len(store):,} images of the gallery {str(store.folder)!r} "
            f"cannot be shown to another model, since their files are gone or have changed: "
            f"{listed}{more}. Put the files back, or index them again; or leave these images out "
            "with drop_missing=True (--drop-missing). Nothing was changed."
        )
    return missing


def rewrite_codes(
    store: GalleryStore,
    source: EmbeddingSource,
    target: Target,
    progress: Progress | None = None,
    dropped: Sequence[str] = (),
    *,
    joining: Joining | None = None,
) -> Reencoded:
    """Fit codebooks, encode and commit; the caller holds the lock. `dropped` has no vectors.

    Codebooks are fitted to rows that are `joining` as well, which the caller adds afterwards.
    """
    planned, images = target.planned(store.manifest), len(store)
    if target.keep_old:
        _prepare_upgrade(store, target.model, planned)
        planned = replace(planned, format_version=UPGRADED_FORMAT_VERSION)
        planned = replace(planned, before=store.version, left_out=len(dropped))
        planned = replace(planned, chances=_kept_parents(store, planned))
    books: AdditiveCodebooks | None = None
    if planned.owns_codebooks:
        if progress:
            progress("fitting", 0, images)
        books = _fitted(store, source, planned.num_codebooks, planned.trust, joining)
        name = write_codebooks(store.folder, books)
        fitted_rows = images - len(dropped) + (len(joining[1]) if joining else 0)
        planned = replace(planned, books=name, fit=name, fitted_rows=fitted_rows)
    done, source.from_codes = 0, 0

    def coded() -> Iterator[Any]:
        nonlocal done
        for table in batches(store, without=()):
            vectors = source.of(store, table)
            codes = vectors.codes
            if books is not None:
                codes = books.encode(vectors.embeddings, table["label"].to_pylist())
            fresh = with_codes(table, codes)
            if isinstance(source, ReembeddedImages) and planned.keep_embeddings:
                fresh = _with_embeddings(fresh, vectors.embeddings)
            yield fresh if vectors.known.all() else fresh.filter(pa.array(vectors.known))
            done += table.num_rows
            if progress:
                progress("encoding", done, images)

    store.rewrite(coded(), _schema(store, planned), planned)
    distortion = None if books is None else books.fitted_distortion
    return Reencoded(len(store), distortion, source.from_codes, tuple(dropped))


def _kept_parents(store: GalleryStore, planned: Manifest) -> str:
    """Return the calibration file of the next version; for another model it has only parents."""
    if planned.chances or not store.manifest.chances:
        return planned.chances
    parents = read_calibration(store.folder, store.manifest).parents
    return write_calibration(store.folder, Calibration(parents=parents)) if parents else ""


def _prepare_upgrade(store: GalleryStore, model: Model | None, planned: Manifest) -> None:
    """Save the model and keep the old version, before the commit; the gallery stays as it is."""
    if model is not None and planned.model != store.manifest.model:
        save_model(store.folder, model, planned.model)
    manifest = read_manifest(store.folder)
    if not manifest.upgraded:  # versions of phpq without upgrades must refuse the gallery
        manifest = replace(manifest, format_version=UPGRADED_FORMAT_VERSION)
        write_json(store.folder / MANIFEST, manifest.to_dict())
    keep_version(store.dataset, store.version)


def _check_room(store: GalleryStore, planned: Manifest) -> None:
    """Raise a `DataError` if the disk is too small for what will be written at least."""
    width = 2 * planned.embedding_dim if planned.owns_codebooks or planned.keep_embeddings else 0
    kept = planned.num_codebooks + (width if planned.keep_embeddings else 0)
    needed, free = len(store) * (width + kept), shutil.disk_usage(store.folder).free
    if needed > free:
        raise DataError(
            f"Encoding {len(store):,} images anew takes at least {needed:,} bytes in "
            f"{str(store.folder)!r}, and {free:,} are free. Make room; nothing was changed."
        )


@contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    """Turn the errors of a full disk, here or in Lance, into a `DataError`."""
    try:
        yield
    except (OSError, FormatError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        if not full:
            raise
        raise DataError(
            f"The disk of the gallery {str(folder)!r} is full. The gallery is as it was, and what "
            "was embedded so far is kept. Make room, and run this again to go on."
        ) from error


def _fitted(
    store: GalleryStore,
    source: EmbeddingSource,
    num_codebooks: int,
    trust: float,
    joining: Joining | None,
) -> AdditiveCodebooks:
    """Fit codebooks to a sample of the rows and to `joining`, and add the classes it missed."""
    from phpq.additive import calibrate_additive, fit_additive

    part = find_part(store)
    offsets = np.arange(len(part.rows)) if part.offsets is None else part.offsets
    with damage_named(store.folder):
        column = store.dataset.to_table(columns=["label"])["label"].combine_chunks()
    numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy()[offsets]
    chosen = _sample(numbers)
    rows, labels = _take(store, source, offsets[chosen])
    if joining:
        rows, labels = np.concatenate([rows, joining[0]]), [*labels, *joining[1]]
    books = fit_additive(rows, labels, num_codebooks=num_codebooks, trust=trust)
    with suppress(FormatError):  # a refit is also what replaces a damaged file
        books = replace(books, parents=store.own_codebooks().parents)
    books = calibrate_additive(books, rows, labels)
    known = np.isin(numbers, np.unique(numbers[chosen]))
    rest = np.flatnonzero(~known)
    for start in range(0, len(rest) if trust else 0, FIT_ROWS):
        books = books.with_classes(*_take(store, source, offsets[rest[start : start + FIT_ROWS]]))
    return books


def _sample(numbers: IntArray) -> IntArray:
    """Choose places, ascending, of rows by the numbers (N,) of their labels, -1 for none.

    A random sample, and one row of each class that it missed, up to a limit.
    """
    count = len(numbers)
    if count <= FIT_ROWS:
        return np.arange(count)
    order = np.random.default_rng(0).permutation(count)
    chosen, others = order[:FIT_ROWS], order[FIT_ROWS:]
    missed = others[~np.isin(numbers[others], np.unique(numbers[chosen]))]
    _, first = np.unique(numbers[missed], return_index=True)
    extra = missed[first][: _MAX_ROWS - FIT_ROWS]
    return np.sort(np.concatenate([chosen, extra]))


def _take(
    store: GalleryStore, source: EmbeddingSource, offsets: IntArray
) -> tuple[FloatArray, list[str | None]]:
    columns = ["row", "label", "sha256", "code"]
    if store.manifest.keep_embeddings:
        columns.append("embedding")
    parts: list[FloatArray] = []
    labels: list[str | None] = []
    with damage_named(store.folder):
        for start in range(0, len(offsets), 8192):
            table = store.dataset.take(offsets[start : start + 8192].tolist(), columns=columns)
            vectors = source.of(store, table)
            parts.append(vectors.embeddings[vectors.known])
            labels += table["label"].filter(pa.array(vectors.known)).to_pylist()
    return np.concatenate(parts), labels


def _schema(store: GalleryStore, planned: Manifest) -> Any:
    """Return the schema of a store with the code and embedding columns of another manifest."""
    schema, wanted = store.dataset.schema, base_schema(planned)
    for name in {"code", "embedding"} & set(wanted.names):
        schema = schema.set(schema.get_field_index(name), wanted.field(name))
    return schema


def with_codes(table: Any, codes: CodeArray) -> Any:
    """Return a table of all columns with other codes (n, M) and their checksums."""
    flat = pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), codes.shape[1])
    checks = pa.array(row_checks(table["row"].to_numpy(), codes))
    return _with_columns(table, (("code", flat), ("check", checks)))


def _with_embeddings(table: Any, vectors: FloatArray) -> Any:
    flat = pa.array(vectors.astype(np.float16).ravel())
    column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return _with_columns(table, (("embedding", column),))


def _with_columns(table: Any, columns: Sequence[tuple[str, Any]]) -> Any:
    for name, column in columns:
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table
