"""The codes of a gallery in memory: searched exactly, and kept in step with what is written.

Queries (Q, D) in, row numbers of the store and scores out. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray
from phpq.gallery.fragments import WriteFragments, write_here
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore, Written
from phpq.index import CodeIndex, SearchResult


class LiveCodes:
    """An index over the version that a store reads.

    Args:
        store: The gallery on disk; changes that are made through this object appear at once.
        codebooks: The codebooks of its codes.
    """

    def __init__(self, store: GalleryStore, codebooks: Codebooks) -> None:
        self._store = store
        self._codebooks = codebooks
        self._version = -1  # that the index holds
        self._index = CodeIndex(codebooks)
        self._rows: IntArray = np.empty(0, np.int64)  # row of the store by row of the index
        self._filter: tuple[str, NDArray[np.bool_]] | None = None  # of this version

    def put(self, records: Sequence[Record], *, write: WriteFragments = write_here) -> Written:
        """Write records to the store, see `GalleryStore.put`, and index them."""
        written = self._store.put(records, write=write)
        # Another process may give a number again that it has seen deleted.
        above = not len(self._rows) or not len(records) or written.rows[0] > self._rows[-1]
        if written.before == self._version and not above:
            self._version = -1
        if written.before == self._version:  # otherwise the next search reads all anew
            self._index.remove(np.searchsorted(self._rows, written.replaced))
            if records:
                self._index.add(np.stack([record.code for record in records]))
            self._rows = np.concatenate([self._rows, written.rows])
            self._step()
        return written

    def delete(self, ids: Sequence[str] | None = None, *, where: str | None = None) -> int:
        """Delete images from the store, see `GalleryStore.delete`; returns how many went."""
        rows, before = self._store.delete(ids, where=where)
        if before == self._version:
            self._index.remove(np.searchsorted(self._rows, rows))
            self._step()
        return len(rows)

    def search(
        self, queries: FloatArray, top_k: int = 10, *, where: str | None = None
    ) -> SearchResult:
        """Return the best rows of the store that fulfil `where`, ties in order of insertion.

        Args:
            queries: (Q, D) float.
            top_k: Rows a query, at least 1.
            where: A Lance SQL expression; None allows all rows.

        Returns:
            Rows of the store and scores; -1 and -inf where there are fewer.
        """
        self._load()
        allowed = None if where is None else self._allowed(where)
        norm = self._store.manifest.query_norm
        found = self._index.search(queries, top_k, query_norm=norm, allowed=allowed)
        if not len(self._rows):
            return found
        ids = np.where(found.ids >= 0, self._rows[found.ids], -1)
        return SearchResult(ids=ids, scores=found.scores)

    def codes(self) -> CodeArray:
        """Return the (N, M) codes in the order of insertion."""
        return self._store.read_codes().codes

    def memory_bytes(self) -> int:
        """Return the memory of index and row numbers."""
        self._load()
        return int(self._index.memory_bytes() + self._rows.nbytes)

    def _step(self) -> None:
        """Follow a change of our own, unless most of the index is deleted rows by now."""
        self._filter = None
        mostly_dead = self._index.rows > 1024 and len(self._index) < self._index.rows // 2
        self._version = -1 if mostly_dead else self._store.version

    def _load(self) -> None:
        if self._version != self._store.version:
            stored = self._store.read_codes()
            self._index = CodeIndex(self._codebooks, stored.codes)
            self._rows, self._filter = stored.rows, None
            self._version = self._store.version

    def _allowed(self, where: str) -> NDArray[np.bool_]:
        """Return (rows of the index,) bool; the last answer is kept."""
        if self._filter is None or self._filter[0] != where:
            wanted = self._store.rows_where(where)
            allowed = np.zeros(self._index.rows, np.bool_)
            allowed[np.searchsorted(self._rows, wanted)] = True
            self._filter = (where, allowed)
        return self._filter[1]
