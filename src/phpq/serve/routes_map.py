"""The gallery as a whole: its map, the use of its codebooks, the images behind a codeword."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from phpq.errors import UnknownNameError
from phpq.serve import schemas
from phpq.serve.answers import answer, thumbnail_address
from phpq.serve.services import Services
from phpq.serve.settings import MAX_MAP
from phpq.serve.snapshot import Snapshot


def map_routes(services: Services) -> APIRouter:
    """Return the routes that show the gallery as a whole."""
    router = APIRouter(tags=["explain"], responses=schemas.ERRORS)

    @router.get("/map", response_model=schemas.Map)
    async def gallery_map(
        limit: Annotated[int, Query(ge=1, le=MAX_MAP, description="Most points.")] = 2000,
    ) -> Response:
        """Draw the gallery in two dimensions; of more images a sample is taken."""

        def work(snapshot: Snapshot) -> schemas.Map:
            return snapshot.remember(("map", limit), lambda: draw_map(snapshot, limit))

        return answer(await services.searches.run(services.read, work))

    @router.get("/codebooks", response_model=schemas.Codebooks)
    async def codebooks(
        limit: Annotated[int, Query(ge=0, le=256, description="Codewords of each.")] = 256,
    ) -> Response:
        """Say how the gallery uses its codebooks, with the codewords that most images have."""

        def work(snapshot: Snapshot) -> schemas.Codebooks:
            return snapshot.remember(("codebooks", limit), lambda: describe_use(snapshot, limit))

        return answer(await services.searches.run(services.read, work))

    @router.get("/codebooks/{codebook}/{word}", response_model=schemas.WordImages)
    async def images_of_word(
        codebook: Annotated[int, Path(ge=0, le=1 << 20)],
        word: Annotated[int, Path(ge=0, le=255)],
        limit: Annotated[int, Query(ge=1, le=500, description="Most images.")] = 60,
    ) -> Response:
        """Show the images behind a codeword."""

        def work(snapshot: Snapshot) -> schemas.WordImages:
            return list_images(snapshot, codebook, word, limit)

        return answer(await services.searches.run(services.read, work))

    return router


def draw_map(snapshot: Snapshot, limit: int) -> schemas.Map:
    """Project the codes of a sample."""
    from phpq.explain import project_codes, sample_rows

    places = sample_rows(len(snapshot), limit=limit)
    points = project_codes(snapshot.codebooks, snapshot.codes[places])
    rows = zip(places.tolist(), snapshot.ids(places), points.tolist(), strict=True)
    return schemas.Map(
        points=[
            schemas.MapPoint(id=name, label=snapshot.label(place), x=x, y=y)
            for place, name, (x, y) in rows
        ],
        method="pca",
        sampled=len(places) < len(snapshot),
    )


def describe_use(snapshot: Snapshot, limit: int) -> schemas.Codebooks:
    """Count the images of every codeword."""
    from phpq.explain import codebook_usage

    usage = codebook_usage(snapshot.codes, snapshot.codebooks.codebook_size)
    return schemas.Codebooks(
        codebooks=[schemas.CodebookUse(**book.to_dict(limit=limit)) for book in usage]
    )


def list_images(snapshot: Snapshot, codebook: int, word: int, limit: int) -> schemas.WordImages:
    """Name the images behind a codeword."""
    from phpq.explain import images_of_codeword

    books, size = snapshot.codebooks.num_codebooks, snapshot.codebooks.codebook_size
    if codebook >= books or word >= size:
        raise UnknownNameError(
            f"There is no codeword {word!r} in codebook {codebook!r}; codebooks are 0 to "
            f"{books - 1}, codewords 0 to {size - 1}."
        )
    found = images_of_codeword(snapshot.codes, codebook, word, codebook_size=size, limit=limit)
    names = zip(found.rows.tolist(), snapshot.ids(found.rows), strict=True)
    images = [
        schemas.WordImage(id=name, label=snapshot.label(place), thumbnail=thumbnail_address(name))
        for place, name in names
    ]
    return schemas.WordImages(images=images, total=found.total)
