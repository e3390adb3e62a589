"""What a grid is run on: a text that names a data set in, a checked `Subject` out.

A subject knows its data set by content, not by place: the same images in another folder or on
another machine give the same keys, so that a grid can be continued elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phpq.config import RunConfig
from phpq.data import Dataset, open_dataset
from phpq.errors import ConfigError
from phpq.recipes import absolute_weights, default_weights, drawn_settings, resolve_config

# Few and small enough for every method to learn two epochs on two cores in three minutes.
SMALL_PLUMAGE = "plumage:species=12,images=10,test=4,size=32"

_FACTS = ("name", "fingerprint", "classes", "gallery", "queries", "weights")
_DRAWN = "plumage:"  # how the sources of drawn birds begin
_OF_DATASET = {"dogs120": ("loss.tau=0.25",)}  # as the paper sets it


@dataclass(frozen=True, slots=True)
class Subject:
    """A data set and the settings that all methods share on it."""

    name: str  # of the data set, as "cub200"
    source: str  # what `open_dataset` opens
    fingerprint: str  # of the ids and labels of both splits
    classes: int
    gallery: int  # training images
    queries: int  # test images
    weights: str  # where backbones start, by content: "none", "hub", or name and checksum
    base: RunConfig  # before any method, code length or seed
    settings: tuple[str, ...]  # those that were asked for: they count more than a method's recipe

    @property
    def pixel_bytes(self) -> int:
        """Bytes of all decoded images."""
        return (self.gallery + self.queries) * 3 * self.base.data.store_size**2

    @property
    def drawn(self) -> str:
        """How the images are drawn; empty for photographs."""
        return self.source if self.source.startswith(_DRAWN) else ""

    def facts(self) -> dict[str, Any]:
        """Return what a result needs to say about its data set, as plain data."""
        return {name: getattr(self, name) for name in (*_FACTS, "drawn")}


def open_subject(
    spec: str | Path,
    *,
    weights: str | None = None,
    settings: Sequence[str] = (),
    epochs: int | None = None,
    home: Path | None = None,
) -> tuple[Subject, Dataset]:
    """Open a data set and put together what all methods share on it.

    Args:
        spec: What `open_dataset` takes; a plain "plumage" is a small one.
        weights: "none", "hub" or a file; by default "hub", and "none" for plumage.
        settings: Texts such as "training.batch_size=64", for every cell.
        epochs: Of every training; None leaves the default.
        home: Where downloads are kept.
    """
    dataset = open_dataset(SMALL_PLUMAGE if spec == "plumage" else spec, home=home)
    facts = {
        "name": dataset.name,
        "fingerprint": _fingerprint(dataset),
        "classes": len(dataset.class_names),
        "gallery": len(dataset.train),
        "queries": len(dataset.test),
        "weights": absolute_weights(weights or default_weights(dataset.source)),
    }
    subject = _subject(facts, dataset.source, settings, epochs)
    return replace(subject, weights=identify_weights(subject.base.model.weights)), dataset


def recall_subject(
    facts: Mapping[str, Any], *, settings: Sequence[str] = (), epochs: int | None = None
) -> Subject:
    """Return a subject by the facts that an earlier command wrote down, without images or weights.

    Settings and epochs are as for `open_subject`.
    """
    # Its weights are not to be read: but rows are named by what the backbone started from.
    return _subject(facts, facts["drawn"], settings, epochs)


def _subject(
    facts: Mapping[str, Any], source: str, settings: Sequence[str], epochs: int | None
) -> Subject:
    asked = (*settings, *(() if epochs is None else (f"training.epochs={epochs}",)))
    drawn: tuple[str, ...] = ()
    if source.startswith(_DRAWN):
        side = re.search(r"size=(\d+)", source)
        drawn = drawn_settings(int(side[1]) if side else 96)
    shared = (*_OF_DATASET.get(facts["name"], ()), *drawn, *asked)
    base = resolve_config(weights=facts["weights"], settings=shared)
    known = {name: facts[name] for name in _FACTS}
    return Subject(**known, source=source, base=base, settings=asked)


def identify_weights(weights: str) -> str:
    """Name a file of weights by its name and content; "none" and "hub" stay as they are."""
    if weights in ("none", "hub"):
        return weights
    path = Path(weights)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"Cannot read the weights {weights!r}: {error.strerror}. "
            "Give a file of weights, 'hub' or 'none' (--weights)."
        ) from error
    return f"{path.name}:{digest[:12]}"


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for split in (dataset.train, dataset.test):
        digest.update(json.dumps([split.ids, split.labels.tolist()]).encode())
    if dataset.source.startswith(_DRAWN):  # its ids do not tell how it is drawn
        digest.update(dataset.source.encode())
    return digest.hexdigest()
