"""One version of a gallery, frozen: the one reader of the library, the commands and the server.

A view never changes, so that any number of threads may search it, and all pages of an answer are
of one state. Shards hold the codes in memory; records are read when they are shown. No torch.
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
    RecentCache,
    Request,
    Search,
    ShardFacts,
    Shards,
    merge_ranked,
)
from phpq.gallery.store import GalleryStore
from phpq.gallery.verdicts import Classifier, Prediction, find_classifier, predict
from phpq.hits import WRONG_AT_MOST, Found, Hit
from phpq.index.ties import TIE_ROWS, Block, batched_blocks, float_scores, page_ties

_READ_ROWS = 8192  # records that are read at once
_MAX_CACHED = 8  # results, such as the map
_MAX_LOCATIONS = 50_000  # ids whose places are cached, about 200 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which hits are wanted."""

    top_k: int = 10  # at least 1
    offset: int = 0  # better hits that are skipped
    where: str | None = None  # Lance SQL over id, uri, label and metadata: "year > 2020"
    labels: tuple[str, ...] = ()  # only these; empty: all
    rerank: int = 0  # > 0: order the first `rerank` hits by their float embeddings
    wrong_at_most: float | None = WRONG_AT_MOST  # error rate of names; None: no probabilities


class PageOptions(TypedDict, total=False):
    """What `Gallery.search` takes by name; see `Page`."""

    where: str | None
    rerank: int
    offset: int
    wrong_at_most: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ImageSummary:
    """Id, label and code (M,) uint8 of an image, for the map and the codebook browser."""

    id: str
    label: str | None
    code: CodeArray


class GalleryView:
    """A gallery as it was at the version of a store, which is neither written with nor refreshed.

    `shards` hold and search the codes; by default one, in this process. `codebooks` are those of
    the model, and are not used by a gallery that owns its codebooks. `model` made the codes; only
    its embeddings may be searched here. Without it, queries must be embedded by the caller.
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
        self._locations: LRUCache[str, tuple[int, int]] = LRUCache(
            _MAX_LOCATIONS
        )  # place and offset by id
        self.cached = RecentCache(_MAX_CACHED).get  # results for this version, by key
        self._passing = RecentCache(_MAX_CACHED)  # classes of the images that pass a filter
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._edges[-1])

    @property
    def version(self) -> int:
        """The version of the gallery on disk."""
        return self.store.version

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a filter of a server's client may name, with their types."""
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
    def classifier(self) -> Classifier | None:
        """Scores the labels of the gallery; None without labels or without a calibration."""
        books = self.codebooks
        if isinstance(books, AdditiveCodebooks):
            return books if books.class_names else None
        codewords = partial(self._ask_all, Request("label_codewords"))
        return find_classifier(self.store, books, lambda: self.label_counts, codewords)

    def embed(self, images: Any) -> FloatArray:
        """Embed images with the model that made the codes: (n, D) float32."""
        vectors: FloatArray = self.model.embed(images, space=self.store.manifest.space)
        return vectors

    def prepare(self) -> None:
        """Count labels and codewords now instead of at the first request."""
        _ = self.label_counts, self.usage, self.classifier

    def memory_bytes(self) -> int:
        """Return the memory of codes, index, row numbers and names in this process."""
        return self._parts.memory_bytes()

    def find(self, id: str) -> tuple[int, Record]:
        """Return an image and its place in the order of insertion; raises `UnknownNameError`."""
        with self._lock:
            known = self._locations.get(id)
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

    def summaries(self, places: IntArray) -> list[ImageSummary]:
        """Return id, label and code of the images at (n,) places; nothing else is read."""
        return self._summaries(self._offsets(places))

    def word_images(self, codebook: int, word: int, limit: int) -> tuple[list[ImageSummary], int]:
        """Return at most `limit` >= 1 images of a codeword, and how many there are.

        If there are more, they are taken at equal steps: galleries are often filled class by class,
        and the first ones would all be of one class.
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
        return self._summaries(np.concatenate(offsets)), total

    def query_of(self, record: Record) -> FloatArray:
        """Return an image as a query (D,) float32: its kept embedding, or its decoded code."""
        kept = record.embedding
        vector = self.codebooks.decode(record.code[None])[0] if kept is None else kept
        query: FloatArray = vector.astype(np.float32, copy=False)
        return query

    def search(self, query: FloatArray, page: Page, *, leave_out: tuple[int, ...] = ()) -> Found:
        """Find the images most like a query (D,), but for those at the places `leave_out`."""
        return self.search_many(query[None], page, leave_out=leave_out)[0]

    def search_many(
        self, queries: FloatArray, page: Page, *, leave_out: tuple[int, ...] = ()
    ) -> list[Found]:
        """Do as `search` for each of (Q, D) queries, in parallel."""
        self._check(page)
        queries = check_embeddings("queries", queries, self.codebooks.embedding_dim)
        norm = self.store.manifest.query_norm
        tables = self.codebooks.lookup_tables(queries, norm=norm)
        wanted = max(page.rerank, page.offset + page.top_k)
        kept = self.store.manifest.keep_embeddings
        ties = TIE_ROWS - 1 if kept else 0
        search = Search(tables, wanted, page.where, page.labels, leave_out, ties)
        ranked = merge_ranked(self._ask_all(Request("search", (search,))), wanted + ties)
        limits = self.codebooks.best(tables)
        shown = slice(page.offset, page.offset + page.top_k)
        if kept:
            # Re-ranking orders its hits below; ties only decide which hits those are.
            last = slice(page.rerank - 1, page.rerank) if page.rerank else shown
            counts = (ranked.places >= 0).sum(axis=1).tolist()
            ranked = self._by_floats(queries, ranked, page_ties(ranked.scores, counts, last))
        if page.rerank:
            first = (ranked.places[:, : page.rerank] >= 0).sum(axis=1).tolist()
            every = [(query, slice(0, count)) for query, count in enumerate(first)]
            ranked = self._by_floats(queries, ranked, every, rescore=True)
            limits = self.codebooks.best_float(self.codebooks.vectors(queries, norm=norm))
        predictions = self._predict(queries, page, by_example=bool(leave_out))
        answers = []
        for number, records in enumerate(self._read(ranked, shown)):
            scores, best = ranked.scores[number, shown], float(limits[number])
            prediction = predictions[number]
            pairs = zip(records, scores.tolist(), strict=False)  # scores without a record: padding
            hits = tuple(
                _hit(rank, record, score, best, prediction)
                for rank, (record, score) in enumerate(pairs, page.offset + 1)
            )
            found = (prediction.kinds, prediction.known, prediction.sure)
            answers.append(Found(hits, ranked.total, best, *found))
        return answers

    def _by_floats(
        self,
        queries: FloatArray,
        ranked: Ranked,
        blocks: Sequence[Block],
        *,
        rescore: bool = False,
    ) -> Ranked:
        """Order some blocks of answers, (query, columns), by float scores, in a stable way.

        Scores are not replaced by float scores, unless `rescore` says so.
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

    def _predict(self, queries: FloatArray, page: Page, *, by_example: bool) -> list[Prediction]:
        """Predict what each query shows, among the classes of the images that pass the filter.

        `by_example`: queries are made of images of the gallery. Its classes were fitted to these,
        so that probabilities do not hold for them.
        """
        if (classifier := self.classifier) is None:
            return [Prediction()] * len(queries)
        names = classifier.class_names

        def find() -> IntArray:
            request = Request("labels_of", (page.where, page.labels))
            found = {name for labels in self._ask_all(request) for name in labels}
            return np.array([place for place, name in enumerate(names) if name in found], np.int64)

        passing = self._passing.get((page.where, page.labels), find)
        return predict(classifier, queries, passing, None if by_example else page.wrong_at_most)

    def _read(self, ranked: Ranked, columns: slice) -> Iterator[list[Record]]:
        """Yield the images of some columns for each query; queries share reads."""
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
        """Yield the images, in order of insertion, that may have a text in a column."""
        for located in self._ask_all(Request("candidates", (column, text))):
            yield from zip(located.places.tolist(), self._take(located), strict=True)

    def _take(self, located: Located, *, embeddings: bool = True) -> list[Record]:
        """Read images and cache their places."""
        offsets = located.offsets
        records = self.store.take(offsets, embeddings=embeddings) if len(offsets) else []
        with self._lock:
            # A hit is often followed by a request for its picture, which then asks no shard.
            for record, place, offset in zip(
                records, located.places.tolist(), located.offsets.tolist(), strict=True
            ):
                self._locations[record.id] = (place, offset)
        return records

    def _offsets(self, places: IntArray) -> IntArray:
        """Return (n,) int64: the offsets in a scan of the store of the images at (n,) places."""
        grouped = dict(_by_shard(places, self._edges))
        found = self._parts.ask(
            {shard: Request("locate", (places[inside],)) for shard, inside in grouped.items()}
        )
        offsets = np.empty(len(places), np.int64)
        for shard, inside in grouped.items():
            offsets[inside] = found[shard].offsets
        return offsets

    def _summaries(self, offsets: IntArray) -> list[ImageSummary]:
        if not len(offsets):
            return []
        with damage_named(self.store.folder):
            table = self.store.rows_at(offsets, ["id", "label", "code"])
        names, labels = (table.column(name).to_pylist() for name in ("id", "label"))
        codes = code_matrix(table.column("code"), self.codebooks.num_codebooks)
        return [ImageSummary(*parts) for parts in zip(names, labels, codes, strict=True)]


def _hit(rank: int, record: Record, score: float, best: float, prediction: Prediction) -> Hit:
    return Hit(
        rank=rank,
        id=record.id,
        score=score,
        share=min(max(score / best, 0.0), 1.0) if best > 0 else 0.0,
        label=record.label,
        uri=record.uri,
        metadata=dict(record.metadata),
        probability=prediction.probability(record.label),
    )


def _by_shard(numbers: IntArray, edges: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield the shards that hold some of (n,) numbers, and the positions of these, ascending."""
    shard_of = np.searchsorted(edges, numbers, side="right") - 1
    for shard in np.unique(shard_of).tolist():
        yield shard, np.flatnonzero(shard_of == shard)
