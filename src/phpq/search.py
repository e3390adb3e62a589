"""Search over an evaluated run: images in, their nearest images of the gallery out.

The gallery is what `phpq evaluate` left in the run folder: codes of the training split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.codes import FloatArray, IntArray, score_codes
from phpq.errors import ConfigError, FormatError
from phpq.evaluation.run import FOLDER
from phpq.evaluation.snapshot import GallerySnapshot, read_snapshot
from phpq.files import write_bytes, write_json
from phpq.index import CodeIndex

if TYPE_CHECKING:
    from phpq.model import Model


@dataclass(frozen=True, slots=True)
class Hit:
    """One image of the gallery.

    Attributes:
        rank: From 1.
        score: Sum of M inner products of unit sub-vectors; M at most, higher is better.
        label: Its class.
        id: Its name in the data set.
        path: Its file; None if it comes from no file.
    """

    rank: int
    score: float
    label: str
    id: str
    path: str | None


@dataclass(frozen=True, slots=True)
class QueryHits:
    """What was found for one image.

    Attributes:
        query: The image, as it was named.
        hits: Best first; equal scores in the order of the gallery.
        label: The class with the largest share of the hits.
        share: That share, 0 to 1. Images that tie for the last places count in part, listed or
            not, so that the order of the gallery decides nothing.
        more_ties: Images that are not listed but score as much as the last hit.
    """

    query: str
    hits: tuple[Hit, ...]
    label: str
    share: float
    more_ties: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "query": self.query,
            "label": self.label,
            "share": self.share,
            "more_ties": self.more_ties,
            "hits": [
                {
                    "rank": hit.rank,
                    "score": hit.score,
                    "label": hit.label,
                    "id": hit.id,
                    "path": hit.path,
                }
                for hit in self.hits
            ],
        }


def search_run(
    run: Path, images: Sequence[str | Path], *, top_k: int = 10, device: str = "auto"
) -> tuple[QueryHits, ...]:
    """Find the gallery images nearest to each query image.

    Args:
        run: A run folder with an evaluation.
        images: Files.
        top_k: Hits a query, at least 1; fewer where the gallery is smaller.
        device: "auto" takes CUDA where there is one.

    Raises:
        NotTrainedError: If the run was not evaluated yet.
        FormatError: If the codes are those of another model.
        BadImageError: If a query cannot be read; the message names it.
    """
    if top_k < 1:
        raise ConfigError(f"top_k={top_k} is not allowed: it must be at least 1.")
    model, snapshot = _open_evaluated(run, device)
    embeddings = model.embed([Path(image) for image in images])
    norm = model.query_norm
    wanted = min(top_k, len(snapshot))
    result = CodeIndex(model.codebooks, snapshot.codes).search(embeddings, wanted, query_norm=norm)
    tables = model.codebooks.lookup_tables(embeddings, norm=norm)
    return tuple(
        _query_hits(
            str(image),
            snapshot,
            rows=result.ids[number],
            scores=score_codes(tables[number : number + 1], snapshot.codes)[0],
        )
        for number, image in enumerate(images)
    )


def run_to_faiss(run: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the coded gallery of an evaluated run as a `faiss.IndexPQ`, and the id of each row."""
    from phpq.index import to_faiss

    model, snapshot = _open_evaluated(run, "cpu")
    return to_faiss(model.codebooks, snapshot.codes), snapshot.ids


def write_faiss(index: Any, ids: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Write a faiss index, and the id of each row beside it.

    Args:
        index: Any faiss index.
        ids: One a row.
        path: Of the index.

    Returns:
        The paths of the index and of the JSON list of ids.
    """
    import faiss

    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {str(path.parent)!r} to write to. Make it first.")
    write_bytes(path, faiss.serialize_index(index).tobytes())
    names = path.with_name(f"{path.name}.ids.json")
    write_json(names, {"ids": list(ids)})
    return path, names


def _open_evaluated(run: Path, device: str) -> tuple[Model, GallerySnapshot]:
    """Return the model of a run and the gallery that it coded."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    read_card(run)  # names a missing folder; `load` would look for it on the hub
    model = load(run, device=device)
    remedy = f"Make it with: phpq evaluate {run}"
    snapshot = read_snapshot(run / FOLDER, remedy=remedy)
    if snapshot.fingerprint != model.fingerprint():
        raise FormatError(
            f"The codes in {str(run / FOLDER)!r} were made by another model than the one in "
            f"{str(run)!r} now: it was trained again since. {remedy}"
        )
    return model, snapshot


def _query_hits(
    query: str, snapshot: GallerySnapshot, *, rows: IntArray, scores: FloatArray
) -> QueryHits:
    """Name the hits `rows` (k,) of one query and their winner; `scores` (N,) are of all rows."""
    hits = tuple(
        Hit(
            rank=rank,
            score=float(scores[row]),
            label=snapshot.class_names[int(snapshot.labels[row])],
            id=snapshot.ids[row],
            path=snapshot.paths[row],
        )
        for rank, row in enumerate(rows.tolist(), start=1)
    )
    least = scores[rows].min()
    better, tied = scores > least, scores == least
    places = len(rows) - int(better.sum())  # left to the tied
    weights = better + tied * (places / int(tied.sum()))
    shares = np.bincount(snapshot.labels, weights) / len(rows)
    return QueryHits(
        query=query,
        hits=hits,
        label=snapshot.class_names[int(shares.argmax())],
        share=float(shares.max()),
        more_ties=int(tied.sum()) - places,
    )
