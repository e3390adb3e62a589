"""Why images match: two images, or a code and an image in; shares and heat maps out."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Form
from starlette.responses import Response

from phpq.codes import CodeArray, FloatArray
from phpq.errors import BadImageError, ConfigError, UnknownNameError
from phpq.gallery.records import Record
from phpq.gallery.view import GalleryView
from phpq.serve import schemas
from phpq.serve.answers import answer, parse_code
from phpq.serve.files import read_file
from phpq.serve.parameters import Id, Image, OptionalCode, OptionalId, upload_name
from phpq.serve.services import Services
from phpq.serve.settings import MAX_ID


def explain_routes(services: Services) -> APIRouter:
    """Return the routes that explain."""
    router = APIRouter(tags=["explain"], responses=schemas.ERRORS)

    @router.get("/explain", response_model=schemas.Explanation)
    async def explain(
        hit_id: Id, query_id: OptionalId = None, code: OptionalCode = None
    ) -> Response:
        """Say why an image of the gallery was found for another one, or for a code."""

        def work(view: GalleryView) -> schemas.Explanation:
            return explain_named(services, view, hit_id, query_id=query_id, code=code)

        return answer(await services.uploads.run(services.views.read, work))

    @router.post("/explain", response_model=schemas.Explanation)
    async def explain_upload(
        image: Image, hit_id: Annotated[str, Form(min_length=1, max_length=MAX_ID)]
    ) -> Response:
        """Say why an image of the gallery was found for an upload."""
        content, name = await image.read(), upload_name(image.filename)

        def work() -> schemas.Explanation:
            embedding = services.embed(content, name)

            def explain_it(view: GalleryView) -> schemas.Explanation:
                hit = view.find(hit_id)[1]
                code = view.codebooks.encode(embedding[None])[0]
                heat = _data_uri(services.heat_png(content, name, hit.code))
                return _explanation(services, view, embedding, code, hit, query_heat=heat)

            return services.views.read(explain_it)

        return answer(await services.uploads.run(work))

    return router


def explain_named(
    services: Services, view: GalleryView, hit_id: str, *, query_id: str | None, code: str | None
) -> schemas.Explanation:
    """Explain a hit of a search by id or by code; exactly one of the two is given."""
    if (query_id is None) == (code is None):
        raise ConfigError("Give exactly one of query_id and code.")
    hit = view.find(hit_id)[1]
    if code is not None:
        parsed = parse_code(code, view)
        query = view.codebooks.decode(parsed[None])[0]
        note = "Of the query only its code is known: there is no picture to draw a heat map over."
        return _explanation(services, view, query, parsed, hit, note=note)
    record = view.find(query_id or "")[1]
    heat, note = _heat(services, record, hit.code)
    return _explanation(
        services, view, view.query_of(record), record.code, hit, query_heat=heat, note=note
    )


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
    parts = signed_parts(shares)
    hit_heat, hit_note = _heat(services, hit, code)
    notes = [text for text in (note, hit_note, heat_note(services.model)) if text]
    return schemas.Explanation(
        score=float(shares.sum()),
        shares=[
            schemas.CodebookShare(codebook=number, score=score, part=part)
            for number, (score, part) in enumerate(
                zip(shares.tolist(), parts.tolist(), strict=True)
            )
        ],
        query=schemas.HeatMap(heatmap=query_heat),
        hit=schemas.HeatMap(heatmap=hit_heat),
        note=" ".join(dict.fromkeys(notes)),
    )


def _heat(services: Services, record: Record, code: CodeArray) -> tuple[str | None, str]:
    """Return the heat map of an image of the gallery, or why there is none."""
    try:
        content = read_file(record)
        return _data_uri(services.heat_png(content, record.id, code)), ""
    except (UnknownNameError, BadImageError) as error:
        return None, str(error)


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
