"""A gallery in, what a person should look at out: copies, labels, outliers, what to label next.

Images are compared by kept embeddings; without any, they are embedded again, and images that are
gone are decoded from their codes. The notes of an audit list its limits. Nothing is changed.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from phpq.additive.codebooks import number_labels, unit_rows
from phpq.audit.copies import Grey, connected_groups, grey_copy, is_copy, near_pairs, nearest
from phpq.audit.labels import LEAST_ROWS, LabelErrors, find_label_errors
from phpq.audit.rows import Rows, open_store, read_rows, read_whitening, undo_whitening
from phpq.codes import FloatArray, IntArray
from phpq.data.decode import read_ahead, read_image
from phpq.data.places import content_hash, origin_at
from phpq.errors import BadImageError
from phpq.files import read_json, write_json
from phpq.gallery.ingest import Progress
from phpq.gallery.models import load_model
from phpq.gallery.store import GalleryStore
from phpq.gallery.view import GalleryView, Page

if TYPE_CHECKING:
    from phpq.model import Model

HOME, REPORT = "audit", "report.json"  # in the folder of the gallery
MAX_SCORES = 400_000_000  # rows times classes for which labels are judged
SHOWN = 50  # most outliers, images to label, and pairs of classes
_OUTLIER_DEVIATIONS = 4.0  # below the median nearness
_QUERIES, _HITS = 2000, 5  # of the search for confused classes, and hits per query
_CONFUSED_SHARE = 0.1  # least share of the hits of two labels that have the other one
_DRAFT = 192  # least side in pixels that a JPEG is decoded to


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Images that are one picture."""

    key: str
    ids: tuple[str, ...]  # the largest picture first: the one to keep
    exact: bool  # whether their files are equal, byte for byte
    labels: tuple[str | None, ...]  # of the ids


@dataclass(frozen=True, slots=True)
class WrongLabel:
    """A label that its neighbours contradict."""

    key: str
    id: str
    label: str
    suggested: str  # the likeliest other label
    likely: float  # how likely that one is by looks alone
    wrong: float  # how likely the label is wrong


@dataclass(frozen=True, slots=True)
class Outlier:
    """An image that is like no other."""

    key: str
    id: str
    label: str | None
    nearness: float  # mean cosine with the nearest others
    usual: float  # the median of all images


@dataclass(frozen=True, slots=True)
class ToLabel:
    """An image whose label would help most."""

    key: str
    id: str
    suggested: str | None
    likely: float | None  # how likely that is; None if labels are not judged


@dataclass(frozen=True, slots=True)
class ConfusedPair:
    """Two labels whose images find each other."""

    key: str
    labels: tuple[str, str]
    images: tuple[int, int]  # of each
    share: float  # of the hits of both that have the other label


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found in one version of a gallery."""

    gallery: str
    version: int
    images: int
    vectors: str  # what images were compared by
    copies: tuple[CopyGroup, ...] = ()
    wrong_labels: tuple[WrongLabel, ...] = ()
    wrong_share: float | None = None  # of all labels, estimated; None if they are not judged
    outliers: tuple[Outlier, ...] = ()
    to_label: tuple[ToLabel, ...] = ()
    confused: tuple[ConfusedPair, ...] = ()
    notes: tuple[str, ...] = ()  # limits of this audit, and why

    @property
    def findings(self) -> int:
        """Things to look at."""
        parts = (self.copies, self.wrong_labels, self.outliers, self.to_label, self.confused)
        return sum(map(len, parts))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def audit_gallery(
    gallery: GalleryStore | str | Path,
    load: Callable[[], Model] | None = None,
    *,
    where: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit a gallery, or only the images that the expression `where` selects.

    `load` returns the model, which is needed if embeddings are not kept; by default it is the
    gallery's own.
    """
    store = open_store(gallery)
    load = load or (lambda: load_model(store.folder, store.manifest))
    progress = progress or (lambda *_: None)
    rows = read_rows(store, load, where, progress)
    known = np.flatnonzero(rows.known)
    progress("comparing images", 0, 1)
    plain = undo_whitening(rows.vectors[known], read_whitening(store))
    centred = unit_rows(plain - plain.mean(axis=0)) if len(plain) else plain
    near, cosines = nearest(centred)
    progress("comparing images", 1, 1)
    pairs = [(int(known[one]), int(known[other])) for one, other in near_pairs(near)]
    copies = _copies(rows, pairs, progress)
    names = sorted({name for name in rows.labels if name is not None})
    classes = number_labels(rows.labels, names)
    errors = _judge_labels(rows, known, plain, classes, len(names), copies)
    return Audit(
        gallery=store.folder.name,
        version=store.version,
        images=len(rows.ids),
        vectors=rows.source,
        copies=copies,
        wrong_labels=_wrong_labels(rows, known, classes, names, errors),
        wrong_share=errors.share if errors else None,
        outliers=_outliers(rows, known, cosines),
        to_label=_to_label(rows, known, centred, names, errors),
        confused=_confused(store, rows, known, load, progress) if len(names) > 1 else (),
        notes=tuple(rows.notes),
    )


def _copies(
    rows: Rows, pairs: Sequence[tuple[int, int]], progress: Progress
) -> tuple[CopyGroup, ...]:
    """Return groups of equal files, and of copy_groups that agree everywhere."""
    first: dict[bytes, int] = {}
    equal = [
        (first[sha], place)
        for place, sha in enumerate(rows.hashes)
        if first.setdefault(sha, place) != place
    ]
    wanted = sorted({place for pair in pairs for place in pair})
    greys: dict[int, Grey] = {}
    sizes: dict[int, int] = {}
    pictures = read_ahead(wanted, lambda place: (place, _read_grey(rows, place)), ahead=64)
    for number, (place, read) in enumerate(pictures, start=1):
        if read is not None:
            greys[place], sizes[place] = read
        if number % 64 == 0 or number == len(wanted):
            progress("looking at pixels", number, len(wanted))
    near = []
    for number, (one, other) in enumerate(pairs, start=1):
        if one in greys and other in greys and is_copy(greys[one], greys[other]):
            near.append((one, other))
        if number % 256 == 0 or number == len(pairs):
            progress("comparing pixels", number, len(pairs))
    unreadable = len(wanted) - len(greys)
    if unreadable:
        rows.notes.append(
            f"{unreadable:,} images cannot be read: only equal files are told of them."
        )
    groups = []
    for group in connected_groups([*equal, *near]):
        best = sorted(group, key=lambda place: (-sizes.get(place, 0), place))
        ids = tuple(rows.ids[place] for place in best)
        exact = len({rows.hashes[place] for place in group}) == 1
        labels = tuple(rows.labels[place] for place in best)
        groups.append(CopyGroup(key_of("copies", sorted(ids)), ids, exact, labels))
    return tuple(groups)


def _read_grey(rows: Rows, place: int) -> tuple[Grey, int] | None:
    """Return a small grey version of an image, and its pixels; None if it is gone or changed."""
    uri = rows.uris[place]
    if uri is None:
        return None
    try:
        sha256, content = content_hash(origin_at(uri))
        if sha256 != rows.hashes[place] or not isinstance(content, bytes):
            return None
        grey = grey_copy(read_image(content, draft=_DRAFT))  # smaller than the image itself
        with Image.open(io.BytesIO(content)) as header:
            return grey, header.width * header.height
    except BadImageError:
        return None


def _judge_labels(
    rows: Rows,
    known: IntArray,
    vectors: FloatArray,
    classes: IntArray,
    count: int,
    copies: Sequence[CopyGroup],
) -> LabelErrors | None:
    """Judge the labels, or note why they cannot be judged."""
    if len(known) * count > MAX_SCORES:
        rows.notes.append(
            f"{len(known):,} images of {count:,} labels are too many to judge labels at once: "
            "look at a part of them with --where."
        )
        return None
    # Copies of an image are no evidence for its label.
    first = {name: group.ids[0] for group in copies for name in group.ids}
    copy_groups = np.unique([first.get(name, name) for name in rows.ids], return_inverse=True)[1]
    found = find_label_errors(vectors, classes[known], count, copy_groups[known])
    if found is None:
        rows.notes.append(
            f"Labels are not judged: that takes {LEAST_ROWS} images of two labels at least, two of "
            "each."
        )
    return found


def _wrong_labels(
    rows: Rows,
    known: IntArray,
    classes: IntArray,
    names: Sequence[str],
    errors: LabelErrors | None,
) -> tuple[WrongLabel, ...]:
    if errors is None:
        return ()
    order = np.argsort(-errors.wrong, kind="stable")
    found = []
    for row in order[errors.flagged[order]].tolist():
        place = int(known[row])
        others = errors.likely[row].copy()
        others[classes[place]] = -1
        best = int(others.argmax())
        name, label = rows.ids[place], names[classes[place]]
        key = key_of("label", [name, label])
        found.append(
            WrongLabel(key, name, label, names[best], float(others[best]), float(errors.wrong[row]))
        )
    return tuple(found)


def _outliers(rows: Rows, known: IntArray, cosines: FloatArray) -> tuple[Outlier, ...]:
    """Return images that are much less like their neighbours than images usually are."""
    if len(known) < LEAST_ROWS:
        return ()
    nearness = cosines.mean(axis=1)
    usual = float(np.median(nearness))
    deviation = 1.4826 * float(np.median(np.abs(nearness - usual)))
    order = np.argsort(nearness, kind="stable")[:SHOWN]
    far = [row for row in order.tolist() if nearness[row] < usual - _OUTLIER_DEVIATIONS * deviation]
    return tuple(
        Outlier(
            key_of("outlier", [rows.ids[place]]),
            rows.ids[place],
            rows.labels[place],
            float(nearness[row]),
            usual,
        )
        for row, place in ((row, int(known[row])) for row in far)
    )


def _to_label(
    rows: Rows,
    known: IntArray,
    centred: FloatArray,
    names: Sequence[str],
    errors: LabelErrors | None,
) -> tuple[ToLabel, ...]:
    """Choose images without a label: uncertain ones, far from those that were chosen before."""
    unlabelled = np.flatnonzero([rows.labels[place] is None for place in known.tolist()])
    if not len(unlabelled):
        return ()
    uncertainty = np.ones(len(unlabelled))
    if errors is not None:
        best = -np.partition(-errors.likely[unlabelled], 1, axis=1)[:, :2]
        uncertainty = 1 - (best[:, 0] - best[:, 1]).astype(np.float64)
    distance = np.ones(len(unlabelled))  # to the nearest one that is chosen
    taken = np.zeros(len(unlabelled), np.bool_)
    found = []
    for _ in range(min(SHOWN, len(unlabelled))):
        chosen = int(np.where(taken, -1, uncertainty * distance).argmax())
        row = int(unlabelled[chosen])
        name = rows.ids[int(known[row])]
        suggested, likely = None, None
        if errors is not None:
            suggested = names[int(errors.likely[row].argmax())]
            likely = float(errors.likely[row].max())
        found.append(ToLabel(key_of("to label", [name]), name, suggested, likely))
        distance = np.minimum(distance, np.clip(1 - centred[unlabelled] @ centred[row], 0, 1))
        taken[chosen] = True
    return tuple(found)


def _confused(
    store: GalleryStore, rows: Rows, known: IntArray, load: Callable[[], Model], progress: Progress
) -> tuple[ConfusedPair, ...]:
    """Search the gallery by its own images, and count hits with another label."""
    labelled = [int(place) for place in known if rows.labels[place] is not None]
    queries = np.random.default_rng(0).permutation(labelled)[:_QUERIES]
    view = GalleryView(store, load().codebooks)
    counts = Counter(name for name in rows.labels if name is not None)
    hits: Counter[str] = Counter()
    crossed: Counter[tuple[str, str]] = Counter()
    page = Page(top_k=_HITS + 1, wrong_at_most=None)
    for start in range(0, len(queries), 256):
        part = queries[start : start + 256]
        for place, found in zip(
            part.tolist(), view.search_many(rows.vectors[part], page), strict=True
        ):
            mine = str(rows.labels[place])
            others = [hit.label for hit in found if hit.id != rows.ids[place]][:_HITS]
            hits[mine] += len(others)
            for label in others:
                if label is not None and label != mine:
                    crossed[(min(mine, label), max(mine, label))] += 1
        progress("asking the codes", start + len(part), len(queries))
    shares = {
        pair: number / (hits[pair[0]] + hits[pair[1]])
        for pair, number in crossed.items()
        if hits[pair[0]] and hits[pair[1]]
    }
    best = sorted(shares.items(), key=lambda each: (-each[1], each[0]))[:SHOWN]
    return tuple(
        ConfusedPair(key_of("classes", pair), pair, (counts[pair[0]], counts[pair[1]]), share)
        for pair, share in best
        if share >= _CONFUSED_SHARE
    )


def key_of(kind: str, names: Sequence[str]) -> str:
    """Return the key of a finding: the same one in every audit."""
    return hashlib.sha256("\0".join([kind, *names]).encode()).hexdigest()[:16]


def keep_report(folder: Path, audit: Audit) -> None:
    """Write the report into the folder of its gallery, for the page."""
    (folder / HOME).mkdir(exist_ok=True)
    write_json(folder / HOME / REPORT, audit.to_dict())


def kept_report(folder: Path) -> Mapping[str, Any] | None:
    """Read the report that `keep_report` wrote; None if there is none."""
    path = folder / HOME / REPORT
    return read_json(path, remedy=f"Make it again: phpq audit {folder}") if path.is_file() else None
