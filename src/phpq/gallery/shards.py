"""Shards of a gallery: each searches a range of its rows, and whoever asks puts answers together.

A shard knows nothing of servers: here are the interface that a view asks, and shards in this
process. Rows are told apart by their places in the order of insertion.
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
# Told what happens, "retries", "restarts" or "failures", and to which shard.
ShardEvents = Callable[[str, int], None]
_MASKS = 16  # filters whose answers are kept, one byte per row each


class Recent:
    """Keeps the `most` answers that were asked for last; for any number of threads."""

    def __init__(self, most: int) -> None:
        self._kept: LRUCache[object, Any] = LRUCache(most)
        self._lock = threading.Lock()

    def get(self, key: object, make: Callable[[], T]) -> T:
        """Return what `make` made for this key before, or makes now."""
        with self._lock:
            if key in self._kept:
                kept: T = self._kept[key]
                return kept
        made = make()
        with self._lock:
            self._kept[key] = made
        return made


class Request(NamedTuple):
    """What a shard is asked: the name of one of its methods, and the arguments. It can travel."""

    method: str
    arguments: tuple[Any, ...] = ()

    def run(self, shard: Shard) -> Any:
        """Return the answer."""
        return getattr(shard, self.method)(*self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Which rows are wanted."""

    # (Q, M, K) float32. Made once for all shards: made anew, they might round otherwise.
    tables: FloatArray
    wanted: int  # per query
    where: str | None = None  # a Lance SQL expression
    labels: tuple[str, ...] = ()  # only these; all if there are none
    leave_out: tuple[int, ...] = ()  # the places of rows that are not to be found
    ties: int = 0  # further rows that are wanted, at most, where they tie with the last one


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Some rows."""

    places: IntArray  # (n,) int64 in the order of insertion of the whole gallery
    offsets: IntArray  # (n,) int64, where a scan of the store meets them


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The best rows of one shard, or of all, for Q queries."""

    places: IntArray  # (Q, n) as in `Located`, best first, ties ascending; -1 where there are fewer
    offsets: IntArray  # (Q, n) as in `Located`
    scores: FloatArray  # (Q, n) float32; -inf where there are fewer
    total: int  # rows that pass the filter


@dataclass(frozen=True, slots=True, eq=False)
class ShardFacts:
    """What is known of a shard without asking for single rows."""

    label_names: tuple[str, ...]  # distinct ones, sorted
    label_counts: IntArray  # (labels,) int64, their rows
    usage: IntArray  # (M, K) int64, the rows of every codeword


class LabelCodewords(NamedTuple):
    """How often images of each label have each codeword."""

    label_names: tuple[str, ...]  # distinct ones, sorted
    counts: CodewordCounts  # by the places of these labels


class Shard:
    """One of the `shards` parts of a gallery, from 0, at the version of a store.

    Nothing in it changes, so that any number of threads may ask it. A row costs the index (at most
    1.5 M + 7 bytes) and its number, 8 bytes; 16 more in a prepared shard. `first` is the place of
    its first row, `total` the rows of the whole gallery.
    """

    def __init__(
        self, store: GalleryStore, codebooks: Codebooks, number: int = 0, shards: int = 1
    ) -> None:
        self._part = find_part(store, number, shards)
        self.first, self.total = self._part.first, self._part.total
        self._index = CodeIndex(codebooks, self._part.codes())
        self._names: dict[str, Names] = {}
        self._prepared = False
        self._masks = Recent(_MASKS)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._part.rows)

    def prepare(self) -> None:
        """Do before the first request what would slow it down, and keep what ids are found by."""
        self._prepared = True
        self.facts()
        self.candidates("id", "")
        if len(self) > FEW_ROWS:
            self._index.build()
        books = self._index.codebooks
        self.search(Search(np.zeros((1, books.num_codebooks, books.codebook_size), np.float32), 1))

    def search(self, query: Search) -> Ranked:
        """Return the best rows of every query, ties in order of insertion.

        With `ties` there are more columns than wanted; behind the wanted ones only those rows count
        that tie with the last of these.
        """
        allowed, total = self._allowed(query.where, query.labels)
        left_out = np.unique(np.array(query.leave_out, np.int64) - self.first)
        left_out = left_out[(left_out >= 0) & (left_out < len(self))]
        total -= len(left_out) if allowed is None else int(allowed[left_out].sum())
        rows, scores = self._best(query, query.wanted + len(left_out), allowed)
        if len(left_out):  # put them behind all others, and cut them or fillers off
            found = np.isin(rows, left_out)
            order = np.argsort(found, axis=1, kind="stable")[:, : -len(left_out)]
            rows = np.take_along_axis(rows, order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
        located = self._located(rows)
        return Ranked(located.places, located.offsets, scores, total)

    def _best(
        self, query: Search, wanted: int, allowed: BoolArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return rows of the index and scores, at least `wanted` of each query."""
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
        """Return the rows, ascending, that hold a text in the column "id" or "uri".

        A few may hold another text of the same hash.
        """
        if not self._prepared:
            return self._located(self._part.positions_of(column, text))
        with self._lock:
            if column not in self._names:
                self._names[column] = Names(self._part, column)
        return self._located(self._names[column].candidates(text))

    def locate(self, places: IntArray) -> Located:
        """Say where (n,) places of this shard are in the store."""
        return self._located(places - self.first)

    def word_rows(self, codebook: int, word: int, ranks: IntArray) -> Located:
        """Return the rows that stand at `ranks` (n,) among those behind a codeword."""
        rows = np.flatnonzero(self._index.codes()[:, codebook] == word)
        return self._located(rows[ranks].astype(np.int64))

    def memory_bytes(self) -> int:
        """Return the memory of index, names, labels and row numbers; kept filters come on top."""
        offsets = 0 if self._part.offsets is None else self._part.offsets.nbytes
        labels = self._labels[1].nbytes if "_labels" in vars(self) else 0
        names = sum(names.memory_bytes() for names in self._names.values())
        return int(self._index.memory_bytes() + self._part.rows.nbytes + offsets + labels + names)

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


class Names:
    """Finds rows of a part by a text column: 12 bytes per row, whatever the length of the texts."""

    def __init__(self, part: StoredPart, column: str) -> None:
        # The hash differs from process to process, and nothing of it leaves this one.
        hashes = np.empty(len(part.rows), np.int64)
        for places, texts in part.texts(column):
            hashes[places] = np.fromiter((hash(text) for text in texts), np.int64, len(texts))
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._order = order.astype(np.uint32 if len(order) <= 1 << 32 else np.int64)

    def candidates(self, text: str) -> IntArray:
        """Return the positions in the part, ascending, that may hold `text`."""
        wanted = np.int64(hash(text))
        first, last = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
        return self._order[first:last].astype(np.int64)

    def memory_bytes(self) -> int:
        """Return the memory of hashes and order."""
        return int(self._hashes.nbytes + self._order.nbytes)


def part_labels(part: StoredPart) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Return the distinct labels of a part, sorted, and (n,) int32 their numbers, -1 for none."""
    numbers: dict[str | None, int] = {None: -1}
    label_of = np.empty(len(part.rows), np.int32)
    for places, texts in part.texts("label"):
        label_of[places] = [numbers.setdefault(text, len(numbers) - 1) for text in texts]
    names = [name for name in numbers if name is not None]
    order = sorted(range(len(names)), key=names.__getitem__)
    # One more entry, the last, for -1.
    final = np.full(len(names) + 1, -1, np.int32)
    final[order] = np.arange(len(names), dtype=np.int32)
    return tuple(names[number] for number in order), final[label_of]


class Parts(Protocol):
    """All shards, at one version of the gallery."""

    @property
    def edges(self) -> IntArray:
        """(shards + 1,) int64: shard s holds the places from entry s up to entry s + 1."""

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask some shards, each its own request; returns the answers by shard.

        A shard on another machine that does not answer in time is a `Refused` with 503.
        """

    def memory_bytes(self) -> int:
        """Return the memory that the shards take in this process."""


class Shards(Protocol):
    """All shards, at any version."""

    @property
    def remote(self) -> bool:
        """Whether to ask is to wait for other processes."""

    def open(self, store: GalleryStore, codebooks: Codebooks) -> Parts:
        """Return the shards at the version of a store, loaded."""

    def report_to(self, events: ShardEvents) -> None:
        """Tell `events` from now on."""

    def missing(self) -> list[int]:
        """Return the shards that do not answer."""


class LocalParts:
    """Shards in this process, in their order."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards
        self.edges = part_bounds(shards[0].total, len(shards))

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        """Ask some shards, each its own request; returns the answers by shard."""
        return {number: asked.run(self._shards[number]) for number, asked in requests.items()}

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
        """Nothing ever happens to them."""

    def missing(self) -> list[int]:
        """Return none: they are where the caller is."""
        return []


def merge_ranked(parts: Sequence[Ranked], wanted: int) -> Ranked:
    """Put the best rows of shards together.

    Every row of the answer is among the best of its own shard, so that nothing is lost; and shards
    are ranges of the order of insertion, so that a stable sort leaves ties in that order. Takes the
    best `wanted` rows of each shard, in the order of the shards, and returns bit for bit what one
    index over all rows returns. A shard that was asked for ties, too, gives all that may be needed:
    its last wanted row is no better than that of all shards.
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
