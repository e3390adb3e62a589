"""The gallery as a whole: its map, the use of its codebooks, the images behind a codeword."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from phpq.errors import UnknownNameError
from phpq.gallery.view import GalleryView
from phpq.serve import schemas
from phpq.serve.answers import answer, thumbnail_address
from phpq.serve.services import Services
from phpq.serve.settings import MAX_MAP


def map_routes(services: Services) -> APIRouter:
    """Return the routes that show the gallery as a whole."""
    router = APIRouter(tags=["explain"], responses=schemas.ERRORS)

    @router.get("/map", response_model=schemas.Map)
    async def gallery_map(
        limit: Annotated[int, Query(ge=1, le=MAX_MAP, description="Most points.")] = 2000,
    ) -> Response:
        """Draw the gallery in two dimensions; of more images a sample is taken."""

        def work(view: GalleryView) -> schemas.Map:
            return view.remember(("map", limit), lambda: draw_map(view, limit))

        return answer(await services.searches.run(services.views.read, work))

    @router.get("/codebooks", response_model=schemas.Codebooks)
    async def codebooks(
        limit: Annotated[int, Query(ge=0, le=256, description="Codewords of each.")] = 256,
    ) -> Response:
        """Say how the gallery uses its codebooks, with the codewords that most images have."""

        def work(view: GalleryView) -> schemas.Codebooks:
            return view.remember(("codebooks", limit), lambda: describe_use(view, limit))

        return answer(await services.searches.run(services.views.read, work))

    @router.get("/codebooks/{codebook}/{word}", response_model=schemas.WordImages)
    async def images_of_word(
        codebook: Annotated[int, Path(ge=0, le=1 << 20)],
        word: Annotated[int, Path(ge=0, le=255)],
        limit: Annotated[int, Query(ge=1, le=500, description="Most images.")] = 60,
    ) -> Response:
        """Show the images behind a codeword."""

        def work(view: GalleryView) -> schemas.WordImages:
            return list_images(view, codebook, word, limit)

        return answer(await services.searches.run(services.views.read, work))

    return router


def draw_map(view: GalleryView, limit: int) -> schemas.Map:
    """Project the codes of a sample."""
    from phpq.explain import project_codes, sample_rows

    places = sample_rows(len(view), limit=limit)
    images = view.glances(places)
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
