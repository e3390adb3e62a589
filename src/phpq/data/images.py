"""Labelled images: what every source yields and what everything downstream reads.

A source (folder, table, benchmark, synthetic plumage) becomes a `Dataset` of two `LabelledImages`,
each a list of ids and labels with a reader that opens one image at a time. Splits depend on
hashes of ids and the seed, not on positions: a new image moves at most one old one to the other
split.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from phpq.config import DataConfig
from phpq.errors import DataError

TEST_SHARE = 0.2  # of a class, where a source has no split


class ImageReader(Protocol):
    """Opens images by position; picklable: worker processes hold a copy. May have `path(index)`."""

    def read(self, index: int) -> Image.Image:
        """Return image `index` in mode RGB; a `BadImageError` names one that cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """N images with a class each; any selection is again such a set. A class may be empty."""

    name: str  # for messages and reports, as in "birds/train"
    ids: tuple[str, ...]  # N, unique; for files the path relative to the data set's root
    labels: NDArray[np.int64]  # (N,) positions in `class_names`; read-only
    class_names: tuple[str, ...]
    reader: ImageReader
    positions: NDArray[np.int64] | None = None  # (N,) positions in `reader`; None: the first N

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.int64)
        labels.flags.writeable = False
        object.__setattr__(self, "labels", labels)
        if labels.shape != (len(self.ids),):
            raise DataError(
                f"{self.name!r} has {len(self.ids)} ids but labels of shape {labels.shape}; "
                "give one label per image."
            )
        for what, names in (("id", self.ids), ("class", self.class_names)):
            if len(set(names)) < len(names):
                repeated = [name for name, count in Counter(names).items() if count > 1]
                raise DataError(
                    f"{self.name!r} has {named(repeated, what)} more than once. "
                    "Names must be unique: remove or rename the repeated ones."
                )
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.class_names):
            raise DataError(
                f"{self.name!r} has labels from {labels.min()} to {labels.max()}, but there are "
                f"{len(self.class_names)} class names: labels go from 0 to "
                f"{len(self.class_names) - 1}."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> Image.Image:
        """Return image `index` in mode RGB; a `BadImageError` names the image."""
        return self.reader.read(self.position(index))

    def path(self, index: int) -> Path | None:
        """Return the file of image `index`, or None if it does not come from a file."""
        find: Callable[[int], Path] | None = getattr(self.reader, "path", None)
        return find(self.position(index)) if find else None

    def position(self, index: int) -> int:
        """Return the position of image `index` in the reader."""
        return index if self.positions is None else int(self.positions[index])

    def subset(self, indices: ArrayLike) -> LabelledImages:
        """Select by (n,) distinct positions, in the order wanted, or by an (N,) bool mask."""
        wanted = np.asarray(indices)
        if wanted.dtype == np.bool_:
            wanted = np.flatnonzero(wanted)
        wanted = wanted.astype(np.int64).reshape(-1)
        ids = tuple(self.ids[i] for i in wanted)
        positions = wanted if self.positions is None else self.positions[wanted]
        return replace(self, ids=ids, labels=self.labels[wanted], positions=positions)

    def class_sizes(self) -> NDArray[np.int64]:
        """Return (C,) int64, the images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """A training split, which is also the gallery, and a test split of queries.

    There are two classes or more, every class has training images, and no image is in both splits.
    A class may have no test image, but the test split is not empty.
    """

    name: str  # for messages, reports and folder names
    train: LabelledImages
    test: LabelledImages
    source: str = ""  # by which `open_dataset` opens it again; empty if it cannot

    def __post_init__(self) -> None:
        names, others = self.train.class_names, self.test.class_names
        if names != others:
            sides = {"train": set(names) - set(others), "test": set(others) - set(names)}
            seen = [
                f"{named(sorted(only), 'class')} only in {split}"
                for split, only in sides.items()
                if only
            ]
            raise DataError(
                f"The splits of {self.name!r} have different classes: "
                f"{'; '.join(seen) or 'the same names in another order'}. "
                "Both splits need the same class names."
            )
        for split, images in (("train", self.train), ("test", self.test)):
            if not len(images):
                raise DataError(
                    f"The {split} split of {self.name!r} is missing or empty. Learning needs "
                    "images of every class in train, and evaluation needs queries in test."
                )
        if len(names) < 2:
            raise DataError(
                f"{self.name!r} has one class only ({names[0]!r}). "
                "Learning to tell classes apart needs at least two."
            )
        empty = [names[c] for c in np.flatnonzero(self.train.class_sizes() == 0)]
        if empty:
            raise DataError(
                f"{self.name!r} has {named(empty, 'class')} without a training image. "
                "Add images to them or remove them."
            )
        shared = sorted(set(self.train.ids) & set(self.test.ids))
        if shared:
            raise DataError(
                f"{self.name!r} has {named(shared, 'id')} in both train and test. "
                "An image may be on one side only, or the evaluation means nothing."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The C class names, the same for both splits."""
        return self.train.class_names


def hold_out(dataset: Dataset, per_class: int, *, seed: int) -> Dataset:
    """Split the training split alone, for choosing settings without the test split.

    `per_class` images of each class become the queries; another seed draws others.
    """
    train = dataset.train
    if per_class < 1:
        raise DataError(f"per_class={per_class} must be at least 1.")
    small = [dataset.class_names[c] for c in np.flatnonzero(train.class_sizes() <= per_class)]
    if small:
        raise DataError(
            f"Cannot hold out {per_class} images per class of {train.name!r}: "
            f"{named(small, 'class')} with fewer than {per_class + 1} training images. "
            "Hold out fewer."
        )
    counts = np.full(len(dataset.class_names), per_class, dtype=np.int64)
    drawn = draw_per_class(train.ids, train.labels, counts, seed=seed)
    return split_by_mask(replace(train, name=f"{dataset.name}-holdout"), drawn)


class HeldOutClasses(NamedTuple):
    """A data set split into learned and unseen classes."""

    learned: Dataset  # of the first classes; labels are those of the whole data set
    unseen_train: LabelledImages  # of the other classes, with the class names and labels of all
    unseen_test: LabelledImages


def hold_out_classes(dataset: Dataset, share: float, *, learn_all: bool = False) -> HeldOutClasses:
    """Hold out the last `share` of the classes, in the order of the data set, from training.

    0.5 is the usual half of metric learning. `learn_all` also learns the test images of learned
    classes, as metric learning does, except for one per class, which a run needs as queries.
    """
    train, test, count = dataset.train, dataset.test, learned_classes(dataset, share)
    names, old, known = dataset.class_names, train.labels < count, test.labels < count
    learned = [
        replace(images.subset(mask), class_names=names[:count])
        for images, mask in ((train, old), (test, known))
    ]
    if learn_all:
        sizes = np.minimum(learned[1].class_sizes(), 1)
        queries = draw_per_class(learned[1].ids, learned[1].labels, sizes, seed=0)
        learned = [_joined(learned[0], learned[1].subset(~queries)), learned[1].subset(queries)]
    if not len(learned[1]):
        raise DataError(
            f"None of the {count} classes of {dataset.name!r} that are learned has a test image, "
            "and evaluation needs queries. Hold out another share of the classes."
        )
    kept = replace(dataset, train=learned[0], test=learned[1])
    # Under names of their own: caches keep one set of images for each.
    unseen = (
        replace(images.subset(mask), name=f"{images.name}-unseen")
        for images, mask in ((train, ~old), (test, ~known))
    )
    return HeldOutClasses(kept, *unseen)


def learned_classes(dataset: Dataset, share: float) -> int:
    """Return how many classes, the first ones, are learned if a `share` is held out."""
    classes = len(dataset.class_names)
    if not 0 < share < 1:
        raise DataError(f"A share of {share} of the classes cannot be held out: say 0.5 or 0.05.")
    learned = classes - max(1, int(classes * share + 0.5))
    if learned < 2:
        raise DataError(
            f"Holding out {share:g} of the {classes} classes of {dataset.name!r} leaves {learned} "
            "to learn; at least two are needed. Hold out a smaller share."
        )
    return learned


def learned_part(dataset: Dataset, config: DataConfig) -> Dataset:
    """Return the training images and queries of a run with these settings; the source stays.

    They are the data set itself, unless classes or images are held out.
    """
    part = dataset
    if config.holdout_classes:
        learn_all = config.learned_images == "all"
        part = hold_out_classes(dataset, config.holdout_classes, learn_all=learn_all).learned
    if config.holdout_per_class:
        part = hold_out(part, config.holdout_per_class, seed=0)
    return replace(part, source=dataset.source)


class Splits(NamedTuple):
    """A gallery and queries, of any classes."""

    train: LabelledImages
    test: LabelledImages


def unseen_split(dataset: Dataset, config: DataConfig) -> Splits:
    """Return gallery and queries of the classes that a run with these settings holds out.

    The queries are their test images. If there are none, or the run does not use the test split,
    they are drawn from the training images, of which each class keeps at least one.
    """
    held = hold_out_classes(dataset, config.holdout_classes)
    per_class = config.holdout_per_class or (0 if len(held.unseen_test) else 1)
    if not per_class:
        return Splits(held.unseen_train, held.unseen_test)
    train = held.unseen_train
    counts = np.minimum(per_class, np.maximum(train.class_sizes() - 1, 0))
    drawn = draw_per_class(train.ids, train.labels, counts, seed=0)
    return Splits(train.subset(~drawn), train.subset(drawn))


@dataclass(frozen=True, slots=True)
class _TwoReaders:
    """Reads the images of two sets as one."""

    first: LabelledImages
    second: LabelledImages

    def read(self, index: int) -> Image.Image:
        images, place = self._find(index)
        return images.read(place)

    def path(self, index: int) -> Path | None:
        images, place = self._find(index)
        return images.path(place)

    def _find(self, index: int) -> tuple[LabelledImages, int]:
        before = len(self.first)
        return (self.first, index) if index < before else (self.second, index - before)


def _joined(first: LabelledImages, second: LabelledImages) -> LabelledImages:
    """Concatenate two sets of the same classes, under the name of the first."""
    labels = np.concatenate([first.labels, second.labels])
    reader = _TwoReaders(first, second)
    return LabelledImages(first.name, first.ids + second.ids, labels, first.class_names, reader)


def split_by_hash(images: LabelledImages, *, seed: int) -> Dataset:
    """Split images into train and test: a fifth of each class becomes the test split."""
    in_test = test_mask(images.ids, images.labels, images.class_names, seed=seed)
    return split_by_mask(images, in_test)


def split_by_mask(images: LabelledImages, in_test: NDArray[np.bool_]) -> Dataset:
    """Split N images by an (N,) mask, true for the test split; the name stays."""
    train = replace(images.subset(~in_test), name=f"{images.name}/train")
    test = replace(images.subset(in_test), name=f"{images.name}/test")
    return Dataset(images.name, train=train, test=test)


def hash_order(ids: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return (N,) int64, the positions of N unique ids in the order of their keyed hashes."""
    key = str(seed).encode()

    def digest(position: int) -> bytes:
        # A file name need not be valid UTF-8; Python then carries its bytes as surrogates.
        text = ids[position].encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, key=key, digest_size=16).digest()

    return np.array(sorted(range(len(ids)), key=digest), dtype=np.int64)


def spread(total: int, count: int) -> NDArray[np.int64]:
    """Return at most `count` of `total` positions, spread evenly from the first to the last."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def draw_per_class(
    ids: Sequence[str], labels: NDArray[np.int64], counts: NDArray[np.int64], *, seed: int
) -> NDArray[np.bool_]:
    """Draw `counts[c]` of N images of each class c: (N,) bool, true for the images drawn."""
    drawn = np.zeros(len(ids), dtype=np.bool_)
    left = counts.copy()
    for position in hash_order(ids, seed):
        if left[labels[position]] > 0:
            drawn[position] = True
            left[labels[position]] -= 1
    return drawn


def test_mask(
    ids: Sequence[str], labels: NDArray[np.int64], class_names: Sequence[str], *, seed: int
) -> NDArray[np.bool_]:
    """Choose a fifth of each class, at least one image, as the test split: (N,) bool."""
    sizes = np.bincount(labels, minlength=len(class_names))
    lonely = [class_names[c] for c in np.flatnonzero(sizes == 1).tolist()]
    if lonely:
        raise DataError(
            f"No split was given, and {named(lonely, 'class')} with one image only cannot be split "
            "into train and test. Add images to them, remove them, or give a split yourself "
            "(folders train/ and test/, or a column 'split')."
        )
    counts = np.maximum(1, np.rint(sizes * TEST_SHARE)).astype(np.int64)
    return draw_per_class(ids, labels, counts, seed=seed)


def named(names: Sequence[str], what: str) -> str:
    """Count and list names for a message, at most ten of them: "2 classes ('a', 'b')"."""
    shown = ", ".join(repr(name) for name in names[:10])
    more = f", and {len(names) - 10} more" if len(names) > 10 else ""
    plural = {"class": "classes"}.get(what, f"{what}s")
    return f"{len(names)} {what if len(names) == 1 else plural} ({shown}{more})"
