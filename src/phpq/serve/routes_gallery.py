"""What the gallery holds, why images match, and changes: facts, images, heat maps, add, delete."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Body, Depends, Form, Header, Path, Query
from starlette.responses import Response

from phpq._version import __version__
from phpq.codes import CodeArray, FloatArray
from phpq.errors import BadImageError, ConfigError, UnknownNameError
from phpq.explain.heatmap import heat_missing
from phpq.gallery.queries import compose_query
from phpq.gallery.records import Record
from phpq.gallery.view import GalleryView
from phpq.serve import schemas
from phpq.serve._answers import answer, item, parse_code, thumbnail_address
from phpq.serve._guard import needs_token
from phpq.serve._refusals import too_large
from phpq.serve.files import SIZES, Picture, parse_metadata, read_file
from phpq.serve.pointing import Boxes, Examples, Photos, Uploads, examples_reader
from phpq.serve.schemas import Id, Image, OptionalCode, OptionalId
from phpq.serve.services import Services
from phpq.serve.settings import (
    MAX_BATCH,
    MAX_EXAMPLES,
    MAX_ID,
    MAX_MAP,
    MAX_OFFSET,
    MAX_PHOTOS,
    MAX_TOP_K,
)

_IMAGE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/*": {}}, "description": "The image."},
    304: {"description": "The client has it already."},
}
IfNoneMatch = Annotated[str | None, Header(description="What the client has.")]


def gallery_routes(services: Services) -> APIRouter:
    """Return the routes that show images and facts."""
    router = APIRouter(tags=["gallery"], responses=schemas.ERRORS)

    @router.get("/info", response_model=schemas.Info)
    async def info() -> Response:
        """Say what is served, by which model, and what the server takes."""
        return answer(describe(services, services.views.current))

    @router.get("/labels", response_model=schemas.Labels)
    async def labels(
        prefix: Annotated[str, Query(max_length=200, description="Of the label, any case.")] = "",
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """List labels in alphabetical order, with the number of their images."""
        return answer(await services.read(lambda view: list_labels(view, prefix, offset, limit)))

    @router.get("/item", response_model=schemas.Item)
    async def get_item(id: Id) -> Response:
        """Return one image's label, metadata and code."""
        return answer(await services.read(lambda view: item(view.find(id)[1])))

    async def picture(make: Callable[[Record], Picture], id: str, known: str | None) -> Response:
        made = await services.uploads.run(
            lambda: services.views.read(lambda view: make(view.find(id)[1]))
        )
        return _send(made, known)

    @router.get("/thumbnail", response_class=Response, responses=_IMAGE)
    async def thumbnail(
        id: Id,
        size: Annotated[int, Query(ge=16, le=SIZES[-1], description="Of the longer side.")] = 192,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """Return a small JPEG of an image."""
        pictures = services.pictures
        return await picture(lambda record: pictures.thumbnail(record, size), id, if_none_match)

    @router.get("/original", response_class=Response, responses=_IMAGE)
    async def original(id: Id, if_none_match: IfNoneMatch = None) -> Response:
        """Return the file of an image, as it was indexed."""
        return await picture(services.pictures.original, id, if_none_match)

    return router


def describe(services: Services, view: GalleryView) -> schemas.Info:
    """Put together what `/info` says."""
    manifest, model, settings = view.store.manifest, view.model, services.settings
    return schemas.Info(
        name=services.gallery.name,
        images=len(view),
        bits=manifest.bits,
        num_codebooks=manifest.num_codebooks,
        codebook_size=manifest.codebook_size,
        labels=len(view.label_counts),
        filters=[schemas.Filter(name=name, type=kind) for name, kind in view.columns.items()],
        suggests_boxes=not view.cached("boxes missing", lambda: heat_missing(model)),
        embeddings=manifest.keep_embeddings,
        codebooks=manifest.codebooks,
        kinds=manifest.owns_codebooks or view.classifier is not None,
        version=view.version,
        model=schemas.ModelInfo(
            method=model.card.config.method.name,
            backbone=model.card.config.model.backbone,
            fingerprint=view.cached("fingerprint", model.fingerprint),
            classes=len(model.class_names),
            epochs=model.epochs,
        ),
        writable=settings.writable,
        limits=schemas.Limits(
            max_upload_bytes=settings.max_upload_bytes,
            max_pixels=settings.max_pixels,
            max_top_k=MAX_TOP_K,
            max_offset=MAX_OFFSET,
            max_batch=MAX_BATCH,
            max_photos=MAX_PHOTOS,
            max_examples=MAX_EXAMPLES,
        ),
        phpq_version=__version__,
    )


def list_labels(view: GalleryView, prefix: str, offset: int, limit: int) -> schemas.Labels:
    """Return the labels that begin with `prefix`, whatever the case."""
    start = prefix.casefold()
    found = [
        schemas.LabelCount(label=name, images=count)
        for name, count in view.label_counts.items()
        if name.casefold().startswith(start)
    ]
    return schemas.Labels(total=len(found), labels=found[offset : offset + limit])


def _send(picture: Picture, known: str | None) -> Response:
    headers = {
        "ETag": picture.etag,
        "Cache-Control": "private, max-age=300",
        # Nothing that an image file holds may run, whatever a browser takes it for.
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    if known is not None and picture.etag in known:
        return Response(status_code=304, headers=headers)
    if picture.media_type == "application/octet-stream":
        headers["Content-Disposition"] = "attachment"
    return Response(picture.content, media_type=picture.media_type, headers=headers)


def draw_map(view: GalleryView, limit: int) -> schemas.Map:
    """Project the codes of a sample."""
    from phpq.explain import project_codes, sample_rows

    places = sample_rows(len(view), limit=limit)
    images = view.summaries(places)
    books = view.codebooks
    codes = np.array([image.code for image in images], np.uint8).reshape(-1, books.num_codebooks)
    return schemas.Map(
        points=[
            schemas.MapPoint(id=image.id, label=image.label, x=x, y=y)
            for image, (x, y) in zip(images, project_codes(books, codes).tolist(), strict=True)
        ],
        method="pca",
        sampled=len(places) < len(view),
    )


def describe_use(view: GalleryView, limit: int) -> schemas.Codebooks:
    """Count the images of every codeword."""
    from phpq.explain import CodebookUsage

    usage = [CodebookUsage(book, counts) for book, counts in enumerate(view.usage)]
    return schemas.Codebooks(
        codebooks=[schemas.CodebookUse(**book.to_dict(limit=limit)) for book in usage]
    )


def list_images(view: GalleryView, codebook: int, word: int, limit: int) -> schemas.WordImages:
    """Name the images behind a codeword."""
    books, size = view.codebooks.num_codebooks, view.codebooks.codebook_size
    if codebook >= books or word >= size:
        raise UnknownNameError(
            f"There is no codeword {word!r} in codebook {codebook!r}; codebooks are 0 to "
            f"{books - 1}, codewords 0 to {size - 1}."
        )
    found, total = view.word_images(codebook, word, limit)
    images = [
        schemas.WordImage(id=image.id, label=image.label, thumbnail=thumbnail_address(image.id))
        for image in found
    ]
    return schemas.WordImages(images=images, total=total)


def explain_routes(services: Services) -> APIRouter:
    """Return the routes that show the gallery as a whole, and those that explain a match."""
    router = APIRouter(tags=["explain"], responses=schemas.ERRORS)

    @router.get("/explain", response_model=schemas.Explanation)
    async def explain(
        hit_id: Id,
        examples: Annotated[Examples, Depends(examples_reader(Query))],
        query_id: OptionalId = None,
        code: OptionalCode = None,
    ) -> Response:
        """Say why an image of the gallery was found for another one, or for a code."""
        work = partial(explain_named, services, hit_id, query_id, code, examples)
        return answer(await services.uploads.run(services.views.read, work))

    @router.post("/explain", response_model=schemas.Explanation)
    async def explain_upload(
        image: Photos,
        hit_id: Annotated[str, Form(min_length=1, max_length=MAX_ID)],
        examples: Annotated[Examples, Depends(examples_reader(Form))],
        box: Boxes = None,
    ) -> Response:
        """Say why an image of the gallery was found for an upload, or for several."""
        sent = await Uploads.read(image, box)
        return answer(await services.uploads.run(explain_sent, services, hit_id, sent, examples))

    @router.get("/map", response_model=schemas.Map)
    async def gallery_map(
        limit: Annotated[int, Query(ge=1, le=MAX_MAP, description="Most points.")] = 2000,
    ) -> Response:
        """Draw the gallery in two dimensions; of more images a sample is taken."""
        return answer(await services.remembered("map", limit, draw_map))

    @router.get("/codebooks", response_model=schemas.Codebooks)
    async def codebooks(
        limit: Annotated[int, Query(ge=0, le=256, description="Codewords of each.")] = 256,
    ) -> Response:
        """Say how the gallery uses its codebooks, with the codewords that most images have."""
        return answer(await services.remembered("codebooks", limit, describe_use))

    @router.get("/codebooks/{codebook}/{word}", response_model=schemas.WordImages)
    async def images_of_word(
        codebook: Annotated[int, Path(ge=0, le=1 << 20)],
        word: Annotated[int, Path(ge=0, le=255)],
        limit: Annotated[int, Query(ge=1, le=500, description="Most images.")] = 60,
    ) -> Response:
        """Show the images behind a codeword."""
        return answer(await services.read(lambda view: list_images(view, codebook, word, limit)))

    return router


def explain_sent(
    services: Services, hit_id: str, sent: Uploads, examples: Examples
) -> schemas.Explanation:
    """Explain a hit of a search for uploads; the heat map is that of the first."""

    def work(view: GalleryView) -> schemas.Explanation:
        photos, boxes = sent.embed(services, view)
        hit = view.find(hit_id)[1]
        query = compose_query(view, photos, examples.more, examples.less).query
        code = view.codebooks.encode(query[None])[0]
        note, heat = services.heat_missing(view), None
        if not note:
            first = sent.contents[0], sent.names[0]
            heat = _data_uri(services.heat_png(view, *first, hit.code, boxes[0]))
        return _explanation(services, view, query, code, hit, query_heat=heat, note=note)

    return services.views.read(work)


def explain_named(
    services: Services,
    hit_id: str,
    query_id: str | None,
    code: str | None,
    examples: Examples,
    view: GalleryView,
) -> schemas.Explanation:
    """Explain a hit of a search by id or by code, one of which is given, or by examples."""
    if (query_id is not None and code is not None) or not (query_id or code or examples.more):
        raise ConfigError("Give exactly one of query_id and code.")
    hit = view.find(hit_id)[1]
    photos = np.empty((0, view.codebooks.embedding_dim), np.float32)
    heat, more, own = None, examples.more, None
    note = "Of the query only its code is known: there is no picture to draw a heat map over."
    if code is not None:
        own = parse_code(code, view)
        photos = view.codebooks.decode(own[None])
    elif query_id is not None:
        record = view.find(query_id)[1]
        heat, note = _heat(services, view, record, hit.code)
        more, own = (query_id, *more), record.code
    query = compose_query(view, photos, more, examples.less).query
    if own is None or examples.more or examples.less:
        own = view.codebooks.encode(query[None])[0]
    return _explanation(services, view, query, own, hit, query_heat=heat, note=note)


def _explanation(
    services: Services,
    view: GalleryView,
    query: FloatArray,
    code: CodeArray,
    hit: Record,
    *,
    query_heat: str | None = None,
    note: str = "",
) -> schemas.Explanation:
    from phpq.explain import codebook_shares, heat_note, signed_parts

    norm = view.store.manifest.query_norm
    shares = codebook_shares(view.codebooks, query, hit.code, query_norm=norm)
    pairs = zip(shares.tolist(), signed_parts(shares).tolist(), strict=True)
    hit_heat, hit_note = _heat(services, view, hit, code)
    about_model = "" if services.heat_missing(view) else heat_note(view.model)
    notes = [text for text in (note, hit_note, about_model) if text]
    return schemas.Explanation(
        score=float(shares.sum()),
        shares=[
            schemas.CodebookShare(codebook=number, score=score, part=part)
            for number, (score, part) in enumerate(pairs)
        ],
        query=schemas.HeatMap(heatmap=query_heat),
        hit=schemas.HeatMap(heatmap=hit_heat),
        note=" ".join(dict.fromkeys(notes)),
    )


def _heat(
    services: Services, view: GalleryView, record: Record, code: CodeArray
) -> tuple[str | None, str]:
    """Return the heat map of an image of the gallery, or why there is none."""
    if missing := services.heat_missing(view):
        return None, missing
    try:
        return _data_uri(services.heat_png(view, read_file(record), record.id, code)), ""
    except (UnknownNameError, BadImageError) as error:
        return None, str(error)


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def write_routes(services: Services) -> APIRouter:
    """Return the routes that add, replace and delete: off unless writable, only with the token."""
    settings = services.settings
    router = APIRouter(
        tags=["write"], responses=schemas.WRITE_ERRORS, dependencies=[needs_token(settings)]
    )

    @router.post("/items", response_model=schemas.AddAnswer)
    async def add(
        image: Image,
        id: Annotated[str, Form(min_length=1, max_length=MAX_ID, description="Its new name.")],
        label: Annotated[str | None, Form(max_length=200)] = None,
        metadata: Annotated[
            str | None, Form(max_length=20_000, description="A JSON object of plain values.")
        ] = None,
        mode: Annotated[
            Literal["add", "upsert"], Form(description="upsert replaces another image of this id.")
        ] = "add",
    ) -> Response:
        """Add an image; it is found by every search that begins after the answer."""
        values = parse_metadata(metadata)
        content = await image.read()
        if len(content) > settings.max_upload_bytes:
            raise too_large(f"{len(content):,} bytes", settings.max_upload_bytes)
        put = partial(services.writer.add, replace=mode == "upsert")
        work = partial(put, content, id=id, label=label or None, metadata=values)
        report = await services.writes.run(work)
        version = await served(services)
        return answer(schemas.AddAnswer(**report.to_dict(), version=version))

    @router.delete("/items", response_model=schemas.DeleteAnswer)
    async def delete(
        id: Annotated[list[str] | None, Query(max_length=1000, description="Ids.")] = None,
        body: Annotated[schemas.DeleteRequest | None, Body()] = None,
    ) -> Response:
        """Delete images by id, named in the address or as JSON, in one commit."""
        ids = [*(id or ()), *(body.ids if body is not None else ())]
        if not ids:
            raise ConfigError("Say what to delete: ids, as in ?id=a.jpg&id=b.jpg.")
        deleted, unknown = await services.writes.run(services.writer.delete, ids)
        version = await served(services)
        return answer(schemas.DeleteAnswer(deleted=deleted, unknown=unknown, version=version))

    return router


async def served(services: Services) -> int:
    """Wait until what was written is searched; many writers share one reload."""
    reload = partial(services.views.reload, at_least=services.views.newest())
    return (await services.uploads.run(reload)).version
