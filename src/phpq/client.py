"""A client of `phpq serve`: images, ids or codes in, typed answers out; no torch, no numpy.

    with phpq.Client("http://127.0.0.1:8000") as client:
        for hit in client.search("photo.jpg", top_k=5):
            print(hit.id, hit.score, hit.label)

What the server refuses is raised as the exception that the library itself would raise, with the
same text; what only a server can say (busy, no access, not there) is a `ServerError`.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast

import httpx

from phpq import errors
from phpq.errors import BadImageError, PhpqError
from phpq.hits import Found, Hit, Sure

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = str | Path | bytes | Image  # a file, the bytes of one, or pixels

Box = tuple[float, float, float, float] | Literal["auto"]
_API = "/api/v1"
_LONGEST_WAIT = 5.0  # seconds before a busy server is asked again


class ServerError(PhpqError, RuntimeError):
    """A server that cannot be reached, or made a mistake of its own."""

    code = "server"


class BusyError(ServerError):
    """A server that has too much to do; ask again later."""

    code = "busy"


class AccessError(ServerError):
    """A request that this client may not make."""

    code = "access"


class SearchOptions(TypedDict, total=False):
    """Which hits are wanted: see `phpq.Gallery.search`; `offset` skips better ones."""

    offset: int
    where: str | None
    labels: Sequence[str]
    rerank: int
    wrong_at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Found):
    """What a search found; see `Found`."""

    code: str  # of the query, in hex: `search_code` finds the same again
    seconds: float  # that the search took on the server
    query: Mapping[str, Any]  # what was searched for, as the server names it


@dataclass(frozen=True, slots=True)
class ServedItem:
    """One image of the gallery; see `phpq.hits.Hit`."""

    id: str
    label: str | None
    metadata: Mapping[str, str | int | float | bool | None]
    code: str
    has_original: bool
    thumbnail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why two images match."""

    score: float  # of the hit
    shares: tuple[float, ...]  # the part of each codebook in it; they add up to it
    query_heat: bytes | None  # a PNG of the query with what mattered marked, if there is one
    hit_heat: bytes | None  # the same of the hit
    note: str  # what is missing, and why


class Client:
    """Talks to one server; closes its connections with `close`, or as a context manager.

    Args:
        address: Of the server.
        token: Lets add and delete, where the server is writable.
        timeout: Seconds to wait for an answer.
        retries: How often to ask a busy server again; never for a change.
        transport: Of httpx, for tests.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.address = address.rstrip("/")
        self._retries = retries
        self._http = httpx.Client(
            base_url=self.address, headers=headers, timeout=timeout, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(
        self,
        image: Picture | Sequence[Picture] | None = None,
        top_k: int = 10,
        *,
        box: Box | Sequence[Box | None] | None = None,
        more: Sequence[str] = (),
        less: Sequence[str] = (),
        **options: Unpack[SearchOptions],
    ) -> Answer:
        """Find what looks like an image: a file, the bytes of one, or a PIL image.

        Several photos of one thing make one query. A box is (left, top, right, bottom) in pixels,
        or "auto" for what the server suggests; of several photos one for each, or None. `more` and
        `less` are ids of images that the hits are to be like, or not; they may stand alone.
        """
        page = _page(top_k, options) | {"more": list(more), "less": list(less)}
        if image is None:
            return _answer(self._get("/search", **page))
        files, boxes = _photos(image, box)
        return _answer(self._post("/search", data=page | boxes, files=files))

    def suggest_box(self, image: Picture) -> tuple[float, float, float, float]:
        """Return the part of a photo that the server would search with, in its pixels."""
        left, top, right, bottom = self._post("/suggest-box", files=[("image", _file(image))])[
            "box"
        ]
        return left, top, right, bottom

    def search_id(self, id: str, top_k: int = 10, **options: Unpack[SearchOptions]) -> Answer:
        """Find what looks like an image of the gallery, itself left out."""
        return _answer(self._get("/search", id=id, **_page(top_k, options)))

    def search_uri(self, uri: str, top_k: int = 10, **options: Unpack[SearchOptions]) -> Answer:
        """Find what looks like the image of the gallery that was indexed from `uri`."""
        return _answer(self._get("/search", uri=uri, **_page(top_k, options)))

    def search_code(self, code: str, top_k: int = 10, **options: Unpack[SearchOptions]) -> Answer:
        """Find the codes nearest to one, in hex as `Answer.code` gives it."""
        return _answer(self._get("/search", code=code, **_page(top_k, options)))

    def search_many(
        self, images: Sequence[Picture], top_k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Answer]:
        """Search for several images in one request."""
        files = [("image", _file(image)) for image in images]
        content = self._post("/search/batch", data=_page(top_k, options), files=files)
        return [_answer(one) for one in content["answers"]]

    def search_ids(
        self, ids: Sequence[str], top_k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Answer]:
        """Search for several images of the gallery in one request."""
        queries = [{"id": name} for name in ids]
        content = self._post("/search/batch", json={"queries": queries, **_page(top_k, options)})
        return [_answer(one) for one in content["answers"]]

    def item(self, id: str) -> ServedItem:
        """Return one image's label, metadata and code."""
        return ServedItem(**self._get("/item", id=id))

    def thumbnail(self, id: str, size: int = 192) -> bytes:
        """Return a small JPEG of an image."""
        return self._ask("GET", "/thumbnail", params={"id": id, "size": size}).content

    def original(self, id: str) -> bytes:
        """Return the file of an image, as it was indexed."""
        return self._ask("GET", "/original", params={"id": id}).content

    def add(
        self,
        image: Picture,
        id: str,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        mode: Literal["add", "upsert"] = "add",
    ) -> dict[str, Any]:
        """Add an image to a writable gallery; see `phpq.Gallery.add` and `upsert`.

        Returns how many were added, unchanged and replaced, and the version that holds it.
        """
        form = {"id": id, "mode": mode, "metadata": json.dumps(dict(metadata or {}))}
        if label is not None:
            form["label"] = label
        return self._post("/items", data=form, files=[("image", _file(image))], again=False)

    def delete(self, ids: str | Sequence[str]) -> int:
        """Delete images from a writable gallery; returns how many went."""
        names = [ids] if isinstance(ids, str) else list(ids)
        answer = self._ask("DELETE", "/items", json={"ids": names}, again=False)
        return int(answer.json()["deleted"])

    def audit(self, *, start: bool = False) -> dict[str, Any]:
        """Return state and findings of the last audit; `start` begins one in the background."""
        return self._post("/audit", again=False) if start else self._get("/audit")

    def decide(self, key: str, action: str, **given: Any) -> dict[str, Any]:
        """Decide on a finding: ids, label, old_label, yes; see `phpq.audit.decide`."""
        decision = {"key": key, "action": action, **given}
        return self._post("/audit/decisions", json=decision, again=False)

    def undo(self) -> dict[str, Any]:
        """Undo the last decision on a finding."""
        return self._post("/audit/undo", again=False)

    def info(self) -> dict[str, Any]:
        """Return size, bits, filters, model and limits."""
        return self._get("/info")

    def labels(self, prefix: str = "", *, offset: int = 0, limit: int = 100) -> dict[str, int]:
        """Return labels in alphabetical order, with the number of their images."""
        found = self._get("/labels", prefix=prefix, offset=offset, limit=limit)
        return {entry["label"]: entry["images"] for entry in found["labels"]}

    def explain(
        self,
        hit_id: str,
        *,
        image: Picture | Sequence[Picture] | None = None,
        box: Box | Sequence[Box | None] | None = None,
        query_id: str | None = None,
        code: str | None = None,
    ) -> Explanation:
        """Say why an image was found, for an image, an id or a code: exactly one of them.

        For images and boxes see `search`.
        """
        if image is not None:
            files, boxes = _photos(image, box)
            form = {"hit_id": hit_id, **boxes}
            return _explanation(self._post("/explain", data=form, files=files))
        params = {"hit_id": hit_id, "query_id": query_id, "code": code}
        given = {name: value for name, value in params.items() if value is not None}
        return _explanation(self._get("/explain", **given))

    def map(self, limit: int = 2000) -> list[dict[str, Any]]:
        """Return points of the gallery in two dimensions: id, label, x and y."""
        return list(self._get("/map", limit=limit)["points"])

    def codebooks(self, limit: int = 256) -> list[dict[str, Any]]:
        """Return how the gallery uses each codebook."""
        return list(self._get("/codebooks", limit=limit)["codebooks"])

    def codeword(self, codebook: int, word: int, *, limit: int = 60) -> list[dict[str, Any]]:
        """Return images behind a codeword: id, label and thumbnail."""
        return list(self._get(f"/codebooks/{codebook:d}/{word:d}", limit=limit)["images"])

    def ready(self) -> bool:
        """Say whether the server is there and has its gallery loaded."""
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def _get(self, path: str, **params: Any) -> dict[str, Any]:
        return dict(self._ask("GET", path, params=params).json())

    def _post(self, path: str, **request: Any) -> dict[str, Any]:
        return dict(self._ask("POST", path, **request).json())

    def _ask(self, method: str, path: str, *, again: bool = True, **request: Any) -> httpx.Response:
        """Send a request, and again while the server is busy; raises what it refuses."""
        for left in range(self._retries if again else 0, -1, -1):
            try:
                answer = self._http.request(method, _API + path, **request)
            except httpx.HTTPError as error:
                raise ServerError(
                    f"The server at {self.address!r} does not answer ({error}). Start one with: "
                    "phpq serve GALLERY"
                ) from error
            if answer.status_code not in (429, 503) or not left:
                break
            after = answer.headers.get("Retry-After", "1")
            time.sleep(min(float(after) if after.isdigit() else 1.0, _LONGEST_WAIT))
        if answer.is_error:
            raise to_error(answer.status_code, answer.content)
        return answer


def to_error(status: int, content: bytes) -> PhpqError:
    """Turn a body, whoever between answered it, into the exception that it names."""
    try:
        said = json.loads(content)["error"]
        kind, message = str(said["kind"]), str(said["message"])
    except (ValueError, KeyError, TypeError):
        text = content[:200].decode(errors="replace")
        return ServerError(f"The server answered {status} and not as phpq does: {text!r}.")
    own = {"BusyError": BusyError, "AccessError": AccessError, "ServerError": ServerError}
    found = own.get(kind) or getattr(errors, kind, None)
    known = isinstance(found, type) and issubclass(found, PhpqError)
    return found(message) if known else ServerError(f"{kind}: {message}")  # type: ignore[misc]


def _page(top_k: int, options: SearchOptions) -> dict[str, Any]:
    page: dict[str, Any] = {"top_k": top_k}
    for name in ("offset", "rerank", "wrong_at_most"):
        if name in options:
            page[name] = options[name]
    if options.get("where") is not None:
        page["where"] = options["where"]
    if options.get("labels"):
        page["label"] = list(options["labels"])
    return page


def _photos(
    image: Picture | Sequence[Picture], box: Box | Sequence[Box | None] | None
) -> tuple[list[tuple[str, tuple[str, bytes]]], dict[str, list[str]]]:
    """Return photos and their boxes, as a form has them."""
    several = isinstance(image, Sequence) and not isinstance(image, str | bytes)
    photos: list[Any] = list(cast("Sequence[Picture]", image)) if several else [image]
    files = [("image", _file(photo)) for photo in photos]
    if box is None:
        return files, {}
    one = box == "auto" or (len(box) == 4 and all(isinstance(edge, int | float) for edge in box))
    boxes: list[Any] = [box] if one else list(box)
    words = {None: "whole", "auto": "auto"}
    texts = [
        words[each] if each is None or each == "auto" else ",".join(map(str, each))
        for each in boxes
    ]
    return files, {"box": texts}


def _file(image: Picture) -> tuple[str, bytes]:
    """Return a name and bytes to send."""
    if isinstance(image, bytes):
        return "uploaded image", image
    if isinstance(image, str | Path):
        path = Path(image).expanduser()
        try:
            return path.name, path.read_bytes()
        except OSError as error:
            reason = "there is no such file" if not path.exists() else error.strerror or str(error)
            raise BadImageError(f"Cannot read the image {str(image)!r}: {reason}.") from error
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "PNG", compress_level=1)
    return "image.png", stream.getvalue()


def _answer(content: Mapping[str, Any]) -> Answer:
    told = content["verdict"]
    kinds = sure = known = None
    if told and told.get("by") == "kinds":  # which servers of before do not tell
        kinds = ((told["label"], told["share"]), *map(tuple, told["runners_up"]))
        known, sure = told.get("known"), told.get("sure") and Sure(**told["sure"])
    return Answer(
        hits=tuple(Hit(uri=None, **hit) for hit in content["hits"]),
        total=content["total"],
        best=content["best"],
        kinds=kinds,
        known=known,
        sure=sure,
        code=content["query"]["code"],
        seconds=content["seconds"],
        query=content["query"],
    )


def _explanation(content: Mapping[str, Any]) -> Explanation:
    uris = content["query"]["heatmap"], content["hit"]["heatmap"]
    query, hit = (None if uri is None else base64.b64decode(uri.partition(",")[2]) for uri in uris)
    shares = tuple(share["score"] for share in content["shares"])
    return Explanation(content["score"], shares, query, hit, content["note"])
