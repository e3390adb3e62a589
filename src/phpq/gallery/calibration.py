"""Calibrates a gallery again: photos or a table of parents in, one commit out.

Codebooks come with a first calibration: a gallery's own are cross-validated on its images, those of
a model use images that it did not learn from. Here it is replaced, by one fitted to photos outside
the gallery, or because other parents change which answers are right. No code changes.
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
    MIN_CLASSES,
    MIN_IMAGES,
    AdditiveCodebooks,
    Calibration,
    CodeClassifier,
    ProbabilityModel,
    ancestors,
    calibrate_additive,
    calibrate_codes,
)
from phpq.additive.calibrate import HeldOut
from phpq.codes import Codebooks, FloatArray
from phpq.errors import ConfigError, DataError
from phpq.gallery._embedded import kept_embeddings
from phpq.gallery._part import find_part
from phpq.gallery.folder import damage_named
from phpq.gallery.ingest import encode_items
from phpq.gallery.owned import read_calibration, write_calibration, write_codebooks
from phpq.gallery.shards import part_labels
from phpq.gallery.sources import Source, read_items
from phpq.gallery.store import GalleryStore
from phpq.gallery.verdicts import find_calibration

if TYPE_CHECKING:
    from phpq.model import Model

_ROWS = 10_000  # of the gallery that are read
_NEEDED = f"at least {MIN_IMAGES} labelled images of at least {MIN_CLASSES} kinds, two of each"
_HEADERS = {("child", "parent"), ("label", "parent")}


def calibrate(store: GalleryStore, load: Callable[[], Model], source: Source) -> dict[str, Any]:
    """Fit probabilities to labelled photos that the gallery does not hold; returns `describe`.

    `load` gives the model that embeds them. Labels outside the gallery are welcome: their photos
    stand for the unknown.
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
            books = calibrate_additive(store.own_codebooks(), *_rows(store), held_out)
            _check_fitted(books.probabilities, held_out)
            _commit_codebooks(store, books)
        else:
            classifier = calibrate_codes(_code_classifier(store, model.codebooks), held_out)
            _check_fitted(classifier.probabilities, held_out)
            _commit_calibration(store, classifier.calibration)
    return describe(store)


def _check_fitted(probabilities: ProbabilityModel | None, held_out: HeldOut) -> None:
    if probabilities is None:
        raise DataError(
            f"{len(held_out[1])} photos do not suffice to tell how likely answers are: "
            f"{_NEEDED}, of kinds of the gallery, are needed. Nothing was changed."
        )


def set_parents(store: GalleryStore, parents: Mapping[str, str] | Sequence[str]) -> dict[str, Any]:
    """Set the parents of labels, as in {"Yellow Warbler": "Warbler"}; returns `describe`.

    Or name the metadata columns that hold them, the nearest first: ["genus", "family"]. A parent
    may have a parent. Earlier parents are replaced; {} removes them. Codebooks of the gallery's own
    are calibrated again if it keeps embeddings. Otherwise parents use the cut-offs of kinds until
    the next `calibrate`.
    """
    with store.changing():
        if not isinstance(parents, Mapping):
            parents = column_parents(store, parents)
        if not store.manifest.owns_codebooks:
            check_parents(parents, set(store.label_counts()))
            old = read_calibration(store.folder, store.manifest)
            fitted = old.probabilities and old.probabilities.without_parents()
            new = replace(old, probabilities=fitted, parents=dict(parents))
            _commit_calibration(store, new)
            return describe(store)
        books = store.own_codebooks()
        check_parents(parents, set(books.class_names))
        fitted = books.probabilities and books.probabilities.without_parents()
        books = replace(books, probabilities=fitted, parents=dict(parents))
        if store.manifest.keep_embeddings:
            books = calibrate_additive(books, *_rows(store))
        _commit_codebooks(store, books)
    return describe(store)


def check_parents(parents: Mapping[str, str], labels: set[str]) -> None:
    """Raise a `ConfigError` unless every child is a label or a parent, and there is no cycle."""
    known = labels | set(parents.values())
    unknown = sorted(set(parents) - known)
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is neither a label of the gallery nor a parent of one"
            f"{f' ({len(unknown)} such names)' if len(unknown) > 1 else ''}. Spell names as the "
            "gallery does. Nothing was changed."
        )
    for child, parent in parents.items():
        if not child or not parent:
            raise ConfigError("A label or parent must not be empty. Nothing was changed.")
        if child in (parent, *ancestors(parent, parents)):
            raise ConfigError(
                f"{child!r} would belong to itself, by way of {parent!r}. A table of parents must "
                "have no circle. Nothing was changed."
            )


def column_parents(store: GalleryStore, columns: Sequence[str]) -> dict[str, str]:
    """Return the parents of labels by metadata columns, the nearest column first.

    Cells after an empty one do not count. A kind named like its genus takes the genus's parent.
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
    """Read a CSV file with lines `label,parent`; a header of these words is skipped."""
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


def describe(store: GalleryStore) -> dict[str, Any]:
    """Return whether probabilities are known, what they were fitted to, and their coverage."""
    if store.manifest.owns_codebooks:
        books = store.own_codebooks()
        fitted, parents, why_not = books.probabilities, books.parents, f"{_NEEDED}, are needed"
        by = "photos" if fitted is not None and fitted.held_out else "gallery"
    else:
        found = find_calibration(store, store.label_counts)
        fitted, parents = found.calibration.probabilities, found.calibration.parents
        by, why_not = found.by or "", found.why_not
    content: dict[str, Any] = {
        "known": fitted is not None,
        "children": len(parents),
        "parents": len(set(parents.values())),
    }
    if fitted is None:
        return content | {"why_not": why_not}
    return content | fitted.summary() | {"by": by}


def _commit_codebooks(store: GalleryStore, books: AdditiveCodebooks) -> None:
    store.commit_manifest(replace(store.manifest, books=write_codebooks(store.folder, books)))


def _commit_calibration(store: GalleryStore, new: Calibration) -> None:
    name = "" if new == Calibration() else write_calibration(store.folder, new)
    store.commit_manifest(replace(store.manifest, chances=name))


def _code_classifier(store: GalleryStore, books: Codebooks) -> CodeClassifier:
    """Return the classifier of a gallery with its model's codebooks, not calibrated."""
    part = find_part(store)
    names, classes = part_labels(part)
    norm = store.manifest.query_norm
    classifier = CodeClassifier.from_codes(
        books, part.codes(), classes.astype(np.int64), names, norm=norm
    )
    return replace(classifier, parents=read_calibration(store.folder, store.manifest).parents)


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
    """Embed labelled photos; unreadable ones are left out."""
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
