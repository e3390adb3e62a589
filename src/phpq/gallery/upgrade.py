"""Another model or another code length for a gallery: the same ids and metadata, other codes.

An upgrade encodes all rows again (`reencode`) in one commit. The old version stays, with its model
and its codebooks, until it is dropped: a rollback is a commit that goes back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from phpq.errors import ConfigError, DataError
from phpq.gallery._part import batches
from phpq.gallery._rows import is_kept, keep_version
from phpq.gallery.folder import UPGRADED_FORMAT_VERSION, damage_named
from phpq.gallery.ingest import Progress
from phpq.gallery.models import model_folder, run_of
from phpq.gallery.reencode import Target, reencode
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """A gallery after an upgrade or a rollback."""

    changed: bool  # False: there was nothing to do
    images: int
    bits: int
    model: str  # the fingerprint of the model that made its codes
    version: int  # that is read now
    before: int | None  # the version that a rollback goes to
    dropped: tuple[str, ...] = ()  # ids of images that could not be embedded

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def upgrade(
    store: GalleryStore,
    load: Callable[[], Model],
    model: Model | None = None,
    bits: int | None = None,
    *,
    drop_missing: bool = False,
    progress: Progress | None = None,
) -> UpgradeReport:
    """Give a gallery the codes of another model, of another length, or both, in one commit.

    Another model embeds the images; a `DataError` lists those whose files are gone or have changed,
    unless `drop_missing` leaves them out. With its own model (`load`) a gallery that keeps
    embeddings needs no image. An interrupted call, made again, goes on where it stopped.
    """
    manifest = store.manifest
    if run_of(store.folder) is not None:
        raise ConfigError(
            f"{str(store.folder)!r} is the gallery of an evaluated run, which is its model. Make a "
            "gallery of its images with: phpq index GALLERY IMAGES --model RUN"
        )
    if model is None and (bits is None or not manifest.owns_codebooks):
        raise ConfigError(
            "Say what to upgrade to: model=RUN (--model RUN). Another code length alone, bits=N "
            "(--bits N), is for a gallery that owns its codebooks; else the model gives the "
            "length."
        )
    target = Target(model=model, bits=bits, keep_old=True, drop_missing=drop_missing)
    done = reencode(store, load, target, progress)
    return _report(store, changed=done is not None, dropped=done.dropped if done else ())


def rollback(store: GalleryStore) -> UpgradeReport:
    """Go back to the version before the last upgrade; called again, forward again.

    A `ConfigError` if there is none; a `DataError` if images or labels were changed since, which
    would be lost.
    """
    with store.changing():
        now, target = store.version, store.manifest.before
        if not target or not is_kept(store.dataset, target):
            raise ConfigError(
                f"The gallery {str(store.folder)!r} has no version to go back to: it was not "
                "upgraded, or the version before was dropped."
            )
        old = GalleryStore.open(store.folder, version=target)
        left_out = store.manifest.left_out
        if not _same_rows(store, old, left_out):
            home = model_folder(store.folder, old.manifest)
            raise DataError(
                f"The gallery {str(store.folder)!r} was changed since it was upgraded (it had "
                f"{len(old):,} images and has {len(store):,}), and going back would undo that. "
                "Encode what it holds now for the model before: phpq gallery upgrade "
                f"{store.folder} --model {home} --bits {old.manifest.bits}"
            )
        keep_version(store.dataset, now)
        with damage_named(store.folder):
            old.dataset.restore()
        store.refresh()
        # For the way forward again. A kill before this line leaves the old version as it was.
        upgraded = replace(store.manifest, format_version=UPGRADED_FORMAT_VERSION)
        store.commit_manifest(replace(upgraded, before=now, left_out=left_out))
    return _report(store, changed=True)


def drop_old(store: GalleryStore) -> int:
    """Drop the version that a rollback would go to, with its model; returns the bytes freed."""
    with store.changing():
        if store.manifest.before:
            store.commit_manifest(replace(store.manifest, before=0, left_out=0))
    return store.compact()


def _report(store: GalleryStore, *, changed: bool, dropped: tuple[str, ...] = ()) -> UpgradeReport:
    manifest = store.manifest
    return UpgradeReport(
        changed=changed,
        images=len(store),
        bits=manifest.bits,
        model=manifest.model_fingerprint,
        version=store.version,
        before=manifest.before or None,
        dropped=dropped,
    )


def _same_rows(one: GalleryStore, other: GalleryStore, left_out: int) -> bool:
    """Say whether two versions differ only in their codes and in `left_out` rows of the larger."""
    few, many = sorted((one, other), key=len)
    if few.metadata_columns != many.metadata_columns or len(many) - len(few) != left_out:
        return False
    made = ("code", "check", "embedding")
    names = ["row", "id", "uri", "label", "sha256", *one.metadata_columns]
    pairs = zip(batches(few, without=made), batches(many, without=made), strict=False)
    if not left_out:
        return all(mine.select(names).equals(theirs.select(names)) for mine, theirs in pairs)
    found = {row["row"]: row for row in _rows(few, made)}
    same = (row == found[row["row"]] for row in _rows(many, made) if row["row"] in found)
    return sum(same) == len(few)


def _rows(store: GalleryStore, without: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for table in batches(store, without=without):
        yield from table.to_pylist()
