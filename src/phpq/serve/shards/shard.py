"""One shard: a range of the rows of one version, frozen; searched, filtered and named.

Nothing in a shard changes once it is made, so that any number of threads may ask it. A row costs
the index (at most 1.5 M + 7 bytes) and 24 bytes more: its number, its label and the hash of its id.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, IntArray
from phpq.gallery.part import read_part
from phpq.gallery.store import GalleryStore
from phpq.index import CodeIndex
from phpq.serve.shards.names import Names, number_labels
from phpq.serve.shards.requests import Hits, Located, Search, ShardFacts

BoolArray = NDArray[np.bool_]
_MASKS = 16  # filters whose answers are kept, one byte a row each


class Shard:
    """A part of a gallery at one version.

    Args:
        store: The gallery; it is never refreshed.
        codebooks: Of its model.
        number: Of the shard, from 0.
        shards: How many there are.

    Attributes:
        first: The place of its first row in the order of insertion.
        total: Rows of the whole gallery.
        facts: What is known without asking for single rows.
    """

    def __init__(
        self, store: GalleryStore, codebooks: Codebooks, number: int = 0, shards: int = 1
    ) -> None:
        part = read_part(store, number, shards)
        self.first, self.total = part.first, part.total
        self._index = CodeIndex(codebooks, part.codes)
        size = codebooks.codebook_size
        usage = [np.bincount(column, minlength=size) for column in part.codes.T]
        part = replace(part, codes=part.codes[:0].copy())  # the index holds them
        self._part = part
        self._ids = Names(part, "id")
        self._uris: Names | None = None  # made when first asked for
        names, self._label_of = number_labels(part)
        counts = np.bincount(self._label_of + 1, minlength=len(names) + 1)[1:]
        self.facts = ShardFacts(len(part.rows), names, counts, np.stack(usage).astype(np.int64))
        self._masks: OrderedDict[str, BoolArray] = OrderedDict()
        self._lock = threading.Lock()
        # What is compiled on first use is compiled before the first request.
        table = np.zeros((codebooks.num_codebooks, size), np.float32)
        self.search(Search(table, 1))

    def __len__(self) -> int:
        return len(self._part.rows)

    def search(self, query: Search) -> Hits:
        """Return the best rows, ties in order of insertion."""
        allowed = self._allowed(query)
        total = len(self) if allowed is None else int(np.count_nonzero(allowed))
        left_out = -1 if query.leave_out is None else query.leave_out - self.first
        has_left_out = 0 <= left_out < len(self)
        if has_left_out and (allowed is None or allowed[left_out]):
            total -= 1
        wanted = query.wanted + has_left_out
        found = self._index.search_tables(query.table[None], wanted, allowed=allowed, threads=1)
        rows, scores = found.ids[0], found.scores[0]
        inside = (rows >= 0) & (rows != left_out) if has_left_out else rows >= 0
        rows, scores = rows[inside][: query.wanted], scores[inside][: query.wanted]
        located = self._located(rows)
        return Hits(located.places, located.offsets, scores, total)

    def candidates(self, column: str, text: str) -> Located:
        """Return the rows, ascending, that may hold a text in the column "id" or "uri"."""
        if column == "id":
            return self._located(self._ids.candidates(text))
        with self._lock:
            if self._uris is None:
                self._uris = Names(self._part, "uri")
        return self._located(self._uris.candidates(text))

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
        own = self._part.rows.nbytes + offsets + self._label_of.nbytes + self._ids.memory_bytes()
        return int(self._index.memory_bytes() + own)

    def _located(self, rows: IntArray) -> Located:
        places = rows + self.first
        offsets = self._part.offsets
        return Located(places, places if offsets is None else offsets[rows])

    def _allowed(self, query: Search) -> BoolArray | None:
        """Return (rows,) bool; None if every row passes."""
        masks = []
        if query.where is not None:
            masks.append(self._where(query.where))
        if query.labels:
            names, wanted = self.facts.label_names, set(query.labels)
            numbers = [number for number, name in enumerate(names) if name in wanted]
            masks.append(np.isin(self._label_of, np.asarray(numbers, np.int32)))
        if not masks:
            return None
        return masks[0] if len(masks) == 1 else masks[0] & masks[1]

    def _where(self, where: str) -> BoolArray:
        with self._lock:
            mask = self._masks.get(where)
            if mask is not None:
                self._masks.move_to_end(where)
                return mask
        mask = np.zeros(len(self), np.bool_)
        mask[self._part.positions_where(where)] = True
        with self._lock:
            self._masks[where] = mask
            while len(self._masks) > _MASKS:
                self._masks.popitem(last=False)
        return mask
