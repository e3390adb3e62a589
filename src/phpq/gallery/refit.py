"""Fit a gallery's own codebooks to what it holds now, and encode all rows anew: one commit.

Embeddings come from the gallery where it keeps them, and from the images where it does not. Those
are embedded first, while the gallery can be changed, into a folder of its own; a refit that was
killed goes on from there. Then, under the lock of the writer, codebooks are fitted and rows are
encoded, a table at a time. Readers see the old codes with the old codebooks until the commit, and
the new ones with the new ones after it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.additive import FIT_ROWS, AdditiveCodebooks
from phpq.additive.grow import FEW, WORSE
from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.data.places import origin_at
from phpq.errors import ConfigError, FormatError
from phpq.files import write_bytes
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import check_own, damage_named
from phpq.gallery.ingest import Progress, encode_items
from phpq.gallery.owned import SIDE, write_codebooks
from phpq.gallery.records import base_schema, code_matrix, row_checks
from phpq.gallery.sources import Item
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

DUE_ROWS = 2.0  # times the rows at the fit: a refit is due
_MOST_ROWS = 2 * FIT_ROWS  # with rows of classes that the sample has missed
_CHECKED_ROWS = 5000  # whose distortion is measured
_STRETCH = 2048  # numbers of rows whose embeddings are one file


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


_Key = tuple[int, bytes]  # number of a row, and the hash of its file


class _Kept:
    """Embeddings that the gallery keeps."""

    gone = 0

    def prepare(self, store: GalleryStore, progress: Progress | None) -> None:
        """Do nothing: they are there."""

    def of(self, store: GalleryStore, table: Any) -> FloatArray:
        """Return the embeddings (n, D) of rows."""
        return kept_embeddings(table)


class _Embedded:
    """Embeddings of images, in files of the gallery: each holds a stretch of row numbers."""

    def __init__(self, store: GalleryStore, model: Model) -> None:
        self._home, self._model = store.folder / SIDE, model
        self._tried: set[_Key] = set()  # images that were read, or could not be
        self.gone = 0  # rows, so far, whose image is not there as it was

    def prepare(self, store: GalleryStore, progress: Progress | None) -> None:
        """Embed what is not embedded yet."""
        rows, done = find_part(store).rows, 0
        for stretch in np.unique(rows // _STRETCH).tolist():
            done += self._embed(store, stretch)
            if progress:
                progress("embedding", done, len(rows))

    def of(self, store: GalleryStore, table: Any) -> FloatArray:
        """Return the embeddings (n, D) of rows; what codes tell where an image is gone."""
        rows, hashes = table["row"].to_numpy(), table["sha256"].to_pylist()
        vectors = np.empty((len(rows), store.manifest.embedding_dim), np.float32)
        known = np.zeros(len(rows), np.bool_)
        for stretch in np.unique(rows // _STRETCH).tolist():
            held = self._read(stretch)
            for place in np.flatnonzero(rows // _STRETCH == stretch).tolist():
                vector = held.get((int(rows[place]), hashes[place]))
                if vector is not None:
                    vectors[place], known[place] = vector, True
        if not known.all():
            codes = code_matrix(table["code"], store.manifest.num_codebooks)[~known]
            labels = table["label"].filter(pa.array(~known)).to_pylist()
            vectors[~known] = store.own_codebooks().own_vectors(codes, labels)
        self.gone += int((~known).sum())
        return vectors

    def _embed(self, store: GalleryStore, stretch: int) -> int:
        """Embed the rows of one stretch that its file lacks; returns the rows of the stretch."""
        first = stretch * _STRETCH
        table = store.dataset.to_table(
            columns=["row", "id", "uri", "sha256"],
            filter=f"row >= {first} AND row < {first + _STRETCH}",
        )
        listed = table.to_pylist()
        held = self._read(stretch)
        keys = [(row["row"], row["sha256"]) for row in listed]
        missing = [
            (key, Item(row["id"], origin_at(row["uri"])))
            for key, row in zip(keys, listed, strict=True)
            if key not in held and key not in self._tried and row["uri"] is not None
        ]
        if not missing:
            return len(listed)
        items = [item for _, item in missing]
        encoded = chain.from_iterable(encode_items(items, self._model, space=store.manifest.space))
        for (key, _), each in zip(missing, encoded, strict=True):
            self._tried.add(key)
            record = each.record
            if record is not None and record.embedding is not None and record.sha256 == key[1]:
                held[key] = record.embedding
        self._write(stretch, {key: held[key] for key in keys if key in held})
        return len(listed)

    def _path(self, stretch: int) -> Path:
        return self._home / f"{stretch:09d}.safetensors"

    def _write(self, stretch: int, held: Mapping[_Key, NDArray[np.float16]]) -> None:
        from safetensors.numpy import save

        if not held:
            return
        tensors: dict[str, NDArray[Any]] = {
            "rows": np.array([row for row, _ in held], np.int64),
            "sha256": np.frombuffer(b"".join(sha for _, sha in held), np.uint8),
            "embeddings": np.stack(list(held.values())),
        }
        self._home.mkdir(exist_ok=True)
        write_bytes(self._path(stretch), save(tensors))

    def _read(self, stretch: int) -> dict[_Key, NDArray[np.float16]]:
        """Return the embeddings of a stretch that are there."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            held = load(self._path(stretch).read_bytes())
            hashes = held["sha256"].tobytes()
            parts = zip(held["rows"].tolist(), held["embeddings"], strict=True)
            return {
                (row, hashes[32 * place : 32 * place + 32]): vector
                for place, (row, vector) in enumerate(parts)
            }
        except (OSError, SafetensorError, KeyError, ValueError):
            return {}  # it is embedded again


Vectors = _Kept | _Embedded


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
    store.refresh()
    manifest = store.manifest
    check_own(bits or manifest.bits, manifest.trust if trust is None else trust)
    vectors: Vectors = _Kept()
    if not manifest.keep_embeddings:
        vectors = _Embedded(store, load())
        vectors.prepare(store, progress)
    with store.changing():
        if not len(store):
            raise ConfigError(
                f"The gallery {str(store.folder)!r} holds no images to fit codebooks to. Add some."
            )
        vectors.prepare(store, None)  # what came meanwhile
        report = refit_kept(store, vectors, trust=trust, bits=bits, progress=progress)
        shutil.rmtree(store.folder / SIDE, ignore_errors=True)
    return report


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
    elif books.crowded:
        due = f"{books.crowded:,} of its kinds have the code of another"
    elif now is not None and now > WORSE * books.fitted_distortion + 1e-3:
        due = f"its codes are off by {now:.3g}, and were by {books.fitted_distortion:.3g} at first"
    fitted = (manifest.fitted_rows, books.fitted_distortion)
    return Fit(len(books.class_names), unknown, *fitted, now, due if rows else None)


def outgrown(store: GalleryStore, added: int) -> bool:
    """Say whether a gallery that keeps embeddings should be fitted anew after so many came."""
    manifest = store.manifest
    if not (manifest.owns_codebooks and manifest.keep_embeddings and len(store)):
        return False
    # Looking takes a second or two: a few images more cannot change much, unless of a new class.
    if added < FEW * manifest.fitted_rows and not store.own_codebooks().crowded:
        return False
    return describe_fit(store).due is not None


def refit_kept(
    store: GalleryStore,
    vectors: Vectors | None = None,
    *,
    trust: float | None = None,
    bits: int | None = None,
    progress: Progress | None = None,
) -> RefitReport:
    """Do the work of `refit`, by default from kept embeddings, for one who holds the lock."""
    vectors = vectors or _Kept()
    manifest = store.manifest
    planned = replace(
        manifest,
        num_codebooks=(bits or manifest.bits) // 8,
        trust=manifest.trust if trust is None else trust,
    )
    if progress:
        progress("fitting", 0, len(store))
    books = _fitted(store, vectors, planned.num_codebooks, planned.trust)
    name = write_codebooks(store.folder, books)
    planned = replace(planned, books=name, fit=name, fitted_rows=len(store))
    done, images = 0, len(store)
    if isinstance(vectors, _Embedded):
        vectors.gone = 0

    def coded() -> Iterator[Any]:
        nonlocal done
        for table in batches(store, without=()):
            codes = books.encode(vectors.of(store, table), table["label"].to_pylist())
            yield with_codes(table, codes)
            done += table.num_rows
            if progress:
                progress("encoding", done, images)

    store.rewrite(coded(), new_schema(store, planned.num_codebooks), planned)
    return RefitReport(images, planned.bits, planned.trust, books.fitted_distortion, vectors.gone)


def _fitted(
    store: GalleryStore, vectors: Vectors, num_codebooks: int, trust: float
) -> AdditiveCodebooks:
    """Fit codebooks to a sample of the rows; they know every class of the gallery."""
    from phpq.additive import calibrated, fit_additive

    part = find_part(store)
    offsets = np.arange(len(part.rows)) if part.offsets is None else part.offsets
    with damage_named(store.folder):
        column = store.dataset.to_table(columns=["label"])["label"].combine_chunks()
    numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy()[offsets]
    chosen = _sample(numbers)
    rows, labels = _take(store, vectors, offsets[chosen])
    books = fit_additive(rows, labels, num_codebooks=num_codebooks, trust=trust)
    with contextlib.suppress(FormatError):  # a refit is also what replaces a damaged file
        books = replace(books, parents=store.own_codebooks().parents)
    books = calibrated(books, rows, labels)
    known = np.isin(numbers, np.unique(numbers[chosen]))
    rest = np.flatnonzero(~known)
    for start in range(0, len(rest) if trust else 0, FIT_ROWS):
        books = books.with_classes(*_take(store, vectors, offsets[rest[start : start + FIT_ROWS]]))
    return books


def _sample(numbers: IntArray) -> IntArray:
    """Choose places, ascending, of rows with these numbers of labels, -1 for none.

    A random sample, and one row of each class that it has missed, as far as there is room.
    """
    count = len(numbers)
    if count <= FIT_ROWS:
        return np.arange(count)
    order = np.random.default_rng(0).permutation(count)
    chosen, others = order[:FIT_ROWS], order[FIT_ROWS:]
    missed = others[~np.isin(numbers[others], np.unique(numbers[chosen]))]
    _, first = np.unique(numbers[missed], return_index=True)
    extra = missed[first][: _MOST_ROWS - FIT_ROWS]
    return np.sort(np.concatenate([chosen, extra]))


def _take(
    store: GalleryStore, vectors: Vectors, offsets: IntArray
) -> tuple[FloatArray, list[str | None]]:
    columns = ["row", "label", "sha256", "code"]
    if store.manifest.keep_embeddings:
        columns.append("embedding")
    parts, labels = [], []
    with damage_named(store.folder):
        for start in range(0, len(offsets), 8192):
            table = store.dataset.take(offsets[start : start + 8192].tolist(), columns=columns)
            parts.append(vectors.of(store, table))
            labels += table["label"].to_pylist()
    return np.concatenate(parts), labels


def new_schema(store: GalleryStore, num_codebooks: int) -> Any:
    """Return the schema of a store, with codes of another length."""
    code = base_schema(replace(store.manifest, num_codebooks=num_codebooks)).field("code")
    schema = store.dataset.schema
    return schema.set(schema.get_field_index("code"), code)


def with_codes(table: Any, codes: CodeArray) -> Any:
    """Return a table of all columns with other codes (n, M) and the sums that go with them."""
    flat = pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), codes.shape[1])
    checks = pa.array(row_checks(table["row"].to_numpy(), codes))
    for name, column in (("code", flat), ("check", checks)):
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def kept_embeddings(table: Any) -> FloatArray:
    """Return the kept embeddings (n, D) of a table."""
    column = table["embedding"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    vectors: FloatArray = flat.reshape(len(column), -1).astype(np.float32)
    return vectors
