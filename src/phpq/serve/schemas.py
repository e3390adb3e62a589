"""What goes over the wire, as the OpenAPI document describes it: parameters, bodies, answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import File, Query, UploadFile
from pydantic import BaseModel, Field

from phpq.gallery.view import Page
from phpq.hits import WRONG_AT_MOST
from phpq.serve.settings import MAX_BATCH, MAX_ID, MAX_LABELS, MAX_OFFSET, MAX_TOP_K, MAX_WHERE

Metadata = dict[str, str | int | float | bool | None]
_WHERE = "A filter, as in: label = 'sparrow' AND year > 2020"
_WRONG = "Share of the names that verdicts give that may be wrong: 0.05 is one in twenty."
_RERANK = "Order the first hits by float embeddings; 0 is off."

Id = Annotated[str, Query(max_length=MAX_ID, description="The id of an image of the gallery.")]
OptionalId = Annotated[str | None, Query(max_length=MAX_ID, description="The id of an image.")]
OptionalUri = Annotated[
    str | None, Query(max_length=MAX_ID, description="The URI of an image of the gallery.")
]
OptionalCode = Annotated[str | None, Query(max_length=512, description="A code in hex.")]
Image = Annotated[UploadFile, File(description="An image file.")]


def page_reader(place: Callable[..., Any]) -> Callable[..., Page]:
    """Return a dependency that reads which hits are wanted, from a `Query` or a `Form`."""
    labels = place(None, max_length=MAX_LABELS, description="Only images of these labels.")

    def read(
        top_k: int = place(10, ge=1, le=MAX_TOP_K, description="How many hits."),
        offset: int = place(0, ge=0, le=MAX_OFFSET, description="How many better hits to skip."),
        where: str | None = place(None, max_length=MAX_WHERE, description=_WHERE),
        label: list[str] | None = labels,
        rerank: int = place(0, ge=0, le=MAX_OFFSET + MAX_TOP_K, description=_RERANK),
        wrong_at_most: float = place(WRONG_AT_MOST, ge=0, le=1, description=_WRONG),
    ) -> Page:
        return make_page(top_k, offset, where, label, rerank=rerank, wrong_at_most=wrong_at_most)

    return read


def make_page(
    top_k: int,
    offset: int,
    where: str | None,
    labels: list[str] | None,
    *,
    rerank: int,
    wrong_at_most: float,
) -> Page:
    """Put checked parameters together; an empty filter is none."""
    return Page(
        top_k=top_k,
        offset=offset,
        where=where if where and where.strip() else None,
        labels=tuple(labels or ()),
        rerank=rerank,
        wrong_at_most=wrong_at_most,
    )


class ErrorDetail(BaseModel):
    """What went wrong."""

    kind: str = Field(description="The class of the error, as in BadImageError.")
    message: str = Field(description="What was seen, what is allowed, what to do.")
    request_id: str = Field(description="Names the request in the log of the server.")


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class Filter(BaseModel):
    """A column that a filter may name."""

    name: str
    type: str


class ModelInfo(BaseModel):
    """The model of a gallery."""

    method: str
    backbone: str
    fingerprint: str
    classes: int
    epochs: int


class Limits(BaseModel):
    """What the server takes."""

    max_upload_bytes: int
    max_pixels: int
    max_top_k: int
    max_offset: int
    max_batch: int
    max_photos: int
    max_examples: int


class Info(BaseModel):
    """What is served."""

    name: str
    images: int
    bits: int
    num_codebooks: int
    codebook_size: int
    labels: int = Field(description="Distinct labels.")
    filters: list[Filter]
    suggests_boxes: bool
    embeddings: bool = Field(description="Whether float embeddings are kept, for rerank.")
    codebooks: Literal["model", "own"] = Field(description="Whose the codebooks are.")
    kinds: bool = Field(description="Whether verdicts are by kinds, not by the labels of hits.")
    version: int = Field(description="Of the gallery; it grows with every change.")
    model: ModelInfo
    writable: bool
    limits: Limits
    phpq_version: str


class LabelCount(BaseModel):
    """One label."""

    label: str
    images: int


class Labels(BaseModel):
    """Labels in alphabetical order."""

    total: int
    labels: list[LabelCount]


class QueryEcho(BaseModel):
    """What was searched for."""

    kind: Literal["upload", "id", "uri", "code", "examples"]
    id: str | None = None
    uri: str | None = None
    label: str | None = None
    code: str = Field(default="", description="Without examples, in hex: it can be shared.")
    photos: int = 0
    boxes: list[Any] | None = Field(default=None, description="Of each photo; null: all of it.")
    more: list[str] = []
    less: list[str] = []


class HitAnswer(BaseModel):
    """One image that was found."""

    rank: int
    id: str
    score: float
    share: float = Field(ge=0, le=1, description="Of the best score that any code could reach.")
    label: str | None
    metadata: Metadata
    probability: float | None = Field(
        default=None, description="That it shows what the query shows."
    )
    thumbnail: str
    has_original: bool


class SureAnswer(BaseModel):
    """The most specific name that is sure enough."""

    label: str | None = Field(description="A kind, or what it belongs to; null: unknown.")
    level: int | None = Field(description="0 for a kind, 1 for what it belongs to, and so on.")
    probability: float = Field(
        description="That the name is right; where it is unknown, of the likeliest kind."
    )
    wrong_at_most: float = Field(description="Share of wrong names that the request accepts.")


class VerdictAnswer(BaseModel):
    """The likeliest kind where the gallery knows kinds; else the most common label of the hits."""

    label: str
    by: Literal["kinds", "hits"] = Field(description="What the share is of.")
    share: float = Field(
        description="By kinds: how likely this one is among those of the images that pass the "
        "filter, which add up to 1. By hits: the share of this page's hits that have the label."
    )
    runners_up: list[tuple[str, float]] = Field(
        default=[], description="By kinds: at most 4 others, label and share, the likeliest first."
    )
    known: float | None = Field(
        default=None,
        description="How likely the query shows one of the kinds that pass the filter; times the "
        "share of a kind it is the probability of that kind. Null where it is not known.",
    )
    probability: float | None = Field(default=None, description="Of `label`, or null: not known.")
    sure: SureAnswer | None = Field(
        default=None, description="What can be said; null where probabilities are not known."
    )


class SearchAnswer(BaseModel):
    """Best first; equal scores in the order of float scores where they are kept, or as added."""

    query: QueryEcho
    top_k: int
    offset: int
    total: int = Field(description="Images that pass the filter.")
    best: float = Field(description="The highest score that any code could reach.")
    seconds: float
    verdict: VerdictAnswer | None = Field(description="Null where no label is known.")
    hits: list[HitAnswer]


class BatchAnswer(BaseModel):
    """One answer per query, in their order."""

    answers: list[SearchAnswer]


class BatchQuery(BaseModel, extra="forbid"):
    """One query: exactly one of its fields is given."""

    id: str | None = Field(default=None, max_length=MAX_ID)
    uri: str | None = Field(default=None, max_length=MAX_ID)
    code: str | None = Field(default=None, max_length=512)


class BatchRequest(BaseModel, extra="forbid"):
    """Several searches in one request."""

    queries: list[BatchQuery] = Field(min_length=1, max_length=MAX_BATCH)
    top_k: int = Field(default=10, ge=1, le=MAX_TOP_K)
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET)
    where: str | None = Field(default=None, max_length=MAX_WHERE)
    label: list[str] = Field(default_factory=list, max_length=MAX_LABELS)
    rerank: int = Field(default=0, ge=0, le=MAX_OFFSET + MAX_TOP_K)
    wrong_at_most: float = Field(default=WRONG_AT_MOST, ge=0, le=1, description=_WRONG)

    def page(self) -> Page:
        """Return which hits are wanted."""
        shown = (self.top_k, self.offset, self.where, self.label)
        return make_page(*shown, rerank=self.rerank, wrong_at_most=self.wrong_at_most)


class Item(BaseModel):
    """One image of the gallery."""

    id: str
    label: str | None
    metadata: Metadata
    code: str
    has_original: bool
    thumbnail: str


class SkippedItem(BaseModel):
    """An image that was not added, and why."""

    id: str
    reason: str


class AddAnswer(BaseModel):
    """What became of an image."""

    added: int
    unchanged: int
    replaced: int
    skipped: list[SkippedItem]
    version: int


class DeleteRequest(BaseModel, extra="forbid"):
    """What to delete."""

    ids: list[str] = Field(min_length=1, max_length=1000)


class DeleteAnswer(BaseModel):
    """What was deleted."""

    deleted: int
    unknown: list[str]
    version: int


class CodebookShare(BaseModel):
    """The part of one codebook in a score."""

    codebook: int
    score: float
    part: float = Field(description="Of the sum of all; negative where it speaks against.")


class HeatMap(BaseModel):
    """Where in an image a match comes from."""

    heatmap: str | None = Field(description="A PNG as data: URI; null where there is none.")


class Explanation(BaseModel):
    """Why two images match."""

    score: float
    shares: list[CodebookShare]
    query: HeatMap
    hit: HeatMap
    note: str


class MapPoint(BaseModel):
    """An image on the map."""

    id: str
    label: str | None
    x: float
    y: float


class Map(BaseModel):
    """A picture of the gallery in two dimensions."""

    points: list[MapPoint]
    method: str
    sampled: bool


class WordCount(BaseModel):
    """How many images use a codeword."""

    word: int
    images: int


class CodebookUse(BaseModel):
    """How a codebook is used."""

    codebook: int
    used: int
    dead: int
    entropy_bits: float
    words: list[WordCount] = Field(description="The most used first.")


class Codebooks(BaseModel):
    """All codebooks."""

    codebooks: list[CodebookUse]


class WordImage(BaseModel):
    """An image behind a codeword."""

    id: str
    label: str | None
    thumbnail: str


class WordImages(BaseModel):
    """Images behind a codeword."""

    images: list[WordImage]
    total: int


class Health(BaseModel):
    """Whether the server is there."""

    status: Literal["ok", "loading", "incomplete"]
    version: int | None = Field(default=None, description="Of the gallery that is served.")
    missing_shards: list[int] = Field(
        default_factory=list, description="Shards that do not answer; from 0."
    )


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "A parameter that is not allowed",
        403: "A host or an origin that is not allowed",
        404: "No such image",
        413: "Too large",
        422: "An image that cannot be read, or a field that is not valid",
        429: "Too many requests from one client; see Retry-After",
        503: "The server is busy; see Retry-After",
    }.items()
}
WRITE_ERRORS: dict[int | str, dict[str, Any]] = ERRORS | {
    401: {"model": ErrorAnswer, "description": "No token, or a wrong one"},
    409: {"model": ErrorAnswer, "description": "It does not fit what the gallery holds"},
}
