"""Fine-grained image search in a few bytes per image.

    import phpq
    model = phpq.train("birds/", bits=32)         # or phpq.load("runs/birds-32")
    print(phpq.evaluate(model, "birds/").codes.map_percent)
    gallery = phpq.Gallery.create("birds.gallery", model)
    gallery.add("birds/")                         # again: only what is new or has changed
    hits = gallery.search("photo.jpg", top_k=10)  # id, score, label, uri, metadata

The names are loaded when they are first used: `import phpq` alone imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phpq._lazy import exports
from phpq._version import __version__ as __version__

__all__ = [
    "Client",
    "Gallery",
    "Model",
    "PhpqError",
    "RunConfig",
    "evaluate",
    "load",
    "open_dataset",
    "train",
]

if TYPE_CHECKING:
    from phpq.api import evaluate, train
    from phpq.client import Client
    from phpq.config import RunConfig
    from phpq.data import open_dataset
    from phpq.errors import PhpqError
    from phpq.gallery import Gallery
    from phpq.model import Model, load
else:  # a type checker would take any name for known if it saw this
    __getattr__ = exports(
        __name__,
        {
            "phpq.api": "evaluate train",
            "phpq.client": "Client",
            "phpq.config": "RunConfig",
            "phpq.data": "open_dataset",
            "phpq.errors": "PhpqError",
            "phpq.gallery": "Gallery",
            "phpq.model": "Model load",
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
