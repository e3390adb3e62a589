"""What requests say of photos, boxes on them, and examples: parts of a form in, embeddings out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import File, Form, UploadFile
from pydantic import BaseModel, Field

from phpq.codes import FloatArray
from phpq.data.boxes import Box, read_box
from phpq.errors import ConfigError
from phpq.gallery.queries import boxes_for
from phpq.gallery.view import GalleryView
from phpq.serve.services import Services
from phpq.serve.settings import MAX_EXAMPLES, MAX_PHOTOS

_BOX = (
    "The part of each photo that is meant, one for each in their order: x0,y0,x1,y1 in pixels of "
    "the upright photo; whole; or auto, for the part that the server suggests."
)
_EXAMPLES = (
    "Ids of images that the hits are to be like; they are no hits themselves.",
    "Ids of images that the hits are not to be like.",
)

Photos = Annotated[
    list[UploadFile], File(description=f"Image files of one thing, at most {MAX_PHOTOS}.")
]
Boxes = Annotated[list[str] | None, Form(description=_BOX)]


class SuggestedBox(BaseModel):
    """The part of a photo that what is asked for seems to be on."""

    box: tuple[float, float, float, float] = Field(description="x0, y0, x1, y1, in pixels.")


@dataclass(frozen=True, slots=True)
class Examples:
    """Images of the gallery that a query is to be like, or not to be like, by id."""

    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()


NO_EXAMPLES = Examples()


def examples_reader(place: Callable[..., Any]) -> Callable[..., Examples]:
    """Return a dependency that reads examples, from a `Query` or a `Form`."""
    more, less = (place(None, max_length=MAX_EXAMPLES, description=text) for text in _EXAMPLES)

    def read(more: list[str] | None = more, less: list[str] | None = less) -> Examples:
        return Examples(tuple(more or ()), tuple(less or ()))

    return read


def upload_name(filename: str | None) -> str:
    """Return what errors call an upload: the name of its file, without folders."""
    name = PurePosixPath((filename or "").replace("\\", "/")).name[:120]
    return name or "uploaded image"


def read_boxes(texts: list[str] | None, count: int) -> list[Box | Literal["auto"] | None]:
    """Read what stands for the boxes of `count` photos."""
    if not texts:
        return [None] * count
    words: dict[str, Literal["auto"] | None] = {"whole": None, "auto": "auto"}
    boxes = [words[text] if text in words else read_box(text) for text in texts]
    boxes_for(tuple(None for _ in boxes), count)
    return boxes


@dataclass(frozen=True, slots=True, eq=False)
class Uploads:
    """Photos of one thing, and the part of each that is meant."""

    contents: tuple[bytes, ...]
    names: tuple[str, ...]
    boxes: tuple[Box | Literal["auto"] | None, ...]

    @classmethod
    async def read(cls, images: list[UploadFile], boxes: list[str] | None) -> Uploads:
        """Take photos and boxes out of a form; a `ConfigError` if they do not fit together."""
        if len(images) > MAX_PHOTOS:
            raise ConfigError(
                f"The query has {len(images)} photos; at most {MAX_PHOTOS} are allowed in one. Ask "
                "for different things one after the other, or with /search/batch."
            )
        chosen = tuple(read_boxes(boxes, len(images)))
        contents = tuple([await image.read() for image in images])
        return cls(contents, tuple(upload_name(image.filename) for image in images), chosen)

    def embed(self, services: Services, view: GalleryView) -> tuple[FloatArray, list[Box | None]]:
        """Return embeddings (n, D), and the boxes, suggested ones too."""
        boxes: list[Box | None] = []
        rows = []
        for content, name, box in zip(self.contents, self.names, self.boxes, strict=True):
            boxes.append(services.suggest(view, content, name) if box == "auto" else box)
            rows.append(services.embed(view, content, name, boxes[-1]))
        return np.stack(rows), boxes
