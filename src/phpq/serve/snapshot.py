"""One version of a gallery, frozen: codes, names and labels in memory, records read when shown.

Nothing in a snapshot changes once it is made, so that any number of threads may search it and a
request sees one state from its first to its last byte. No torch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, FloatArray, IntArray
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery.damage import damage_named
from phpq.gallery.hits import rerank_rows
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore
from phpq.index import CodeIndex
from phpq.serve.filters import check_where

BoolArray = NDArray[np.bool_]
T = TypeVar("T")
_MASKS = 16  # filters whose answers are kept, one byte a row each
_KEPT = 8  # other answers that are kept, such as the map


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """One page of the answer to one query.

    Attributes:
        records: Best first.
        scores: One a record.
        best: The highest score that any code could reach for this query.
        total: Images that pass the filter.
    """

    records: tuple[Record, ...]
    scores: tuple[float, ...]
    best: float
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which hits are wanted.

    Attributes:
        top_k: How many.
        offset: How many better ones are left out.
        where: A filter, see `check_where`.
        labels: Only these; all if there are none.
        rerank: > 0: order the first `rerank` hits by their float embeddings.
    """

    top_k: int = 10
    offset: int = 0
    where: str | None = None
    labels: tuple[str, ...] = ()
    rerank: int = 0


class _Names:
    """Finds rows by a text column: 16 bytes a row, whatever the length of the texts."""

    def __init__(self, texts: Sequence[str | None]) -> None:
        # The hash differs from process to process, and nothing of it is kept on disk.
        hashes = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def candidates(self, text: str) -> IntArray:
        """Return the positions, ascending, that may hold `text`."""
        wanted = np.int64(hash(text))
        first = np.searchsorted(self._hashes, wanted, side="left")
        last = np.searchsorted(self._hashes, wanted, side="right")
        return self._order[first:last]


class Snapshot:
    """A gallery as it was at one version.

    Args:
        folder: The gallery.
        codebooks: Of its model.

    Attributes:
        store: For reading; it is never refreshed.
        codes: (N, M) uint8 in the order of insertion.
        rows: (N,) int64, the numbers that name them in the store.
        label_names: The distinct labels, sorted.
        label_of: (N,) int32, positions in `label_names`; -1 without a label.
    """

    def __init__(self, folder: Path, codebooks: Codebooks) -> None:
        self.store = GalleryStore.open(folder)
        self.codebooks = codebooks
        stored = self.store.read_codes()
        self.codes, self.rows = stored.codes, stored.rows
        self.index = CodeIndex(codebooks, stored.codes)
        self._places = self._scan_order()
        self._ids = _Names(self._column("id"))
        self.label_names, self.label_of = _number(self._column("label"))
        self._uris: _Names | None = None
        self._masks: OrderedDict[str, BoolArray] = OrderedDict()
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()
        if len(self.codes):
            self._warm()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def version(self) -> int:
        """Of the gallery on disk."""
        return self.store.version

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a filter may name, with their types."""
        schema = self.store.dataset.schema
        names = ("id", "label", *self.store.metadata_columns)
        return {name: str(schema.field(name).type) for name in names}

    def find(self, id: str) -> tuple[int, Record]:
        """Return an image and its place in the order of insertion.

        Raises:
            UnknownNameError: If the gallery has no image of this id.
        """
        for place in self._ids.candidates(id).tolist():
            record = self.record(place)
            if record.id == id:
                return int(place), record
        raise UnknownNameError(
            f"There is no image {id!r} in the gallery {str(self.store.folder)!r}. Ids are paths "
            "relative to the folder that was indexed, or the ids of the table."
        )

    def find_uri(self, uri: str) -> tuple[int, Record]:
        """Return the first image whose file was at `uri` when it was indexed, and its place."""
        with self._lock:
            if self._uris is None:
                self._uris = _Names(self._column("uri"))
        for place in np.sort(self._uris.candidates(uri)).tolist():
            record = self.record(place)
            if record.uri == uri:
                return int(place), record
        raise UnknownNameError(
            f"No image of the gallery {str(self.store.folder)!r} has the URI {uri!r}. Only images "
            "of the gallery can be named by URI; send any other image as an upload."
        )

    def record(self, place: int) -> Record:
        """Return the image at a place in the order of insertion."""
        return self.store.fetch(self.rows[[place]])[0]

    def records(self, places: IntArray) -> list[Record]:
        """Return the images at (n,) places, in that order."""
        return self.store.fetch(self.rows[places]) if len(places) else []

    def ids(self, places: IntArray) -> list[str]:
        """Return the ids of the images at (n,) places, without reading anything else."""
        if not len(places):
            return []
        with damage_named(self.store.folder):
            table = self.store.dataset.take(self._places[places].tolist(), columns=["id"])
        names: list[str] = table.column("id").to_pylist()
        return names

    def label(self, place: int) -> str | None:
        """Return the label of the image at a place."""
        number = int(self.label_of[place])
        return self.label_names[number] if number >= 0 else None

    def remember(self, key: object, make: Callable[[], T]) -> T:
        """Return what `make` made for this key before, or makes now."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                kept: T = self._kept[key]
                return kept
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    def query_of(self, record: Record) -> FloatArray:
        """Return what an image is compared by, (D,) float32: its embedding if kept, or its code."""
        if record.embedding is not None:
            kept: FloatArray = record.embedding.astype(np.float32)
            return kept
        vectors: FloatArray = self.codebooks.decode(record.code[None])
        return vectors.reshape(-1)

    def search(self, query: FloatArray, page: Page, *, leave_out: int | None = None) -> Found:
        """Find the images most like a query.

        Args:
            query: (D,) float32.
            page: Which hits.
            leave_out: The place of an image that is not to be found: the query itself.
        """
        self._check(page)
        allowed = self._allowed(page)
        total = len(self) if allowed is None else int(np.count_nonzero(allowed))
        if leave_out is not None and (allowed is None or allowed[leave_out]):
            total -= 1
        norm = self.store.manifest.query_norm
        tables = self.codebooks.lookup_tables(query[None], norm=norm)
        wanted = max(page.rerank, page.offset + page.top_k) + (leave_out is not None)
        found = self.index.search_tables(tables, wanted, allowed=allowed, threads=1)
        places, scores = found.ids[0], found.scores[0]
        inside = places >= 0 if leave_out is None else (places >= 0) & (places != leave_out)
        places, scores = places[inside], scores[inside]
        shown = slice(page.offset, page.offset + page.top_k)
        best = float(tables[0].max(axis=1).sum())
        if page.rerank:
            candidates = self.records(places[: page.rerank])
            order, values = rerank_rows(query, candidates, self.codebooks, norm=norm)
            ordered = [candidates[number] for number in order[shown]]
            return Found(tuple(ordered), tuple(values[shown].tolist()), self._limit(query), total)
        records = self.records(places[shown])
        return Found(tuple(records), tuple(scores[shown].tolist()), best, total)

    def _check(self, page: Page) -> None:
        wanted = page.offset + page.top_k
        if page.rerank and not self.store.manifest.keep_embeddings:
            raise ConfigError(
                f"rerank={page.rerank} needs float embeddings, and the gallery "
                f"{str(self.store.folder)!r} keeps none. Make one with keep_embeddings=True (phpq "
                "index --keep-embeddings)."
            )
        if page.rerank and page.rerank < wanted:
            raise ConfigError(
                f"rerank={page.rerank} is less than top_k={wanted}: re-rank at least as many as "
                "you want."
            )

    def _limit(self, query: FloatArray) -> float:
        """Return the highest inner product of a query with unit sub-vectors."""
        parts = query.reshape(self.codebooks.num_codebooks, -1)
        raw = self.store.manifest.query_norm == "raw"
        return float(np.linalg.norm(parts, axis=1).sum() if raw else len(parts))

    def _allowed(self, page: Page) -> BoolArray | None:
        """Return (N,) bool; None if every image passes."""
        masks = []
        if page.where is not None:
            masks.append(self._where(page.where))
        if page.labels:
            wanted = [n for n, name in enumerate(self.label_names) if name in set(page.labels)]
            masks.append(np.isin(self.label_of, np.asarray(wanted, np.int32)))
        if not masks:
            return None
        return masks[0] if len(masks) == 1 else masks[0] & masks[1]

    def _where(self, where: str) -> BoolArray:
        with self._lock:
            mask = self._masks.get(where)
            if mask is not None:
                self._masks.move_to_end(where)
                return mask
        check_where(where, tuple(self.columns))
        mask = np.zeros(len(self), np.bool_)
        mask[np.searchsorted(self.rows, self.store.rows_where(where))] = True
        with self._lock:
            self._masks[where] = mask
            while len(self._masks) > _MASKS:
                self._masks.popitem(last=False)
        return mask

    def _column(self, name: str) -> list[str | None]:
        """Return a text column in the order of insertion."""
        texts: list[str | None] = []
        with damage_named(self.store.folder):
            for batch in self.store.dataset.to_batches(columns=[name]):
                texts += batch.column(name).to_pylist()
        return [texts[number] for number in self._places.tolist()]

    def _scan_order(self) -> IntArray:
        """Return (N,) int64: where a scan of the store meets each image."""
        with damage_named(self.store.folder):
            rows = self.store.dataset.to_table(columns=["row"]).column("row").to_numpy()
        return np.argsort(rows, kind="stable").astype(np.int64)

    def _warm(self) -> None:
        """Search once: what is compiled on first use is compiled before the first request."""
        self.search(self.codebooks.decode(self.codes[:1])[0], Page(top_k=1))


def _number(labels: Sequence[str | None]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    names = tuple(sorted({label for label in labels if label is not None}))
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    numbers[None] = -1
    return names, np.fromiter((numbers[label] for label in labels), np.int32, len(labels))
