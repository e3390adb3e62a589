"""One version of a gallery, frozen: shards hold what a row costs, records are read when shown.

Nothing in a snapshot changes once it is made, so that any number of threads may search it and a
request sees one state from its first to its last byte. It holds nothing for a row itself: wherever
the shards are, its own memory does not grow with the gallery. No torch.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery.damage import damage_named
from phpq.gallery.hits import rerank_rows
from phpq.gallery.records import Record, code_matrix
from phpq.gallery.store import GalleryStore
from phpq.serve.filters import check_where
from phpq.serve.shards.merge import merge_hits
from phpq.serve.shards.parts import LocalShards, Shards
from phpq.serve.shards.requests import Candidates, Locate, Search, ShardFacts, WordRows

T = TypeVar("T")
_KEPT = 8  # answers that are kept, such as the map
_KNOWN = 50_000  # ids whose places are kept, about 200 bytes each


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


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """What the map and the codebook browser show of an image.

    Attributes:
        id: Its name.
        label: Its class, if it has one.
        code: (M,) uint8.
    """

    id: str
    label: str | None
    code: CodeArray


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


class Snapshot:
    """A gallery as it was at one version.

    Args:
        folder: The gallery.
        codebooks: Of its model.
        shards: Hold the codes and search them; by default one, in this process.

    Attributes:
        store: For reading; it is never refreshed.
        label_names: The distinct labels, sorted.
        label_counts: (labels,) int64, their images.
        usage: (M, K) int64, the images of every codeword.
    """

    def __init__(self, folder: Path, codebooks: Codebooks, shards: Shards | None = None) -> None:
        self.store = GalleryStore.open(folder)
        self.codebooks = codebooks
        self._parts = (shards or LocalShards()).open(self.store, codebooks)
        facts = self._parts.facts
        self._edges = np.cumsum([0, *(part.rows for part in facts)])
        self.label_names, self.label_counts = _add_labels(facts)
        self.usage = np.sum([part.usage for part in facts], axis=0)
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()  # place and offset by id
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._edges[-1])

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
        with self._lock:
            known = self._known.get(id)
        if known is not None:
            return known[0], self.store.take(np.array([known[1]]))[0]
        for place, record in self._holding("id", id):
            if record.id == id:
                return place, record
        raise UnknownNameError(
            f"There is no image {id!r} in the gallery {str(self.store.folder)!r}. Ids are paths "
            "relative to the folder that was indexed, or the ids of the table."
        )

    def find_uri(self, uri: str) -> tuple[int, Record]:
        """Return the first image whose file was at `uri` when it was indexed, and its place."""
        for place, record in self._holding("uri", uri):
            if record.uri == uri:
                return place, record
        raise UnknownNameError(
            f"No image of the gallery {str(self.store.folder)!r} has the URI {uri!r}. Only images "
            "of the gallery can be named by URI; send any other image as an upload."
        )

    def record(self, place: int) -> Record:
        """Return the image at a place in the order of insertion."""
        return self.records(np.array([place]))[0]

    def records(self, places: IntArray) -> list[Record]:
        """Return the images at (n,) places, in that order."""
        return self.store.take(self._offsets(places)) if len(places) else []

    def glances(self, places: IntArray) -> list[Glance]:
        """Return id, label and code of the images at (n,) places, and read nothing else."""
        return self._glances(self._offsets(places))

    def word_images(self, codebook: int, word: int, limit: int) -> tuple[list[Glance], int]:
        """Return images behind a codeword, and how many there are.

        Args:
            codebook: From 0.
            word: From 0.
            limit: Most images, at least 1. Of more they are taken at equal steps: galleries are
                filled class by class, and the first ones would all be of one class.
        """
        counts = [int(part.usage[codebook, word]) for part in self._parts.facts]
        edges = np.cumsum([0, *counts])
        total = int(edges[-1])
        ranks = np.arange(min(limit, total), dtype=np.int64) * total // max(1, min(limit, total))
        found = self._parts.ask(
            {
                shard: WordRows(codebook, word, ranks[inside] - edges[shard])
                for shard, inside in _by_shard(ranks, edges)
            }
        )
        offsets = [np.empty(0, np.int64), *(found[shard].offsets for shard in sorted(found))]
        return self._glances(np.concatenate(offsets)), total

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
        norm = self.store.manifest.query_norm
        table = self.codebooks.lookup_tables(query[None], norm=norm)[0]
        wanted = max(page.rerank, page.offset + page.top_k)
        asked = Search(table, wanted, page.where, page.labels, leave_out)
        parts = self._parts.ask(dict.fromkeys(range(len(self._edges) - 1), asked))
        found = merge_hits([parts[shard] for shard in sorted(parts)], wanted)
        shown = slice(page.offset, page.offset + page.top_k)
        if page.rerank:
            candidates = self._take(found.places[: page.rerank], found.offsets[: page.rerank])
            order, values = rerank_rows(query, candidates, self.codebooks, norm=norm)
            ordered = [candidates[number] for number in order[shown]]
            best = self._limit(query)
            return Found(tuple(ordered), tuple(values[shown].tolist()), best, found.total)
        records = self._take(found.places[shown], found.offsets[shown])
        scores = tuple(found.scores[shown].tolist())
        return Found(tuple(records), scores, float(table.max(axis=1).sum()), found.total)

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
        if page.where is not None:
            check_where(page.where, tuple(self.columns))

    def _limit(self, query: FloatArray) -> float:
        """Return the highest inner product of a query with unit sub-vectors."""
        parts = query.reshape(self.codebooks.num_codebooks, -1)
        raw = self.store.manifest.query_norm == "raw"
        return float(np.linalg.norm(parts, axis=1).sum() if raw else len(parts))

    def _holding(self, column: str, text: str) -> Iterator[tuple[int, Record]]:
        """Yield the images, in order of insertion, that may hold a text in a column."""
        asked = Candidates(column, text)
        parts = self._parts.ask(dict.fromkeys(range(len(self._edges) - 1), asked))
        for shard in sorted(parts):
            places, offsets = parts[shard].places, parts[shard].offsets
            if len(places):
                yield from zip(places.tolist(), self._take(places, offsets), strict=True)

    def _take(self, places: IntArray, offsets: IntArray) -> list[Record]:
        """Read images whose places are known, and remember where they are."""
        records = self.store.take(offsets) if len(offsets) else []
        with self._lock:
            # Who is shown a hit asks for its picture next: no shard need be asked where it is.
            for record, place, offset in zip(records, places, offsets, strict=True):
                self._known[record.id] = (int(place), int(offset))
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return records

    def _offsets(self, places: IntArray) -> IntArray:
        """Return (n,) int64: where a scan of the store meets the images at (n,) places."""
        grouped = dict(_by_shard(places, self._edges))
        found = self._parts.ask(
            {shard: Locate(places[inside]) for shard, inside in grouped.items()}
        )
        offsets = np.empty(len(places), np.int64)
        for shard, inside in grouped.items():
            offsets[inside] = found[shard].offsets
        return offsets

    def _glances(self, offsets: IntArray) -> list[Glance]:
        if not len(offsets):
            return []
        with damage_named(self.store.folder):
            table = self.store.dataset.take(offsets.tolist(), columns=["id", "label", "code"])
        names, labels = (table.column(name).to_pylist() for name in ("id", "label"))
        codes = code_matrix(table.column("code"), self.codebooks.num_codebooks)
        return [Glance(*parts) for parts in zip(names, labels, codes, strict=True)]


def _by_shard(numbers: IntArray, edges: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield the shards that hold some of (n,) numbers, and which of them: positions, ascending."""
    shard_of = np.searchsorted(edges, numbers, side="right") - 1
    for shard in np.unique(shard_of).tolist():
        yield shard, np.flatnonzero(shard_of == shard)


def _add_labels(facts: Sequence[ShardFacts]) -> tuple[tuple[str, ...], IntArray]:
    """Return the labels of all shards, sorted, and (labels,) int64 their images."""
    counts: Counter[str] = Counter()
    for part in facts:
        counts.update(dict(zip(part.label_names, part.label_counts.tolist(), strict=True)))
    names = tuple(sorted(counts))
    return names, np.array([counts[name] for name in names], np.int64)
