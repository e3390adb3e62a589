"""What the gallery holds: info, labels, items, thumbnails and originals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from phpq._version import __version__
from phpq.gallery.view import GalleryView
from phpq.serve import schemas
from phpq.serve.answers import answer, item
from phpq.serve.files import SIZES, Picture
from phpq.serve.parameters import Id
from phpq.serve.services import Services
from phpq.serve.settings import MAX_BATCH, MAX_OFFSET, MAX_TOP_K

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
        view = services.views.current
        return answer(await services.searches.run(list_labels, view, prefix, offset, limit))

    @router.get("/item", response_model=schemas.Item)
    async def get_item(id: Id) -> Response:
        """Return one image's label, metadata and code."""

        def work() -> schemas.Item:
            return services.views.read(lambda view: item(view.find(id)[1]))

        return answer(await services.searches.run(work))

    @router.get("/thumbnail", response_class=Response, responses=_IMAGE)
    async def thumbnail(
        id: Id,
        size: Annotated[int, Query(ge=16, le=SIZES[-1], description="Of the longer side.")] = 192,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """Return a small JPEG of an image."""

        def work() -> Picture:
            return services.views.read(
                lambda view: services.pictures.thumbnail(view.find(id)[1], size)
            )

        return _send(await services.uploads.run(work), if_none_match)

    @router.get("/original", response_class=Response, responses=_IMAGE)
    async def original(id: Id, if_none_match: IfNoneMatch = None) -> Response:
        """Return the file of an image, as it was indexed."""

        def work() -> Picture:
            return services.views.read(lambda view: services.pictures.original(view.find(id)[1]))

        return _send(await services.uploads.run(work), if_none_match)

    return router


def describe(services: Services, view: GalleryView) -> schemas.Info:
    """Put together what `/info` says."""
    manifest, model, settings = view.store.manifest, services.model, services.settings
    return schemas.Info(
        name=services.gallery.name,
        images=len(view),
        bits=manifest.bits,
        num_codebooks=manifest.num_codebooks,
        codebook_size=manifest.codebook_size,
        labels=len(view.label_counts),
        filters=[schemas.Filter(name=name, type=kind) for name, kind in view.columns.items()],
        embeddings=manifest.keep_embeddings,
        version=view.version,
        model=schemas.ModelInfo(
            method=model.card.config.method.name,
            backbone=model.card.config.model.backbone,
            fingerprint=services.fingerprint,
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
