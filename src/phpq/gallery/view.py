"""One version of a gallery, frozen: the one reader of the library, the commands and the server.

Nothing in a view changes once it is made, so that any number of threads may search it and each sees
one state from its first to its last hit. Shards hold what a row costs; records are read when they
are shown. No torch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypedDict

import numpy as np
from cachetools import LRUCache

from phpq.additive import AdditiveCodebooks
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, check_embeddings
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery.folder import damage_named
from phpq.gallery.records import Record, code_matrix
from phpq.gallery.shards import (
    LocalShards,
    Located,
    Ranked,
    Recent,
    Request,
    Search,
    ShardFacts,
    Shards,
    merge_ranked,
)
from phpq.gallery.store import GalleryStore
from phpq.gallery.verdicts import NOTHING, Knows, Told, code_kinds_of, tell
from phpq.hits import WRONG_AT_MOST, Found, Hit
from phpq.index.ties import TIE_ROWS, Block, batched_blocks, float_scores, page_ties

_READ_ROWS = 8192  # records that are read at once
_KEPT = 8  # answers that are kept, such as the map
_KNOWN = 50_000  # ids whose places are kept, about 200 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which hits are wanted."""

    top_k: int = 10  # at least 1
    offset: int = 0  # how many better ones are left out
    where: str | None = None  # Lance SQL over id, uri, label and metadata: "year > 2020"
    labels: tuple[str, ...] = ()  # only these; all if there are none
    rerank: int = 0  # > 0: order the first `rerank` hits by their float embeddings
    # Share of wrong names that is accepted, 0 to 1; None: no probabilities.
    wrong_at_most: float | None = WRONG_AT_MOST


class PageOptions(TypedDict, total=False):
    """What `Gallery.search` takes by name; see `Page`."""

    where: str | None
    rerank: int
    offset: int
    wrong_at_most: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """What the map and the codebook browser show of an image; `code` is (M,) uint8."""

    id: str
    label: str | None
    code: CodeArray


class GalleryView:
    """A gallery as it was at the version of a store, which is neither written with nor refreshed.

    `shards` hold the codes and search them; by default one, in this process. `codebooks` are those
    of the model; a gallery that owns its codebooks is read with its own. `model` is what made the
    codes, for whoever asks by image: no other may embed what is searched here.
    """

    def __init__(
        self,
        store: GalleryStore,
        codebooks: Codebooks,
        shards: Shards | None = None,
        model: Any = None,
    ) -> None:
        self.store = store
        self.model = model
        self.codebooks = store.codebooks(codebooks)
        self._parts = (shards or LocalShards()).open(store, self.codebooks)
        self._edges = self._parts.edges
        self._known: LRUCache[str, tuple[int, int]] = LRUCache(_KNOWN)  # place and offset by id
        self.remember = Recent(_KEPT).get  # what was made for a key before, or is made now
        self._passing = Recent(_KEPT)  # classes of the images that pass a filter
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._edges[-1])

    @property
    def version(self) -> int:
        """Of the gallery on disk."""
        return self.store.version

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a stranger's filter may name, with their types."""
        schema = self.store.schema
        names = ("id", "label", *self.store.metadata_columns)
        return {name: str(schema.field(name).type) for name in names}

    @cached_property
    def label_counts(self) -> dict[str, int]:
        """The images of every label, labels sorted."""
        counts: Counter[str] = Counter()
        for facts in self._facts:
            counts.update(dict(zip(facts.label_names, facts.label_counts.tolist(), strict=True)))
        return dict(sorted(counts.items()))

    @cached_property
    def usage(self) -> IntArray:
        """(M, K) int64, the images of every codeword."""
        total: IntArray = np.sum([facts.usage for facts in self._facts], axis=0)
        return total

    @cached_property
    def _facts(self) -> list[ShardFacts]:
        return self._ask_all(Request("facts"))

    @cached_property
    def knows(self) -> Knows | None:
        """What scores the kinds of the gallery; None where it knows none."""
        books = self.codebooks
        if isinstance(books, AdditiveCodebooks):
            return books if books.class_names else None
        words = partial(self._ask_all, Request("kind_words"))
        return code_kinds_of(self.store, books, lambda: self.label_counts, words)

    def embed(self, images: Any) -> FloatArray:
        """Embed images with the model that made the codes: (n, D) float32."""
        vectors: FloatArray = self.model.embed(images, space=self.store.manifest.space)
        return vectors

    def prepare(self) -> None:
        """Count labels and codewords now, not at the first request."""
        _ = self.label_counts, self.usage, self.knows

    def memory_bytes(self) -> int:
        """Return what codes, index, row numbers and names take in this process."""
        return self._parts.memory_bytes()

    def find(self, id: str) -> tuple[int, Record]:
        """Return an image and its place in the order of insertion; raises `UnknownNameError`."""
        with self._lock:
            known = self._known.get(id)
        if known is not None:
            return known[0], self.store.take(np.array([known[1]]))[0]
        for place, record in self._holding("id", id):
            if record.id == id:
                return place, record
        raise self.store.unknown(id)

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
        return self.store.take(self._offsets(np.array([place])))[0]

    def glances(self, places: IntArray) -> list[Glance]:
        """Return id, label and code of the images at (n,) places, and read nothing else."""
        return self._glances(self._offsets(places))

    def word_images(self, codebook: int, word: int, limit: int) -> tuple[list[Glance], int]:
        """Return at most `limit` >= 1 images behind a codeword, and how many there are.

        Of more they are taken at equal steps: galleries are filled class by class, and the first
        ones would all be of one class.
        """
        edges = np.cumsum([0, *(int(facts.usage[codebook, word]) for facts in self._facts)])
        total = int(edges[-1])
        ranks = np.arange(min(limit, total), dtype=np.int64) * total // max(1, min(limit, total))
        found = self._parts.ask(
            {
                shard: Request("word_rows", (codebook, word, ranks[inside] - edges[shard]))
                for shard, inside in _by_shard(ranks, edges)
            }
        )
        offsets = [np.empty(0, np.int64), *(found[shard].offsets for shard in sorted(found))]
        return self._glances(np.concatenate(offsets)), total

    def query_of(self, record: Record) -> FloatArray:
        """Return what an image is compared by, (D,) float32: its embedding if kept, or its code."""
        kept = record.embedding
        vector = self.codebooks.decode(record.code[None])[0] if kept is None else kept
        query: FloatArray = vector.astype(np.float32, copy=False)
        return query

    def search(self, query: FloatArray, page: Page, *, leave_out: tuple[int, ...] = ()) -> Found:
        """Find the images most like a query (D,).

        `leave_out` are the places of images that it was made of, if it was.
        """
        return self.search_many(query[None], page, leave_out=leave_out)[0]

    def search_many(
        self, queries: FloatArray, page: Page, *, leave_out: tuple[int, ...] = ()
    ) -> list[Found]:
        """Do as `search` for each of (Q, D) queries; they share the work and the cores."""
        self._check(page)
        queries = check_embeddings("queries", queries, self.codebooks.embedding_dim)
        norm = self.store.manifest.query_norm
        tables = self.codebooks.lookup_tables(queries, norm=norm)
        wanted = max(page.rerank, page.offset + page.top_k)
        kept = self.store.manifest.keep_embeddings
        ties = TIE_ROWS - 1 if kept else 0
        asked = Search(tables, wanted, page.where, page.labels, leave_out, ties)
        ranked = merge_ranked(self._ask_all(Request("search", (asked,))), wanted + ties)
        limits = self.codebooks.best(tables)
        shown = slice(page.offset, page.offset + page.top_k)
        if kept:
            # What is re-ranked is put in order below; here, only what is among it.
            last = slice(page.rerank - 1, page.rerank) if page.rerank else shown
            counts = (ranked.places >= 0).sum(axis=1).tolist()
            ranked = self._by_floats(queries, ranked, page_ties(ranked.scores, counts, last))
        if page.rerank:
            first = (ranked.places[:, : page.rerank] >= 0).sum(axis=1).tolist()
            every = [(query, slice(0, count)) for query, count in enumerate(first)]
            ranked = self._by_floats(queries, ranked, every, rescore=True)
            limits = self.codebooks.best_float(self.codebooks.vectors(queries, norm=norm))
        told = self._told(queries, page, itself=bool(leave_out))
        answers = []
        for number, records in enumerate(self._read(ranked, shown)):
            scores, best = ranked.scores[number, shown], float(limits[number])
            said = told[number]
            hits = _hits(records, scores.tolist(), best, said, first_rank=page.offset + 1)
            answers.append(Found(hits, ranked.total, best, said.kinds, said.known, said.sure))
        return answers

    def _by_floats(
        self,
        queries: FloatArray,
        ranked: Ranked,
        blocks: Sequence[Block],
        *,
        rescore: bool = False,
    ) -> Ranked:
        """Order some blocks of answers, (query, columns), by float scores; equal ones stay.

        The scores stay where they are, too, unless `rescore` puts the float scores there.
        """
        if not blocks:
            return ranked
        places, offsets, scores = ranked.places.copy(), ranked.offsets.copy(), ranked.scores.copy()
        norm = self.store.manifest.query_norm
        for part in batched_blocks(blocks, _READ_ROWS):
            read = np.concatenate([ranked.offsets[query, columns] for query, columns in part])
            rows, end = self.store.embeddings_at(read), 0
            for query, columns in part:
                start, end = end, end + columns.stop - columns.start
                found = float_scores(queries[query], rows[start:end], self.codebooks, norm=norm)
                order = np.argsort(-found, kind="stable")
                for each in (places, offsets):
                    each[query, columns] = each[query, columns][order]
                if rescore:
                    scores[query, columns] = found[order]
        return Ranked(places, offsets, scores, ranked.total)

    def _told(self, queries: FloatArray, page: Page, *, itself: bool) -> list[Told]:
        """Say what each query shows, among the classes of the images that pass the filter.

        `itself`: it is made of images of the gallery, which its classes are made of: how likely
        that is right, they do not know.
        """
        if (books := self.knows) is None:
            return [NOTHING] * len(queries)
        names = books.class_names

        def find() -> IntArray:
            asked = Request("labels_of", (page.where, page.labels))
            there = {name for labels in self._ask_all(asked) for name in labels}
            return np.array([place for place, name in enumerate(names) if name in there], np.int64)

        passing = self._passing.get((page.where, page.labels), find)
        return tell(books, queries, passing, None if itself else page.wrong_at_most)

    def _read(self, ranked: Ranked, columns: slice) -> Iterator[list[Record]]:
        """Yield the images of some columns for each query; many queries share one read."""
        step = max(1, _READ_ROWS // (columns.stop - columns.start))
        for start in range(0, len(ranked.places), step):
            places = ranked.places[start : start + step, columns]
            inside = places >= 0
            offsets = ranked.offsets[start : start + step, columns][inside]
            records = iter(self._take(Located(places[inside], offsets), embeddings=False))
            for count in inside.sum(axis=1).tolist():
                yield list(islice(records, count))

    def _check(self, page: Page) -> None:
        wanted = page.offset + page.top_k
        for name, value, least in (("top_k", page.top_k, 1), ("offset", page.offset, 0)):
            if value < least:
                raise ConfigError(f"{name}={value} is not allowed: it must be at least {least}.")
        accepted = 0 if page.wrong_at_most is None else page.wrong_at_most
        if not 0 <= accepted <= 1:  # NaN neither
            raise ConfigError(
                f"wrong_at_most={accepted} is not allowed: it is a share from 0 to 1, as "
                "in 0.05 for 5%."
            )
        if page.rerank and not self.store.manifest.keep_embeddings:
            raise ConfigError(
                f"rerank={page.rerank} needs float embeddings, and the gallery "
                f"{str(self.store.folder)!r} keeps none. Make one with keep_embeddings=True (phpq "
                "index --keep-embeddings); for a run: phpq evaluate RUN."
            )
        if page.rerank and page.rerank < wanted:
            raise ConfigError(
                f"rerank={page.rerank} is less than top_k={wanted}: re-rank at least as many as "
                "you want."
            )

    def _ask_all(self, request: Request) -> list[Any]:
        """Ask every shard the same; returns the answers in the order of the shards."""
        answers = self._parts.ask(dict.fromkeys(range(len(self._edges) - 1), request))
        return [answers[shard] for shard in sorted(answers)]

    def _holding(self, column: str, text: str) -> Iterator[tuple[int, Record]]:
        """Yield the images, in order of insertion, that may hold a text in a column."""
        for located in self._ask_all(Request("candidates", (column, text))):
            yield from zip(located.places.tolist(), self._take(located), strict=True)

    def _take(self, located: Located, *, embeddings: bool = True) -> list[Record]:
        """Read images whose places are known, and remember where they are."""
        offsets = located.offsets
        records = self.store.take(offsets, embeddings=embeddings) if len(offsets) else []
        with self._lock:
            # Who is shown a hit asks for its picture next: no shard need be asked where it is.
            for record, place, offset in zip(
                records, located.places.tolist(), located.offsets.tolist(), strict=True
            ):
                self._known[record.id] = (place, offset)
        return records

    def _offsets(self, places: IntArray) -> IntArray:
        """Return (n,) int64: where a scan of the store meets the images at (n,) places."""
        grouped = dict(_by_shard(places, self._edges))
        found = self._parts.ask(
            {shard: Request("locate", (places[inside],)) for shard, inside in grouped.items()}
        )
        offsets = np.empty(len(places), np.int64)
        for shard, inside in grouped.items():
            offsets[inside] = found[shard].offsets
        return offsets

    def _glances(self, offsets: IntArray) -> list[Glance]:
        if not len(offsets):
            return []
        with damage_named(self.store.folder):
            table = self.store.rows_at(offsets, ["id", "label", "code"])
        names, labels = (table.column(name).to_pylist() for name in ("id", "label"))
        codes = code_matrix(table.column("code"), self.codebooks.num_codebooks)
        return [Glance(*parts) for parts in zip(names, labels, codes, strict=True)]


def _hits(
    records: Sequence[Record], scores: Sequence[float], best: float, said: Told, *, first_rank: int
) -> tuple[Hit, ...]:
    # Fewer records than scores: the last scores are those of nothing.
    return tuple(
        Hit(
            rank=rank,
            id=record.id,
            score=score,
            share=min(max(score / best, 0.0), 1.0) if best > 0 else 0.0,
            label=record.label,
            uri=record.uri,
            metadata=dict(record.metadata),
            probability=said.chance(record.label),
        )
        for rank, (record, score) in enumerate(zip(records, scores, strict=False), first_rank)
    )


def _by_shard(numbers: IntArray, edges: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield the shards that hold some of (n,) numbers, and which of them: positions, ascending."""
    shard_of = np.searchsorted(edges, numbers, side="right") - 1
    for shard in np.unique(shard_of).tolist():
        yield shard, np.flatnonzero(shard_of == shard)
