"""A gallery in, what a person should look at out: copies, labels, outliers, what to label next.

Vectors are kept embeddings where there are some, else the images are embedded again, else codes of
the model tell; what cannot be told is said. Nothing in the gallery is changed here.
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
from phpq.audit.copies import Grey, grey_copy, grouped, is_copy, near_pairs, nearest
from phpq.audit.labels import LEAST_ROWS, Doubts, doubt_labels
from phpq.audit.rows import Rows, as_before_labels, read_rows, store_of, whitening_of
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
MOST_SCORES = 400_000_000  # of labels: rows times classes
SHOWN = 50  # outliers, images to label and pairs of classes at most
_OUTLYING = 4.0  # deviations below the median nearness
_ASKED, _HITS = 2000, 5  # images that ask their own gallery, and hits of each
_CONFUSED = 0.1  # share of hits of two labels that are the other's
_DRAFT = 192  # pixels that a JPEG is decoded to at least


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
    """An image without a label that would tell most."""

    key: str
    id: str
    suggested: str | None
    likely: float | None  # how likely that is; None where no labels tell


@dataclass(frozen=True, slots=True)
class ConfusedPair:
    """Two labels whose images are found for each other."""

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
    wrong_share: float | None = None  # of all labels, as estimated; None: not told
    outliers: tuple[Outlier, ...] = ()
    to_label: tuple[ToLabel, ...] = ()
    confused: tuple[ConfusedPair, ...] = ()
    notes: tuple[str, ...] = ()  # what cannot be told, and why

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
    """Look through a gallery; `where` looks at the images that fulfil an expression alone.

    `load` gives the model, which is needed where embeddings are not kept; the gallery's own if
    left out.
    """
    store = store_of(gallery)
    load = load or (lambda: load_model(store.folder, store.manifest))
    told = progress or (lambda *_: None)
    rows = read_rows(store, load, where, told)
    places = np.flatnonzero(rows.known)
    told("comparing images", 0, 1)
    plain = as_before_labels(rows.vectors[places], whitening_of(store))
    own = unit_rows(plain - plain.mean(axis=0)) if len(plain) else plain
    near, cosines = nearest(own)
    told("comparing images", 1, 1)
    pairs = [(int(places[one]), int(places[other])) for one, other in near_pairs(near)]
    copies = _copies(rows, pairs, told)
    names = sorted({name for name in rows.labels if name is not None})
    classes = number_labels(rows.labels, names)
    doubts = _doubts(rows, places, plain, classes, len(names), copies)
    return Audit(
        gallery=store.folder.name,
        version=store.version,
        images=len(rows.ids),
        vectors=rows.source,
        copies=copies,
        wrong_labels=_wrong_labels(rows, places, classes, names, doubts),
        wrong_share=doubts.share if doubts else None,
        outliers=_outliers(rows, places, cosines),
        to_label=_to_label(rows, places, own, names, doubts),
        confused=_confused(store, rows, places, load, told) if len(names) > 1 else (),
        notes=tuple(rows.notes),
    )


def _copies(rows: Rows, pairs: Sequence[tuple[int, int]], told: Progress) -> tuple[CopyGroup, ...]:
    """Return groups of equal files, and of pictures that agree everywhere."""
    first: dict[bytes, int] = {}
    equal = [
        (first[sha], place)
        for place, sha in enumerate(rows.hashes)
        if first.setdefault(sha, place) != place
    ]
    wanted = sorted({place for pair in pairs for place in pair})
    greys: dict[int, Grey] = {}
    sizes: dict[int, int] = {}
    work = read_ahead(wanted, lambda place: (place, _picture(rows, place)), ahead=64)
    for number, (place, seen) in enumerate(work, start=1):
        if seen is not None:
            greys[place], sizes[place] = seen
        if number % 64 == 0 or number == len(wanted):
            told("looking at pixels", number, len(wanted))
    near = []
    for number, (one, other) in enumerate(pairs, start=1):
        if one in greys and other in greys and is_copy(greys[one], greys[other]):
            near.append((one, other))
        if number % 256 == 0 or number == len(pairs):
            told("comparing pixels", number, len(pairs))
    blind = len(wanted) - len(greys)
    if blind:
        rows.notes.append(f"{blind:,} images cannot be read: only equal files are told of them.")
    groups = []
    for group in grouped([*equal, *near]):
        best = sorted(group, key=lambda place: (-sizes.get(place, 0), place))
        ids = tuple(rows.ids[place] for place in best)
        exact = len({rows.hashes[place] for place in group}) == 1
        labels = tuple(rows.labels[place] for place in best)
        groups.append(CopyGroup(key_of("copies", sorted(ids)), ids, exact, labels))
    return tuple(groups)


def _picture(rows: Rows, place: int) -> tuple[Grey, int] | None:
    """Return a small grey copy of an image, and its pixels; None if it is gone or another now."""
    uri = rows.uris[place]
    if uri is None:
        return None
    try:
        sha256, content = content_hash(origin_at(uri))
        if sha256 != rows.hashes[place] or not isinstance(content, bytes):
            return None
        grey = grey_copy(read_image(content, draft=_DRAFT))  # which may be smaller than the file is
        with Image.open(io.BytesIO(content)) as header:
            return grey, header.width * header.height
    except BadImageError:
        return None


def _doubts(
    rows: Rows,
    places: IntArray,
    vectors: FloatArray,
    classes: IntArray,
    count: int,
    copies: Sequence[CopyGroup],
) -> Doubts | None:
    """Judge labels, or note why they cannot be judged."""
    if len(places) * count > MOST_SCORES:
        rows.notes.append(
            f"{len(places):,} images of {count:,} labels are too many to judge labels at once: "
            "look at a part of them with --where."
        )
        return None
    # A copy must vouch for a label as little as the image itself.
    first = {name: group.ids[0] for group in copies for name in group.ids}
    pictures = np.unique([first.get(name, name) for name in rows.ids], return_inverse=True)[1]
    found = doubt_labels(vectors, classes[places], count, pictures[places])
    if found is None:
        rows.notes.append(
            f"Labels are not judged: that takes {LEAST_ROWS} images of two labels at least, two of "
            "each."
        )
    return found


def _wrong_labels(
    rows: Rows, places: IntArray, classes: IntArray, names: Sequence[str], doubts: Doubts | None
) -> tuple[WrongLabel, ...]:
    if doubts is None:
        return ()
    order = np.argsort(-doubts.wrong, kind="stable")
    found = []
    for row in order[doubts.named[order]].tolist():
        place = int(places[row])
        others = doubts.likely[row].copy()
        others[classes[place]] = -1
        best = int(others.argmax())
        name, label = rows.ids[place], names[classes[place]]
        key = key_of("label", [name, label])
        found.append(
            WrongLabel(key, name, label, names[best], float(others[best]), float(doubts.wrong[row]))
        )
    return tuple(found)


def _outliers(rows: Rows, places: IntArray, cosines: FloatArray) -> tuple[Outlier, ...]:
    """Return images that are much less like their neighbours than images usually are."""
    if len(places) < LEAST_ROWS:
        return ()
    nearness = cosines.mean(axis=1)
    usual = float(np.median(nearness))
    deviation = 1.4826 * float(np.median(np.abs(nearness - usual)))
    order = np.argsort(nearness, kind="stable")[:SHOWN]
    far = [row for row in order.tolist() if nearness[row] < usual - _OUTLYING * deviation]
    return tuple(
        Outlier(
            key_of("outlier", [rows.ids[place]]),
            rows.ids[place],
            rows.labels[place],
            float(nearness[row]),
            usual,
        )
        for row, place in ((row, int(places[row])) for row in far)
    )


def _to_label(
    rows: Rows, places: IntArray, own: FloatArray, names: Sequence[str], doubts: Doubts | None
) -> tuple[ToLabel, ...]:
    """Choose images without a label: those least sure, and far from what was chosen before."""
    bare = np.array([n for n, place in enumerate(places.tolist()) if rows.labels[place] is None])
    if not len(bare):
        return ()
    unsure = np.ones(len(bare))
    if doubts is not None:
        best = -np.partition(-doubts.likely[bare], 1, axis=1)[:, :2]
        unsure = 1 - (best[:, 0] - best[:, 1]).astype(np.float64)
    apart = np.ones(len(bare))  # from the nearest one that is chosen
    taken = np.zeros(len(bare), np.bool_)
    found = []
    for _ in range(min(SHOWN, len(bare))):
        chosen = int(np.where(taken, -1, unsure * apart).argmax())
        row = int(bare[chosen])
        name = rows.ids[int(places[row])]
        best_class = None if doubts is None else int(doubts.likely[row].argmax())
        told = None if best_class is None else names[best_class]
        likely = None if doubts is None else float(doubts.likely[row].max())
        found.append(ToLabel(key_of("to label", [name]), name, told, likely))
        apart = np.minimum(apart, np.clip(1 - own[bare] @ own[row], 0, 1))
        taken[chosen] = True
    return tuple(found)


def _confused(
    store: GalleryStore, rows: Rows, places: IntArray, load: Callable[[], Model], told: Progress
) -> tuple[ConfusedPair, ...]:
    """Let images ask their gallery, itself left out, and count hits of another label."""
    labelled = [int(place) for place in places if rows.labels[place] is not None]
    asking = np.random.default_rng(0).permutation(labelled)[:_ASKED]
    view = GalleryView(store, load().codebooks)
    counts = Counter(name for name in rows.labels if name is not None)
    hits: Counter[str] = Counter()
    crossed: Counter[tuple[str, str]] = Counter()
    page = Page(top_k=_HITS + 1, wrong_at_most=None)
    for start in range(0, len(asking), 256):
        part = asking[start : start + 256]
        for place, found in zip(
            part.tolist(), view.search_many(rows.vectors[part], page), strict=True
        ):
            mine = str(rows.labels[place])
            others = [hit.label for hit in found if hit.id != rows.ids[place]][:_HITS]
            hits[mine] += len(others)
            for label in others:
                if label is not None and label != mine:
                    crossed[(min(mine, label), max(mine, label))] += 1
        told("asking the codes", start + len(part), len(asking))
    shares = {
        pair: number / (hits[pair[0]] + hits[pair[1]])
        for pair, number in crossed.items()
        if hits[pair[0]] and hits[pair[1]]
    }
    best = sorted(shares.items(), key=lambda each: (-each[1], each[0]))[:SHOWN]
    return tuple(
        ConfusedPair(key_of("classes", pair), pair, (counts[pair[0]], counts[pair[1]]), share)
        for pair, share in best
        if share >= _CONFUSED
    )


def key_of(kind: str, names: Sequence[str]) -> str:
    """Return what names a finding, in this audit and in those to come."""
    return hashlib.sha256("\0".join([kind, *names]).encode()).hexdigest()[:16]


def keep_report(folder: Path, audit: Audit) -> None:
    """Leave a report in the folder of its gallery, for the page."""
    (folder / HOME).mkdir(exist_ok=True)
    write_json(folder / HOME / REPORT, audit.to_dict())


def kept_report(folder: Path) -> Mapping[str, Any] | None:
    """Return the report that was left in the folder of a gallery."""
    path = folder / HOME / REPORT
    return read_json(path, remedy=f"Make it again: phpq audit {folder}") if path.is_file() else None
