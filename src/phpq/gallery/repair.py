"""Verify a gallery on disk, and repair it: a folder in, a list of problems and repairs out.

`verify_store` works without a model; `verify_gallery` checks the model too, and encodes again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.errors import FormatError, PhpqError
from phpq.files import write_json
from phpq.gallery._embedded import KeptEmbeddings
from phpq.gallery.folder import (
    DAMAGE,
    HINT,
    IMAGES,
    MANIFEST,
    Manifest,
    newest_seen,
    parse_manifest,
    read_manifest,
    reason,
    writing,
)
from phpq.gallery.ingest import encode_again
from phpq.gallery.models import MODEL, fingerprint_of, model_folder
from phpq.gallery.owned import code_records, read_calibration
from phpq.gallery.records import Record, code_matrix, row_checks
from phpq.gallery.reencode import Target, rewrite_codes
from phpq.gallery.store import METADATA_KEY, GalleryStore

ASIDE = "damaged"  # folder for broken files, which are not deleted
BoolArray = NDArray[np.bool_]
Encode = Callable[[Sequence[Record]], Sequence[Record | None]]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Problems and repairs of a gallery."""

    images: int  # intact ones at the end
    problems: tuple[str, ...] = ()  # a line each
    repairs: tuple[str, ...] = ()  # a line each; empty without `repair`
    lost: tuple[str, ...] = ()  # ids that had to be dropped; index their files again
    model_sound: bool = True  # whether model and codebooks are intact; no repair can fix them

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or everything was fixed."""
        return self.model_sound and (not self.problems or bool(self.repairs))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "images": self.images,
            "sound": self.sound,
            "problems": list(self.problems),
            "repairs": list(self.repairs),
            "lost": list(self.lost),
        }


@dataclass(slots=True)
class _Notes:
    problems: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    readable: bool = True  # whether the gallery's own codebooks are intact


def verify_gallery(folder: Path, *, repair: bool = False) -> VerifyReport:
    """Do as `verify_store`, and check the model too.

    A broken or wrong model cannot be repaired: the report says what to do.
    """

    def encode(records: Sequence[Record]) -> Sequence[Record | None]:
        from phpq.model import load

        store = GalleryStore.open(folder)
        model = load(model_folder(folder, store.manifest))
        return [encode_again(model, record, store) for record in records]

    usable = encode if _check_model(folder) is None else None
    report = verify_store(folder, repair=repair, encode=usable)
    problem = _check_model(folder)  # the manifest may have been fixed
    if problem is None:
        return report
    return replace(report, problems=(*report.problems, problem), model_sound=False)


def verify_store(
    folder: Path, *, repair: bool = False, encode: Encode | None = None
) -> VerifyReport:
    """Read everything in a gallery but its model; a `FormatError` if nothing is left to repair.

    `repair` moves broken files aside, falls back to the last good version, drops what cannot be
    read, encodes damaged rows again, and rewrites the manifest. `encode` encodes records from their
    files, with None for a file that is gone or has changed; without it damaged rows are dropped.
    """
    if not (folder / IMAGES).is_dir():
        read_manifest(folder)  # names a folder that is no gallery
        raise FormatError(
            f"{str(folder / IMAGES)!r} is missing: nothing is left to repair. Delete the folder "
            "and index the images again."
        )
    with writing(folder) if repair else nullcontext():
        return _verify(folder, repair, encode)


def _verify(folder: Path, repair: bool, encode: Encode | None) -> VerifyReport:
    notes = _Notes()
    dataset = _open_version(folder, notes, repair=repair)
    if dataset is None:
        return VerifyReport(0, tuple(notes.problems))
    manifest = _check_manifest(folder, dataset, notes, repair=repair)
    dataset = _check_fragments(dataset, notes, repair=repair)
    if manifest is not None and manifest.owns_codebooks:
        store = _check_codebooks(GalleryStore(folder, manifest, dataset), notes, repair=repair)
        manifest, dataset = store.manifest, store.dataset
    elif manifest is not None and manifest.chances:
        manifest = _check_calibration(GalleryStore(folder, manifest, dataset), notes, repair=repair)
    if manifest is not None and not (notes.problems and not repair):
        table = dataset.to_table(columns=["row", "id", "code", "check"])
        damaged, repeated = _damaged(table, manifest), _repeated(table)
        if damaged.any():
            notes.problems.append(f"{int(damaged.sum()):,} images have a damaged code")
        if repeated.any():
            notes.problems.append(f"{int(repeated.sum()):,} rows repeat an id")
        if repair and (damaged | repeated).any():
            store = GalleryStore(folder, manifest, dataset)
            if manifest.owns_codebooks and manifest.keep_embeddings:
                encode = partial(_encode_kept, store)
            dataset = _fix_rows(store, damaged, repeated, notes, encode)
    images = 0 if notes.problems and not repair else int(dataset.count_rows())
    lines = (tuple(notes.problems), tuple(notes.repairs), tuple(notes.lost))
    return VerifyReport(images, *lines, model_sound=notes.readable)


def _open_version(folder: Path, notes: _Notes, *, repair: bool) -> Any:
    """Open the newest intact version; broken ones are moved aside."""
    import lance

    versions = folder / IMAGES / "_versions"
    noted = newest_seen(folder)
    # By their names the newest comes first.
    for file in sorted(versions.glob("*.manifest")):
        try:
            dataset = lance.dataset(folder / IMAGES)
        except DAMAGE as error:
            notes.problems.append(f"the version file {file.name} is damaged: {reason(error)}")
            if not repair:
                return None
            aside = folder / ASIDE
            aside.mkdir(exist_ok=True)
            file.replace(aside / file.name)
            notes.repairs.append(f"moved {file.name} to {ASIDE}/; the version before it is used")
            write_json(folder / IMAGES / HINT, {"version": 0})
            continue
        if noted > dataset.version:
            if not notes.problems:
                notes.problems.append(
                    f"version {noted} is missing; the newest left is {dataset.version}"
                )
            if repair:
                write_json(folder / IMAGES / HINT, {"version": dataset.version})
                notes.repairs.append(f"went back to version {dataset.version}")
        return dataset
    raise FormatError(
        f"The gallery {str(folder)!r} has no readable version left. Delete the folder and index "
        "the images again."
    )


def _check_manifest(folder: Path, dataset: Any, notes: _Notes, *, repair: bool) -> Manifest | None:
    """Compare manifest.json with the copy in the data."""
    copy = json.loads((dataset.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    try:
        kept = parse_manifest(copy, folder)
    except FormatError:
        kept = None
    try:
        manifest = read_manifest(folder)
    except FormatError as error:
        notes.problems.append(f"manifest.json: {str(error).split('. ')[0]}")
        manifest = None
    if manifest is not None and kept is not None and not manifest.same_gallery(kept):
        notes.problems.append("manifest.json does not describe the codes in images.lance")
        manifest = None
    if manifest is None and repair:
        if kept is None:
            raise FormatError(
                f"{str(folder)!r} has lost its manifest and the copy in {IMAGES}. Delete the "
                "folder and index the images again."
            )
        write_json(folder / MANIFEST, kept.to_dict())
        notes.repairs.append("wrote manifest.json anew from the copy that the data carry")
        return kept
    return manifest if manifest is None or kept is None else kept  # which names its codebooks


def _check_codebooks(store: GalleryStore, notes: _Notes, *, repair: bool) -> GalleryStore:
    """Read the codebooks that a gallery owns; damaged ones are fitted again if possible."""
    try:
        store.own_codebooks()
    except FormatError as error:
        notes.problems.append(str(error))
        if repair and store.manifest.keep_embeddings:
            rewrite_codes(store, KeptEmbeddings(), Target())
            notes.repairs.append("fitted new codebooks to the kept embeddings")
        else:
            notes.readable = not repair
    return store


def _check_calibration(store: GalleryStore, notes: _Notes, *, repair: bool) -> Manifest:
    """Read the calibration of a gallery, which is dropped if it is damaged."""
    try:
        read_calibration(store.folder, store.manifest)
    except FormatError as error:
        notes.problems.append(str(error))
        if repair:
            store.commit_manifest(replace(store.manifest, chances=""))
            notes.repairs.append("gave up probabilities and parents; say or fit them again")
    return store.manifest


def _check_fragments(dataset: Any, notes: _Notes, *, repair: bool) -> Any:
    """Read every file; rows of unreadable ones are lost."""
    broken: list[int] = []
    for fragment in dataset.get_fragments():
        try:
            for _ in fragment.to_batches():
                pass
        except DAMAGE as error:
            broken.append(fragment.fragment_id)
            notes.problems.append(
                f"a data file of {fragment.metadata.physical_rows:,} rows is damaged: "
                f"{reason(error)}"
            )
            if repair:
                with suppress(*DAMAGE):
                    notes.lost += map(str, fragment.to_table(columns=["id"])["id"].to_pylist())
    if not broken or not repair:
        return dataset
    import lance

    dropped = lance.LanceOperation.Delete(
        updated_fragments=[], deleted_fragment_ids=broken, predicate="damaged files"
    )
    dataset = lance.LanceDataset.commit(dataset.uri, dropped, read_version=dataset.version)
    notes.repairs.append(f"dropped {len(broken)} damaged data files; index their images again")
    return dataset


def _fix_rows(
    store: GalleryStore,
    damaged: BoolArray,
    repeated: BoolArray,
    notes: _Notes,
    encode: Encode | None,
) -> Any:
    """Encode damaged rows, (N,) in the order of a scan, again if possible; drop the others."""
    manifest, dataset = store.manifest, store.dataset
    rows = dataset.to_table(columns=["row"])["row"].fill_null(-1).to_numpy()
    table = dataset.take(np.flatnonzero(damaged & ~repeated).tolist())
    # A null code cannot become an array; it is encoded again anyway.
    empty = np.zeros(len(table) * manifest.num_codebooks, np.uint8)
    codes = pa.FixedSizeListArray.from_arrays(pa.array(empty), manifest.num_codebooks)
    place = table.schema.get_field_index("code")
    records = store.records(table.set_column(place, "code", codes))
    fixed = [record for record in encode(records) if record is not None] if encode else []
    names = {record.id for record in fixed}
    gone = [str(record.id) for record in records if record.id not in names]
    listed = ",".join(map(str, rows[damaged | repeated].tolist()))
    dataset.delete(f"row IN ({listed}) OR row IS NULL OR id IS NULL")
    store = GalleryStore(store.folder, manifest, dataset)
    if fixed:
        store.append(fixed)
        notes.repairs.append(f"encoded {len(fixed):,} images again")
    if gone or repeated.any():
        notes.repairs.append(f"dropped {len(gone) + int(repeated.sum()):,} rows")
        notes.lost += gone
    return store.dataset


def _encode_kept(store: GalleryStore, records: Sequence[Record]) -> Sequence[Record | None]:
    """Encode records from their kept embeddings, in a gallery that owns its codebooks."""
    bare = [replace(record, code=record.code[:0]) for record in records]
    return code_records(store, bare, store)


def _damaged(table: Any, manifest: Manifest) -> BoolArray:
    """Return (N,) bool: rows whose code is missing, impossible or fails its checksum."""
    bad: BoolArray = np.any([column.is_null().to_numpy() for column in table.columns], axis=0)
    whole = table.filter(pa.array(~bad))
    codes = code_matrix(whole["code"], manifest.num_codebooks)
    wrong = row_checks(whole["row"].to_numpy(), codes) != whole["check"].to_numpy()
    bad[~bad] = wrong | (codes >= manifest.codebook_size).any(axis=1)
    return bad


def _repeated(table: Any) -> BoolArray:
    """Return (N,) bool: all rows of an id but its last."""
    ids = table["id"].to_pylist()
    order = np.argsort(table["row"].fill_null(-1).to_numpy(), kind="stable").tolist()
    latest = {ids[place]: place for place in order}
    repeated = np.ones(len(ids), np.bool_)
    repeated[list(latest.values())] = False
    return repeated


def _check_model(folder: Path) -> str | None:
    """Say what is wrong with the model of a gallery; None if nothing is."""
    from phpq.model import load
    from phpq.model.checkpoint import read_card

    manifest = _newest_manifest(folder)
    home = model_folder(folder, manifest)
    shown = f"{MODEL}/" if home.parent == folder else str(home)
    try:
        read_card(home)
        model = load(home, device="cpu")
        fingerprint = fingerprint_of(model, manifest.space) if manifest else ""
        # Some files are only read on first use.
        side = model.card.config.data.store_size
        space = manifest.space if manifest else "learned"
        model.embed_pixels(np.zeros((1, 3, side, side), np.uint8), space=space)
    except PhpqError as error:
        return f"the model cannot be read: {error} Copy the run that made the gallery into {shown}."
    if manifest and fingerprint != manifest.model_fingerprint:
        return (
            f"{shown} holds another model than the one that made the codes. Copy config.json and "
            "weights.safetensors of the right run into it, or index the images again."
        )
    return None


def _newest_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of the newest version, or of the folder; None if neither is intact."""
    with suppress(PhpqError):
        return GalleryStore.open(folder).manifest
    with suppress(PhpqError):
        return read_manifest(folder)
    return None  # reported as a problem of the manifest
