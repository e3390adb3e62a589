"""Queries and a view in, what goes over the wire out; filters are checked before they are run.

The library hands `where` to Lance as it is. From strangers that is too much: a few hundred nested
operators overflow the stack of its parser and end the process, and `repeat('a', 1000000000)` takes
seconds and gigabytes. Here only columns, literals, comparisons and AND, OR, NOT pass.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import numpy as np
from pydantic import BaseModel
from starlette.responses import Response

from phpq.codes import CodeArray, FloatArray
from phpq.data.boxes import Box
from phpq.errors import ConfigError
from phpq.gallery.queries import compose_query
from phpq.gallery.records import Record
from phpq.gallery.view import GalleryView, Page
from phpq.hits import plain_values
from phpq.serve import schemas
from phpq.serve.files import has_file
from phpq.serve.pointing import NO_EXAMPLES, Examples
from phpq.serve.settings import MAX_WHERE

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?!\w))
      | (?P<word>[^\W\d]\w*)
      | (?P<mark><=|>=|<>|!=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
# What may stand beside a column: no arithmetic, no functions, no subqueries.
_JOINTS = ("and", "or", "not", "in", "is", "like", "ilike", "between", "escape")
_WORDS = frozenset((*_JOINTS, "null", "true", "false", "date", "timestamp"))
_MOST_TOKENS = 200
_DEEPEST = 10
_NOT = 8  # each is one more level of the tree
_ALLOWED = (
    "Over the network a filter holds columns, literals, = != < <= > >=, AND, OR, NOT, IN, LIKE, "
    "BETWEEN, IS NULL and parentheses"
)


def search_named(
    view: GalleryView,
    query: schemas.BatchQuery,
    page: Page,
    examples: Examples = NO_EXAMPLES,
) -> schemas.SearchAnswer:
    """Search for what looks like an image of the gallery, itself left out, or has a code.

    With examples, neither need be given.
    """
    given = query.model_dump(exclude_none=True)
    if len(given) > 1 or not (given or examples.more or examples.less):
        seen = " and ".join(given) or "nothing"
        raise ConfigError(f"The query names {seen}; give exactly one of id, uri and code.")
    no_photos = np.empty((0, view.codebooks.embedding_dim), np.float32)
    if not given:
        return _search(view, no_photos, page, schemas.QueryEcho(kind="examples"), examples)
    if query.code is not None:
        code = parse_code(query.code, view)
        echo = schemas.QueryEcho(kind="code", code=code.tobytes().hex())
        # A code stands at what the gallery holds: how sure that looks says nothing of its photo.
        page = replace(page, wrong_at_most=None)
        return _search(view, view.codebooks.decode(code[None]), page, echo, examples)
    record = (view.find_uri(query.uri) if query.uri is not None else view.find(query.id or ""))[1]
    echo = schemas.QueryEcho(
        kind="id" if query.uri is None else "uri",
        id=record.id,
        uri=query.uri,
        label=record.label,
        code=record.code.tobytes().hex(),
    )
    own = replace(examples, more=(record.id, *examples.more))
    return _search(view, no_photos, page, echo, own, shown=examples)


def search_upload(
    view: GalleryView,
    photos: FloatArray,
    page: Page,
    examples: Examples = NO_EXAMPLES,
    boxes: Sequence[Box | None] = (),
) -> schemas.SearchAnswer:
    """Search for one thing by its embedded photos, (n, D) float32, or one (D,)."""
    rows = np.atleast_2d(photos)
    shown = [None if box is None else list(box) for box in boxes] if any(boxes) else None
    echo = schemas.QueryEcho(kind="upload", photos=len(rows), boxes=shown)
    return _search(view, rows, page, echo, examples)


def parse_code(text: str, view: GalleryView) -> CodeArray:
    """Read a code in hex: (M,) uint8."""
    books, size = view.codebooks.num_codebooks, view.codebooks.codebook_size
    try:
        code = np.frombuffer(bytes.fromhex(text), np.uint8)
        good = len(code) == books and len(text) == 2 * books and bool((code < size).all())
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"code={text[:80]!r} is no code of this gallery; expected {2 * books} hex digits, "
            f"{books} bytes below {size}."
        )
    return code


def item(record: Record) -> schemas.Item:
    """Describe one image."""
    return schemas.Item(
        id=record.id,
        label=record.label,
        metadata=plain_values(record.metadata),
        code=record.code.tobytes().hex(),
        has_original=has_file(record.uri),
        thumbnail=thumbnail_address(record.id),
    )


def thumbnail_address(id: str) -> str:
    """Return where the thumbnail of an image is."""
    return f"/api/v1/thumbnail?id={quote(id, safe='')}"


def answer(content: BaseModel, *, status: int = 200) -> Response:
    """Turn a checked answer into bytes, once."""
    return Response(content.model_dump_json(), status, media_type="application/json")


def _search(
    view: GalleryView,
    photos: FloatArray,
    page: Page,
    echo: schemas.QueryEcho,
    examples: Examples,
    *,
    shown: Examples | None = None,
) -> schemas.SearchAnswer:
    """Search for photos (n, D) and examples; `shown` are those that the request called so."""
    if page.where is not None:
        check_where(page.where, tuple(view.columns))
    asked = compose_query(view, photos, examples.more, examples.less)
    named = shown or examples
    echo.more, echo.less = list(named.more), list(named.less)
    if not echo.code:
        echo.code = view.codebooks.encode(asked.photos[None])[0].tobytes().hex()
    start = time.perf_counter()
    found = view.search(asked.query, page, leave_out=asked.leave_out)
    seconds = time.perf_counter() - start
    verdict = found.verdict
    return schemas.SearchAnswer(
        query=echo,
        top_k=page.top_k,
        offset=page.offset,
        total=found.total,
        best=found.best,
        seconds=seconds,
        verdict=schemas.VerdictAnswer(**verdict.to_dict()) if verdict else None,
        hits=[
            schemas.HitAnswer(  # which has no field for the URI: a server does not tell it
                **hit.to_dict(), thumbnail=thumbnail_address(hit.id), has_original=has_file(hit.uri)
            )
            for hit in found.hits
        ],
    )


def check_where(where: str, columns: tuple[str, ...]) -> str:
    """Return a filter if it is safe to run: comparisons of columns with literals, no more."""
    if len(where) > MAX_WHERE:
        raise ConfigError(
            f"where has {len(where)} characters; at most {MAX_WHERE} are allowed over the network."
        )
    place, depth, count, nots = 0, 0, 0, 0
    known = {name.lower() for name in columns} | _WORDS
    before = ""  # the word before, that a parenthesis would turn into a call
    operand = False  # whether a column or a literal came before: another one would be arithmetic
    end = len(where.rstrip())
    while place < end:
        match = _TOKEN.match(where, place)
        if match is None:
            raise _refuse(where, f"{where[place : place + 10].strip()!r} cannot be read there")
        place = match.end()
        count += 1
        word = match["word"]
        if word is not None and word.lower() not in known:
            raise _refuse(where, f"{word!r} is neither a column nor one of these words", columns)
        nots += word is not None and word.lower() == "not"
        if match["mark"] == "(":
            depth += 1
            if before and before not in ("and", "or", "not", "in", "between"):
                raise _refuse(where, f"{before!r} is no function")
        elif match["mark"] == ")":
            depth -= 1
        if depth > _DEEPEST or count > _MOST_TOKENS or nots > _NOT:
            raise _refuse(where, "it is too long or too deeply nested")
        before = word.lower() if word is not None else ""
        is_operand = match["mark"] is None and before not in _WORDS
        if operand and is_operand:
            raise _refuse(where, f"{match[0].strip()!r} follows a value without a comparison")
        operand = is_operand
    return where


def _refuse(where: str, reason: str, columns: tuple[str, ...] = ()) -> ConfigError:
    listed = f" Columns: {', '.join(columns)}." if columns else ""
    return ConfigError(
        f"where={where!r} cannot be used: {reason}. {_ALLOWED}.{listed} "
        "An example: label = 'sparrow' AND id LIKE '2024/%'"
    )
