"""Changes over the network: an upload in, a record in the gallery and its file beside it out.

Files are kept in the gallery under the SHA-256 of their content, so that no name of a client ever
becomes a path.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phpq.errors import ConfigError
from phpq.files import write_bytes
from phpq.gallery.store import GalleryStore
from phpq.serve.decode_pool import DecodePool

if TYPE_CHECKING:
    from phpq.gallery import AddReport
    from phpq.model import Model

UPLOADS = "uploads"  # the folder of the gallery that holds them
_EXTENSIONS = {"JPEG": ".jpg", "TIFF": ".tif"}
_LOCK_SECONDS = 10.0  # to wait for a writer of another process
_MOST_KEYS = 64
_LONGEST_TEXT = 2000


class Writer:
    """Adds and deletes; one call at a time."""

    def __init__(self, folder: Path, model: Model, decoders: DecodePool) -> None:
        self._folder = folder
        self._model = model
        self._decoders = decoders

    def add(
        self,
        content: bytes,
        *,
        id: str,
        label: str | None,
        metadata: Mapping[str, Any],
        replace: bool,
    ) -> AddReport:
        """Add one image."""
        from phpq.gallery import Gallery

        kind = self._decoders.check(content, name=id).format
        file = self._file(content, kind)
        new = not file.exists()
        if new:
            file.parent.mkdir(exist_ok=True)
            write_bytes(file, content)
        gallery = Gallery(self._store(), self._model)
        put = gallery.upsert if replace else gallery.add
        before = gallery.get(id).uri if replace and gallery.count(_is("id", id)) else None
        try:
            report = put(
                [{"path": file, "id": id, "label": label}], metadata=metadata, on_bad="refuse"
            )
        except BaseException:
            if new:
                self._remove_unused([str(file)])
            raise
        if before is not None:
            self._remove_unused([before])
        return report

    def delete(self, ids: Sequence[str]) -> tuple[int, list[str]]:
        """Delete images in one commit; returns how many went, and the ids that are not there."""
        store = self._store()
        found = store.find(ids)
        gone = store.delete(list(found)) if found else 0
        self._remove_unused([record.uri for record in found.values() if record.uri is not None])
        return gone, sorted(set(ids) - set(found))

    def _store(self) -> GalleryStore:
        store = GalleryStore.open(self._folder)
        store.lock_timeout = _LOCK_SECONDS
        return store

    def _file(self, content: bytes, kind: str) -> Path:
        suffix = _EXTENSIONS.get(kind, f".{kind.lower()}" if kind.isalnum() else ".image")
        name = hashlib.sha256(content).hexdigest()
        return (self._folder / UPLOADS / f"{name}{suffix}").absolute()

    def _remove_unused(self, uris: Sequence[str]) -> None:
        """Remove the files of `uris` that were uploaded here and that no record names any more."""
        home = (self._folder / UPLOADS).absolute()
        own = [uri for uri in dict.fromkeys(uris) if Path(uri).parent == home]
        if own:
            store = self._store()
            for uri in own:
                if not store.count(_is("uri", uri)):
                    Path(uri).unlink(missing_ok=True)


def parse_metadata(text: str | None) -> dict[str, Any]:
    """Read the metadata of an upload."""
    if not text or not text.strip():
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"metadata={text[:80]!r} is no JSON ({error}); expected an object such as "
            '{"year": 2024, "place": "Oslo"}.'
        ) from error
    if not isinstance(values, dict) or len(values) > _MOST_KEYS:
        raise ConfigError(
            f"metadata={text[:80]!r} is not allowed; expected a JSON object of at most "
            f'{_MOST_KEYS} values, such as {{"year": 2024, "place": "Oslo"}}.'
        )
    for name, value in values.items():
        if len(name) > 100 or not _is_scalar(value):
            raise ConfigError(
                f"The metadata {name[:100]!r} is {str(value)[:80]!r}; expected a text of at most "
                f"{_LONGEST_TEXT} characters, a finite number of at most 64 bits, true, false or "
                "null."
            )
    return values


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT and "\0" not in value
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):  # truth values too
        return -(1 << 63) <= value < 1 << 63
    return value is None


def _is(column: str, text: str) -> str:
    """Return an expression that compares a column with any text."""
    quoted = text.replace("'", "''")
    return f"{column} = '{quoted}'"
