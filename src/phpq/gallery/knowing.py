"""What a gallery knows of its own doubt: photos or a table of parents in, one commit out.

Probabilities are fitted with the codebooks: those of a gallery's own by images of the gallery that
ask in spaces fitted without them, those of a model by images that it did not learn from. Here they
are fitted anew: by photos that the gallery does not hold, or because other parents say which
answers are right. No code changes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq.additive import (
    LEAST_IMAGES,
    LEAST_KINDS,
    AdditiveCodebooks,
    Calibration,
    CodeKinds,
    calibrated,
    calibrated_codes,
    code_kinds,
    lineage,
)
from phpq.additive.calibrate import HeldOut
from phpq.additive.chances import Chances, told_shares
from phpq.codes import Codebooks, FloatArray
from phpq.errors import ConfigError, DataError
from phpq.gallery._embedded import kept_embeddings
from phpq.gallery._part import find_part
from phpq.gallery.folder import damage_named
from phpq.gallery.ingest import encode_items
from phpq.gallery.owned import read_said, write_codebooks, write_said
from phpq.gallery.shards import part_labels
from phpq.gallery.sources import Source, read_items
from phpq.gallery.store import GalleryStore
from phpq.gallery.verdicts import doubt_of
from phpq.hits import WRONG_AT_MOST

if TYPE_CHECKING:
    from phpq.model import Model

_ROWS = 10_000  # of the gallery that are read
_NEED = f"at least {LEAST_IMAGES} labelled images of at least {LEAST_KINDS} kinds, two of each"
_HEADERS = {("child", "parent"), ("label", "parent")}


def calibrate(store: GalleryStore, load: Callable[[], Model], source: Source) -> dict[str, Any]:
    """Fit probabilities to labelled photos that the gallery does not hold; returns `describe`.

    `load` gives the model that embeds them. Labels that the gallery lacks are as good as others:
    they show what it does not know.
    """
    own = store.manifest.owns_codebooks
    if own and not store.manifest.keep_embeddings:
        raise ConfigError(
            f"The gallery {str(store.folder)!r} keeps no embeddings, which a calibration needs to "
            "leave kinds out. Make one that does (phpq index --own-codebooks)."
        )
    model, made_by = load(), store.manifest.model_fingerprint
    held_out = _embedded(store, model, source)
    with store.changing():
        if store.manifest.model_fingerprint != made_by:
            raise ConfigError("The gallery got another model meanwhile. Calibrate it again.")
        if own:
            books = calibrated(store.own_codebooks(), *_rows(store), held_out)
            _check_known(books.chances, held_out)
            _commit(store, books)
        else:
            kinds = calibrated_codes(_code_kinds(store, model.codebooks), held_out)
            _check_known(kinds.chances, held_out)
            _say(store, kinds.said)
    return describe(store)


def _check_known(chances: Chances | None, held_out: HeldOut) -> None:
    if chances is None:
        raise DataError(
            f"{len(held_out[1])} photos do not suffice to tell how likely answers are: "
            f"{_NEED}, of kinds of the gallery, are needed. Nothing was changed."
        )


def set_parents(store: GalleryStore, parents: Mapping[str, str] | Sequence[str]) -> dict[str, Any]:
    """Say what labels belong to, as in {"Yellow Warbler": "Warbler"}; returns `describe`.

    Or name the metadata columns that say it, the nearest first: ["genus", "family"]. A parent may
    have a parent. It takes the place of what was said before; {} takes it away. Codebooks of its
    own are calibrated anew; with those of a model a parent needs what a kind needs, until photos
    tell more (`calibrate`).
    """
    with store.changing():
        if not isinstance(parents, Mapping):
            parents = column_parents(store, parents)
        if not store.manifest.owns_codebooks:
            check_parents(parents, set(_label_counts(store)))
            said = read_said(store.folder, store.manifest)
            chances = said.chances and said.chances.of_classes()
            _say(store, replace(said, chances=chances, parents=dict(parents)))
            return describe(store)
        books = store.own_codebooks()
        check_parents(parents, set(books.class_names))
        books = replace(books, parents=dict(parents))
        if store.manifest.keep_embeddings:
            books = calibrated(books, *_rows(store))
        _commit(store, books)
    return describe(store)


def check_parents(parents: Mapping[str, str], labels: set[str]) -> None:
    """Raise a `ConfigError` unless every child is a label or a parent, and nothing its own."""
    known = labels | set(parents.values())
    strange = sorted(set(parents) - known)
    if strange:
        raise ConfigError(
            f"{strange[0]!r} is neither a label of the gallery nor a parent of one"
            f"{f' ({len(strange)} such names)' if len(strange) > 1 else ''}. Spell names as the "
            "gallery does. Nothing was changed."
        )
    for child, parent in parents.items():
        if not child or not parent:
            raise ConfigError("A label or parent must not be empty. Nothing was changed.")
        if child in (parent, *lineage(parent, parents)):
            raise ConfigError(
                f"{child!r} would belong to itself, by way of {parent!r}. A table of parents must "
                "have no circle. Nothing was changed."
            )


def column_parents(store: GalleryStore, columns: Sequence[str]) -> dict[str, str]:
    """Return what metadata columns say that labels belong to, the nearest column first.

    An empty cell ends what a row says; a kind that is its own genus belongs to the genus's parent.
    """
    names = store.metadata_columns
    for column in columns:
        if column not in names:
            listed = ", ".join(names) or "none, for metadata come from an indexed table"
            raise ConfigError(f"The gallery has no column {column!r}. Its columns: {listed}.")
    parents: dict[str, str] = {}
    with damage_named(store.folder):
        for batch in store.dataset.to_batches(columns=["label", *columns]):
            for row in batch.to_pylist():
                cells = (row[name] for name in ("label", *columns))
                given = takewhile(lambda cell: cell not in (None, ""), cells)
                line = dict.fromkeys(str(cell).strip() for cell in given)
                for child, parent in pairwise(line):
                    if parents.setdefault(child, parent) != parent:
                        raise DataError(
                            f"The columns {', '.join(columns)} give {child!r} two parents, "
                            f"{parents[child]!r} and {parent!r}. A label has one. Correct the "
                            "table and index it again, or give a FILE.csv. Nothing was changed."
                        )
    return parents


def read_parents(path: Path) -> dict[str, str]:
    """Read a CSV file with lines `label,parent`; a first line of these words is left out."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"The table of parents {str(path)!r} cannot be read: {said}.") from error
    if lines and tuple(cell.lower() for cell in lines[0]) in _HEADERS:
        lines = lines[1:]
    parents: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if len(line) != 2 or not all(line):
            raise DataError(
                f"{str(path)!r} has {line!r} as its entry {number}; expected two names: "
                "label,parent."
            )
        if parents.get(line[0], line[1]) != line[1]:
            raise DataError(
                f"{str(path)!r} gives {line[0]!r} two parents, {parents[line[0]]!r} and "
                f"{line[1]!r}. A label has one; that one may have a parent too."
            )
        parents[line[0]] = line[1]
    return parents


def describe(store: GalleryStore, wrong_at_most: float = WRONG_AT_MOST) -> dict[str, Any]:
    """Return whether probabilities are known, what they rest on, and what they allow to answer."""
    if store.manifest.owns_codebooks:
        books = store.own_codebooks()
        chances, parents, why_not = books.chances, books.parents, f"{_NEED}, are needed"
        by = "photos" if chances is not None and chances.held_out else "gallery"
    else:
        doubt = doubt_of(store, lambda: _label_counts(store))
        chances, parents, why_not = doubt.said.chances, doubt.said.parents, doubt.why_not
        by = doubt.by or ""
    content: dict[str, Any] = {
        "known": chances is not None,
        "children": len(parents),
        "parents": len(set(parents.values())),
    }
    if chances is None:
        return content | {"why_not": why_not}
    return content | told_shares(chances, wrong_at_most) | {"by": by}


def _commit(store: GalleryStore, books: AdditiveCodebooks) -> None:
    store.describe(replace(store.manifest, books=write_codebooks(store.folder, books)))


def _say(store: GalleryStore, said: Calibration) -> None:
    name = "" if said == Calibration() else write_said(store.folder, said)
    store.describe(replace(store.manifest, chances=name))


def _label_counts(store: GalleryStore) -> dict[str, int]:
    with damage_named(store.folder):
        column = store.dataset.to_table(columns=["label"])["label"].drop_null()
    return {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}


def _code_kinds(store: GalleryStore, books: Codebooks) -> CodeKinds:
    """Return the kinds of a gallery with its model's codebooks, and what these belong to."""
    part = find_part(store)
    names, classes = part_labels(part)
    norm = store.manifest.query_norm
    kinds = code_kinds(books, part.codes(), classes.astype(np.int64), names, norm=norm)
    return replace(kinds, parents=read_said(store.folder, store.manifest).parents)


def _rows(store: GalleryStore) -> tuple[FloatArray, list[str | None]]:
    """Return embeddings and labels of the gallery's rows, or of a sample of them."""
    count = len(store)
    if not count:
        raise ConfigError(f"The gallery {str(store.folder)!r} holds no images yet. Add some.")
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:_ROWS])
    with damage_named(store.folder):
        table = store.dataset.take(chosen.tolist(), columns=["label", "embedding"])
    return kept_embeddings(table), table["label"].to_pylist()


def _embedded(
    store: GalleryStore, model: Model, source: Source
) -> tuple[FloatArray, list[str | None]]:
    """Embed labelled photos; what cannot be read is left out."""
    items = [item for item in read_items(source) if item.label is not None]
    space = store.manifest.space
    batches = encode_items(items, model, keep_embeddings=True, space=space)
    encoded = chain.from_iterable(batches)
    vectors, labels = [], []
    for item, each in zip(items, encoded, strict=True):
        if each.record is not None and each.record.embedding is not None:
            vectors.append(each.record.embedding.astype(np.float32))
            labels.append(item.label)
    if not vectors:
        raise DataError(
            f"No labelled photo in {str(source)!r}. Give a folder with a sub-folder for each kind, "
            "or a table with the columns path and label."
        )
    return np.stack(vectors), labels
