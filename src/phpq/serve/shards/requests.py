"""What a shard is asked, and what it answers: small frozen objects that travel between processes.

A request knows how to run on a shard, so that nothing in between has to know the requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from phpq.codes import FloatArray, IntArray

if TYPE_CHECKING:
    from phpq.serve.shards.shard import Shard

T_co = TypeVar("T_co", covariant=True)


class Request(Protocol[T_co]):
    """Something to be asked of a shard."""

    def run(self, shard: Shard) -> T_co:
        """Return the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The best rows of one shard, or of all.

    Attributes:
        places: (n,) int64 in the order of insertion of the whole gallery, best first, ties
            ascending.
        offsets: (n,) int64, where a scan of the store meets them.
        scores: (n,) float32.
        total: Rows that pass the filter.
    """

    places: IntArray
    offsets: IntArray
    scores: FloatArray
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Some rows.

    Attributes:
        places: (n,) int64 in the order of insertion of the whole gallery.
        offsets: (n,) int64, where a scan of the store meets them.
    """

    places: IntArray
    offsets: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class ShardFacts:
    """What is known of a shard without asking for single rows.

    Attributes:
        rows: How many it has.
        label_names: Its distinct labels, sorted.
        label_counts: (labels,) int64, their rows.
        usage: (M, K) int64, the rows of every codeword.
    """

    rows: int
    label_names: tuple[str, ...]
    label_counts: IntArray
    usage: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Describe:
    """Asks for the facts."""

    def run(self, shard: Shard) -> ShardFacts:
        """Return the answer."""
        return shard.facts


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Asks for the best rows.

    Attributes:
        table: (M, K) float32. Made once for all shards: made anew, it might round otherwise.
        wanted: How many.
        where: A checked filter.
        labels: Only these; all if there are none.
        leave_out: The place of a row that is not to be found.
    """

    table: FloatArray
    wanted: int
    where: str | None = None
    labels: tuple[str, ...] = ()
    leave_out: int | None = None

    def run(self, shard: Shard) -> Hits:
        """Return the answer."""
        return shard.search(self)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Asks for the rows that may hold a text in a column, "id" or "uri"."""

    column: str
    text: str

    def run(self, shard: Shard) -> Located:
        """Return the answer; a few rows may hold another text of the same hash."""
        return shard.candidates(self.column, self.text)


@dataclass(frozen=True, slots=True, eq=False)
class Locate:
    """Asks where rows are in the store: (n,) int64 places of this shard."""

    places: IntArray

    def run(self, shard: Shard) -> Located:
        """Return the answer."""
        return shard.locate(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class WordRows:
    """Asks for rows behind a codeword.

    Attributes:
        codebook: From 0.
        word: From 0.
        ranks: (n,) int64: which of them, counted in this shard from 0.
    """

    codebook: int
    word: int
    ranks: IntArray

    def run(self, shard: Shard) -> Located:
        """Return the answer."""
        return shard.word_rows(self.codebook, self.word, self.ranks)
