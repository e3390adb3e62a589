"""What runs on the nodes of a cluster: stretches of images in, records with codes out.

This module is imported inside Ray alone, and by `phpq.cluster.encoding` to send it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from phpq.errors import ConfigError
from phpq.gallery.check import MODEL
from phpq.gallery.encoding import Encoded, ModelEncoder, encode_known


@dataclass(frozen=True, slots=True)
class Work:
    """What every actor is told.

    Attributes:
        folder: The gallery, on storage that all nodes see.
        batch_size: Images that the model sees at once.
        keep_embeddings: Put float16 embeddings into the records.
        device: As `phpq.load` takes it.
        threads: That decode, and compute on a CPU.
    """

    folder: str
    batch_size: int
    keep_embeddings: bool
    device: str
    threads: int


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Images that follow each other in a source, encoded.

    Attributes:
        batches: What became of each batch.
    """

    batches: tuple[list[Encoded], ...]


class EncodingActor:
    """Holds the model of a gallery and encodes stretches of a source.

    Args:
        work: What to do.
        stretches: Ray references to lists of images with what is stored of them.
    """

    def __init__(self, work: Work, stretches: Sequence[Any]) -> None:
        self._work = work
        self._stretches = stretches
        self._encoder: ModelEncoder | None = None

    def __call__(self, tickets: dict[str, Any]) -> dict[str, Any]:
        """Encode the stretches of these numbers.

        Args:
            tickets: {"number": (n,) int}.

        Returns:
            {"number": (n,) int, "stretch": (n,) `Stretch`}.
        """
        import ray

        # Loaded here, and not when the actor is made: an error comes back as what it is.
        self._encoder = self._encoder or _load(self._work)
        done = np.empty(len(tickets["number"]), dtype=object)
        for place, number in enumerate(tickets["number"]):
            images = ray.get(self._stretches[int(number)])
            batches = encode_known(
                images,
                self._encoder,
                keep_embeddings=self._work.keep_embeddings,
                workers=self._work.threads,
            )
            done[place] = Stretch(
                tuple([_light(encoded) for encoded in batch] for batch in batches)
            )
        return {"number": tickets["number"], "stretch": done}


def _load(work: Work) -> ModelEncoder:
    import torch

    from phpq.model import load

    folder = Path(work.folder) / MODEL
    if not folder.is_dir():
        import socket

        raise ConfigError(
            f"The gallery {work.folder!r} is not to be seen on {socket.gethostname()!r}. Put it "
            "where all machines of the cluster find it under the same name, as on NFS."
        )
    torch.set_num_threads(work.threads)
    return ModelEncoder(load(folder, device=work.device), work.batch_size)


def _light(encoded: Encoded) -> Encoded:
    """Leave out pixels: they were looked at, and the way back is long."""
    return replace(encoded, item=replace(encoded.item, image=b""))
