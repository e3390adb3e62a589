"""Shards of a gallery: each searches a range of its rows, and the caller merges the answers.

Here are the interface that a view uses, and shards in this process; those on other machines are in
`phpq.serve`. A place is the position of a row in the order of insertion.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from phpq.additive import CodewordCounts, count_codewords
from phpq.codes import Codebooks, FloatArray, IntArray
from phpq.gallery._part import StoredPart, find_part, part_bounds
from phpq.gallery.store import GalleryStore
from phpq.index import CodeIndex
from phpq.index.engine import FEW_ROWS

T = TypeVar("T")
BoolArray = NDArray[np.bool_]
ShardEvents = Callable[[str, int], None]  # "retries", "restarts" or "failures", and the shard
_MASKS = 16  # filters whose masks are cached, one byte per row each


class RecentCache:
    """An LRU cache of `size` results, for any number of threads."""

    def __init__(self, size: int) -> None:
        self._cache: LRUCache[object, Any] = LRUCache(size)
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return the cached result for a key, or that of `make`."""
        with self._lock:
            if key in self._cache:
                cached: T = self._cache[key]
                return cached
        made = make()
        with self._lock:
            self._cache[key] = made
        return made


class Request(NamedTuple):
    """A call of a method of a shard, by name, which can be sent to another process."""

    method: str
    arguments: tuple[Any, ...] = ()

    def run(self, shard: Shard) -> Any:
        """Call the method."""
        return getattr(shard, self.method)(*self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Lookup tables of some queries, a filter, and the number of rows wanted."""

    tables: FloatArray  # (Q, M, K), the same for all shards: computed again, they might round else
    wanted: int  # rows per query
    where: str | None = None  # a Lance SQL expression
    labels: tuple[str, ...] = ()  # only these; empty: all
    leave_out: tuple[int, ...] = ()  # the places of rows that are not to be found
    ties: int = 0  # further rows, at most, that tie with the last one


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where some rows are."""

    places: IntArray  # (n,) int64 in the order of insertion of the whole gallery
    offsets: IntArray  # (n,) int64 in a scan of the store


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The best rows of one shard, or of all, for Q queries."""

    places: IntArray  # (Q, n) as in `Located`, best first, ties ascending; -1 where there are fewer
    offsets: IntArray  # (Q, n) as in `Located`
    scores: FloatArray  # (Q, n) float32; -inf where there are fewer
    total: int  # rows that pass the filter


@dataclass(frozen=True, slots=True, eq=False)
class ShardFacts:
    """Counts over all rows of a shard."""

    label_names: tuple[str, ...]  # distinct ones, sorted
    label_counts: IntArray  # (labels,) int64, rows per label
    usage: IntArray  # (M, K) int64, rows per codeword


class LabelCodewords(NamedTuple):
    """How often images of each label have each codeword."""

    label_names: tuple[str, ...]  # distinct ones, sorted
    counts: CodewordCounts  # by the places of these labels


class Shard:
    """Part `number` of `shards` parts of a gallery, at the version of a store.

    It never changes, so that any number of threads may use it. A row takes at most 1.5 M + 7 bytes
    of index and 8 for its number; 16 more in a prepared shard. `first` is the place of its first
    row, `total` the number of rows of the whole gallery.
    """

    def __init__(
        self, store: GalleryStore, codebooks: Codebooks, number: int = 0, shards: int = 1
    ) -> None:
        self._part = find_part(store, number, shards)
        self.first, self.total = self._part.first, self._part.total
        self._index = CodeIndex(codebooks, self._part.codes())
        self._text_indexes: dict[str, TextIndex] = {}
        self._prepared = False
        self._masks = RecentCache(_MASKS)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._part.rows)

    def prepare(self) -> None:
        """Do now what would slow the first request down, and index ids in memory."""
        self._prepared = True
        self.facts()
        self.candidates("id", "")
        if len(self) > FEW_ROWS:
            self._index.build()
        books = self._index.codebooks
        self.search(Search(np.zeros((1, books.num_codebooks, books.codebook_size), np.float32), 1))

    def search(self, query: Search) -> Ranked:
        """Return the best rows of every query, ties in order of insertion.

        With `ties` there are more columns than wanted. Of these only the rows are complete that tie
        with the last wanted one.
        """
        allowed, total = self._allowed(query.where, query.labels)
        left_out = np.unique(np.array(query.leave_out, np.int64) - self.first)
        left_out = left_out[(left_out >= 0) & (left_out < len(self))]
        total -= len(left_out) if allowed is None else int(allowed[left_out].sum())
        rows, scores = self._best(query, query.wanted + len(left_out), allowed)
        if len(left_out):  # move them behind all others, and cut as many columns off
            found = np.isin(rows, left_out)
            order = np.argsort(found, axis=1, kind="stable")[:, : -len(left_out)]
            rows = np.take_along_axis(rows, order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
        located = self._located(rows)
        return Ranked(located.places, located.offsets, scores, total)

    def _best(
        self, query: Search, wanted: int, allowed: BoolArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return rows of the index and scores, at least `wanted` per query."""
        found = self._index.search_tables(
            query.tables, wanted + min(query.ties, 1), allowed=allowed
        )
        rows, scores = found.ids, found.scores
        tied = (rows[:, wanted:] >= 0).any(axis=1) & (scores[:, wanted - 1] == scores[:, -1])
        if not tied.any():
            return rows, scores
        wider = ((0, 0), (0, query.ties - 1))
        rows = np.pad(rows, wider, constant_values=-1)
        scores = np.pad(scores, wider, constant_values=-np.inf)
        more = self._index.search_tables(query.tables[tied], wanted + query.ties, allowed=allowed)
        rows[tied], scores[tied] = more.ids, more.scores
        return rows, scores

    def labels_of(self, where: str | None, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the distinct labels, sorted, of the rows that pass a filter as in `Search`."""
        names, label_of = self._labels
        allowed = self._allowed(where, labels)[0]
        found = np.unique(label_of if allowed is None else label_of[allowed])
        return tuple(names[number] for number in found.tolist() if number >= 0)

    def facts(self) -> ShardFacts:
        """Count labels and codewords."""
        return self._facts

    def label_codewords(self) -> LabelCodewords:
        """Count the codewords of every label."""
        names, label_of = self._labels
        size = self._index.codebooks.codebook_size
        counts = count_codewords(self._index.codes(), label_of.astype(np.int64), size)
        return LabelCodewords(names, counts)

    @cached_property
    def _facts(self) -> ShardFacts:
        names, label_of = self._labels
        counts = np.bincount(label_of + 1, minlength=len(names) + 1)[1:]
        size, columns = self._index.codebooks.codebook_size, self._index.codes().T
        usage = np.stack([np.bincount(column, minlength=size) for column in columns])
        return ShardFacts(names, counts, usage.astype(np.int64))

    @cached_property
    def _labels(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        return part_labels(self._part)

    def candidates(self, column: str, text: str) -> Located:
        """Return the rows, ascending, with a text in the column "id" or "uri".

        A few may have another text of the same hash.
        """
        if not self._prepared:
            return self._located(self._part.positions_of(column, text))
        with self._lock:
            if column not in self._text_indexes:
                self._text_indexes[column] = TextIndex(self._part, column)
        return self._located(self._text_indexes[column].candidates(text))

    def locate(self, places: IntArray) -> Located:
        """Return the offsets in the store of (n,) places of this shard."""
        return self._located(places - self.first)

    def word_rows(self, codebook: int, word: int, ranks: IntArray) -> Located:
        """Return the rows at the positions `ranks` (n,) among those with a codeword."""
        rows = np.flatnonzero(self._index.codes()[:, codebook] == word)
        return self._located(rows[ranks].astype(np.int64))

    def memory_bytes(self) -> int:
        """Return the memory of index, texts, labels and row numbers, without cached filters."""
        offsets = 0 if self._part.offsets is None else self._part.offsets.nbytes
        labels = self._labels[1].nbytes if "_labels" in vars(self) else 0
        texts = sum(index.memory_bytes() for index in self._text_indexes.values())
        return int(self._index.memory_bytes() + self._part.rows.nbytes + offsets + labels + texts)

    def _located(self, rows: IntArray) -> Located:
        """Return places and offsets of rows of the index; -1 stays -1."""
        places = np.where(rows >= 0, rows + self.first, -1)
        offsets = self._part.offsets
        if offsets is None or not len(offsets):
            return Located(places, places)
        return Located(places, np.where(rows >= 0, offsets[rows], -1))

    def _allowed(self, where: str | None, labels: tuple[str, ...]) -> tuple[BoolArray | None, int]:
        """Return (rows,) bool, None if every row passes, and how many do."""
        if where is None and not labels:
            return None, len(self)
        return self._masks.get((where, frozenset(labels)), lambda: self._masked(where, labels))

    def _masked(self, where: str | None, labels: tuple[str, ...]) -> tuple[BoolArray, int]:
        mask = np.ones(len(self), np.bool_) if where is None else self._part.mask_where(where)
        if labels:
            names, label_of = self._labels
            numbers = [number for number, name in enumerate(names) if name in set(labels)]
            mask &= np.isin(label_of, np.asarray(numbers, np.int32))
        return mask, int(np.count_nonzero(mask))


class TextIndex:
    """Finds rows of a part by a text column, in 12 bytes per row."""

    def __init__(self, part: StoredPart, column: str) -> None:
        # Hashes of texts differ from process to process, and never leave this one.
        hashes = np.empty(len(part.rows), np.int64)
        for places, texts in part.texts(column):
            hashes[places] = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._order = order.astype(np.uint32 if len(order) <= 1 << 32 else np.int64)

    def candidates(self, text: str) -> IntArray:
        """Return the positions in the part, ascending, that may have `text`."""
        wanted = np.int64(hash(text))
        first, last = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
        return self._order[first:last].astype(np.int64)

    def memory_bytes(self) -> int:
        """Return the memory of hashes and order."""
        return int(self._hashes.nbytes + self._order.nbytes)


def part_labels(part: StoredPart) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the distinct labels of a part, sorted, and the number (n,) of each row's, or -1."""
    numbers: dict[str | None, int] = {None: -1}
    label_of = np.empty(len(part.rows), np.int32)
    for places, texts in part.texts("label"):
        label_of[places] = [numbers.setdefault(text, len(numbers) - 1) for text in texts]
    names = [name for name in numbers if name is not None]
    order = sorted(range(len(names)), key=names.__getitem__)
    # The last entry is for -1.
    final = np.full(len(names) + 1, -1, np.int32)
    final[order] = np.arange(len(names), dtype=np.int32)
    return tuple(names[number] for number in order), final[label_of]


class Parts(Protocol):
    """All shards, at one version of the gallery."""

    @property
    def edges(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the places from entry s up to entry s + 1."""

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Send requests to some shards; returns the answers by shard.

        A shard on another machine that does not answer in time is a `Refused` with 503.
        """

    def memory_bytes(self) -> int:
        """Return the memory of the shards in this process."""


class Shards(Protocol):
    """All shards, at any version."""

    @property
    def remote(self) -> bool:
        """Whether requests wait for other processes."""

    def open(self, store: GalleryStore, codebooks: Codebooks) -> Parts:
        """Load the shards at the version of a store."""

    def report_to(self, events: ShardEvents) -> None:
        """Call `events` from now on."""

    def missing(self) -> list[int]:
        """Return the shards that do not answer."""


class LocalParts:
    """Shards in this process, in their order."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards
        self.edges = part_bounds(shards[0].total, len(shards))

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Send requests to some shards; returns the answers by shard."""
        return {number: request.run(self._shards[number]) for number, request in requests.items()}

    def memory_bytes(self) -> int:
        """Return the memory of all shards."""
        return sum(shard.memory_bytes() for shard in self._shards)


class LocalShards:
    """Opens `count` shards in this process, prepared on demand (`Shard.prepare`)."""

    remote = False

    def __init__(self, count: int = 1, *, prepare: bool = False) -> None:
        self._count = count
        self._prepare = prepare

    def open(self, store: GalleryStore, codebooks: Codebooks) -> LocalParts:
        """Load the shards at the version of a store."""
        shards = [Shard(store, codebooks, number, self._count) for number in range(self._count)]
        for shard in shards if self._prepare else ():
            shard.prepare()
        return LocalParts(shards)

    def report_to(self, events: ShardEvents) -> None:
        """Do nothing: there are no events."""

    def missing(self) -> list[int]:
        """Return none."""
        return []


def merge_ranked(parts: Sequence[Ranked], wanted: int) -> Ranked:
    """Merge the best `wanted` rows of each shard, given in the order of the shards.

    The result is exactly that of one index over all rows: every row of the answer is among the best
    of its own shard, and a stable sort keeps ties in the order of insertion. Ties are complete too,
    since the last wanted row of a shard is no better than that of all shards.
    """
    if len(parts) == 1:
        return parts[0]
    columns = [
        np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("places", "offsets", "scores")
    ]
    order = np.argsort(-columns[-1], axis=1, kind="stable")[:, :wanted]
    places, offsets, scores = (np.take_along_axis(each, order, axis=1) for each in columns)
    return Ranked(places, offsets, scores, total=sum(part.total for part in parts))
