"""A gallery folder: its manifest, the lock of its one writer, and errors that name the repair.

The operating system frees the lock when its process dies: a kill leaves nothing to clean up, and
readers never wait.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from filelock import FileLock, Timeout

from phpq._version import __version__
from phpq.additive import TRUST
from phpq.codes import Codebooks, QueryNorm, Space
from phpq.errors import ConfigError, DataError, FormatError, PhpqError
from phpq.files import read_json

IMAGES = "images.lance"
MANIFEST = "manifest.json"
LOCK = "writer.lock"
EMBEDDING_LOCK = "embedding.lock"  # held while images are embedded again; others may write
FORMAT_VERSION = 1
OWN_FORMAT_VERSION = 2  # of galleries that own their codebooks
UPGRADED_FORMAT_VERSION = 3  # of galleries whose versions may differ in their models
HINT = "_versions/latest_version_hint.json"
# Errors of a damaged or missing file.
DAMAGE = (ValueError, OSError, pa.ArrowException, RuntimeError, KeyError)
# Fields of the manifest of galleries that own their codebooks, and of upgraded ones.
_OWN = ("codebooks", "space", "trust", "books", "fit", "fitted_rows")
_UPGRADED = ("model", "before", "left_out")
_CHANCES = "chances"  # written only if set: older versions of phpq ignore it


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`manifest.json`: the settings of a gallery, or of one version of it."""

    model_fingerprint: str  # of the model that made the codes
    num_codebooks: int  # M, bytes of a code
    codebook_size: int  # K
    embedding_dim: int  # D
    query_norm: QueryNorm = "unit"  # how queries are scored, see `Codebooks.lookup_tables`
    keep_embeddings: bool = False  # whether float16 embeddings are stored beside the codes
    created: str = ""  # time in UTC, ISO 8601
    phpq_version: str = __version__  # that made it
    format_version: int = FORMAT_VERSION  # of the layout on disk
    codebooks: Literal["model", "own"] = "model"  # whose they are
    space: Space = "learned"  # the embedding that is encoded
    trust: float = 0.0  # weight of labels, 0 to 1
    # These three, `num_codebooks` and `trust` may differ between versions.
    books: str = ""  # sha256 of the codebooks file; empty before the first fit
    fit: str = ""  # `books` at the last fit; codes of one fit are comparable
    fitted_rows: int = 0  # images of the gallery at that time
    # In an upgraded gallery these, and all that depends on the model, may differ too.
    model: str = ""  # folder of the model in `models`; empty: `model`
    before: int = 0  # the version that a rollback goes to; 0: none
    left_out: int = 0  # images that only one of these two versions has
    # May differ between versions; only with the codebooks of the model.
    chances: str = ""  # sha256 of the calibration file; empty: none

    @property
    def owns_codebooks(self) -> bool:
        """Whether the gallery has codebooks of its own."""
        return self.codebooks == "own"

    @property
    def code_shape(self) -> tuple[int, int]:
        """M and K: the number of codebooks, and their size."""
        return self.num_codebooks, self.codebook_size

    @property
    def upgraded(self) -> bool:
        """Whether each version has to say which model made its codes."""
        return self.format_version == UPGRADED_FORMAT_VERSION

    @property
    def bits(self) -> int:
        """Bits of one code: M log2 K."""
        return self.num_codebooks * (self.codebook_size.bit_length() - 1)

    def common(self, *, upgraded: bool = False) -> Manifest:
        """Return the manifest with defaults for all that may differ between versions."""
        common = replace(self, chances="")
        if upgraded:
            common = replace(
                common,
                model_fingerprint="",
                codebook_size=2,
                embedding_dim=1,
                query_norm="unit",
                format_version=UPGRADED_FORMAT_VERSION,
                model="",
                before=0,
                left_out=0,
            )
        if upgraded or self.owns_codebooks:
            common = replace(common, num_codebooks=1, trust=0.0, books="", fit="", fitted_rows=0)
        return common

    def same_gallery(self, other: Manifest) -> bool:
        """Say whether two manifests can belong to two versions of one gallery."""
        upgraded = self.upgraded or other.upgraded
        return self.common(upgraded=upgraded) == other.common(upgraded=upgraded)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        content = asdict(self) | {"bits": self.bits}
        names = {"bits", *_names(self.format_version)} | ({_CHANCES} if self.chances else set())
        return {name: value for name, value in content.items() if name in names}


def _names(format_version: object) -> list[str]:
    """Return the fields of every manifest of a format."""
    absent: tuple[str, ...] = (_CHANCES,)
    if format_version != UPGRADED_FORMAT_VERSION:
        absent += _UPGRADED if format_version == OWN_FORMAT_VERSION else (*_OWN, *_UPGRADED)
    return [each.name for each in fields(Manifest) if each.name not in absent]


def new_manifest(
    codebooks: Codebooks,
    fingerprint: str,
    *,
    query_norm: QueryNorm = "unit",
    keep_embeddings: bool = False,
) -> Manifest:
    """Return the manifest of a new gallery with the codebooks of its model."""
    return Manifest(
        model_fingerprint=fingerprint,
        num_codebooks=codebooks.num_codebooks,
        codebook_size=codebooks.codebook_size,
        embedding_dim=codebooks.embedding_dim,
        query_norm=query_norm,
        keep_embeddings=keep_embeddings,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def new_own_manifest(
    embedding_dim: int,
    fingerprint: str,
    *,
    bits: int = 64,
    trust: float = TRUST,
    keep_embeddings: bool = True,
) -> Manifest:
    """Return the manifest of a new gallery that will own its codebooks."""
    check_own(bits, trust)
    return Manifest(
        model_fingerprint=fingerprint,
        num_codebooks=bits // 8,
        codebook_size=256,
        embedding_dim=embedding_dim,
        keep_embeddings=keep_embeddings,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        format_version=OWN_FORMAT_VERSION,
        codebooks="own",
        space="general",
        trust=trust,
    )


def check_own(bits: int, trust: float) -> None:
    """Raise a `ConfigError` unless a gallery can own codebooks with these settings."""
    if bits % 8 or not 8 <= bits <= 256:
        raise ConfigError(
            f"bits={bits} is not allowed for a gallery's own codebooks; use a multiple of 8 from 8 "
            "to 256."
        )
    if not 0 <= trust <= 1:
        raise ConfigError(f"trust={trust} is not allowed: it must be in [0, 1].")


def repair_command(folder: Path) -> str:
    """Return the end of a message about damage: the command that fixes it."""
    return f"Repair it with: phpq gallery verify --repair {folder}"


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json`; a `FormatError` says what is wrong and what to do."""
    path = folder / MANIFEST
    if not folder.is_dir():
        seen = "is a file" if folder.exists() else "does not exist"
        raise FormatError(
            f"The gallery {str(folder)!r} {seen}. Make one with: "
            f"phpq index {folder} IMAGES --model RUN"
        )
    if not path.is_file():
        inside = (folder / IMAGES).is_dir()
        given = "Give a folder that `phpq index` wrote, or an evaluated run of `phpq train`."
        hint = repair_command(folder) if inside else given
        raise FormatError(f"{str(folder)!r} is not a gallery: it has no {MANIFEST}. {hint}")
    return parse_manifest(read_json(path, remedy=repair_command(folder)), folder)


def parse_manifest(content: Mapping[str, Any], folder: Path) -> Manifest:
    """Turn plain data into a `Manifest`, checked."""
    version = content.get("format_version")
    if isinstance(version, int) and version > UPGRADED_FORMAT_VERSION:
        raise FormatError(
            f"The gallery {str(folder)!r} has format version {version!r}; this phpq "
            f"({__version__}) reads up to {UPGRADED_FORMAT_VERSION}. Update phpq, or index the "
            f"images again; if the file is damaged: phpq gallery verify --repair {folder}"
        )
    try:
        values = {name: content[name] for name in _names(version)}
        manifest = Manifest(**values, chances=content.get(_CHANCES, ""))
        own = manifest.owns_codebooks
        good = (
            version in (FORMAT_VERSION, OWN_FORMAT_VERSION, UPGRADED_FORMAT_VERSION)
            and manifest.codebooks in ("model", "own")
            and (manifest.upgraded or own == (version == OWN_FORMAT_VERSION))
            and (not manifest.model or manifest.model.isalnum())  # no path out of `models`
            and all(isinstance(number, int) for number in (manifest.before, manifest.left_out))
            and manifest.space in ("learned", "general")
            and isinstance(manifest.model_fingerprint, str)
            and isinstance(manifest.keep_embeddings, bool)
            and manifest.query_norm in ("unit", "raw")
            and manifest.num_codebooks >= 1
            and (own or manifest.embedding_dim % manifest.num_codebooks == 0)
            and 0 <= manifest.trust <= 1
            and all(isinstance(text, str) for text in (manifest.books, manifest.fit))
            and (not manifest.chances or manifest.chances.isalnum())
            and manifest.codebook_size in {1 << power for power in range(1, 9)}
            and manifest.bits == content["bits"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{str(folder / MANIFEST)!r} is damaged: {error!r}. {repair_command(folder)}"
        ) from error
    if not good:
        raise FormatError(
            f"{str(folder / MANIFEST)!r} is damaged: its values do not fit together (format "
            f"version {version!r}, {content.get('bits')!r} bits). {repair_command(folder)}"
        )
    return manifest


def newest_seen(folder: Path) -> int:
    """Return the newest version by the hint file of Lance, 0 without one."""
    try:
        return int(json.loads((folder / IMAGES / HINT).read_text("utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # it is only a hint


@contextmanager
def damage_named(folder: Path) -> Iterator[None]:
    """Turn errors of Lance and Arrow into a `FormatError` that names the repair."""
    try:
        yield
    except PhpqError:
        raise
    except DAMAGE as error:
        raise FormatError(
            f"The gallery {str(folder)!r} is damaged: {reason(error)}. {repair_command(folder)}"
        ) from error


def reason(error: Exception) -> str:
    """Return the message of an error of Lance without the line of its source."""
    return str(error).split(", /")[0].rstrip(".") or type(error).__name__


@contextmanager
def writing(folder: Path, *, timeout: float = 60.0, lock_file: str = LOCK) -> Iterator[None]:
    """Hold the lock of a gallery; waits `timeout` seconds for another writer.

    A `DataError` if another process still holds it after that time, or the folder is read-only.
    """
    path = folder / lock_file
    lock = FileLock(path, timeout=timeout, poll_interval=0.02)
    try:
        folder.stat()  # filelock would make a missing folder
        lock.acquire()
    except Timeout as error:
        doing = "changed" if lock_file == LOCK else "upgraded or refitted"
        still = f", still after {timeout:g} seconds" if timeout else ""
        raise DataError(
            f"The gallery {str(folder)!r} is being {doing} by another process (number "
            f"{_writer(path)}){still}. Nothing was lost: run this again when that one is done."
        ) from error
    except OSError as error:
        raise DataError(
            f"The gallery {str(folder)!r} cannot be changed: {error.strerror or error}. "
            "Check that the folder is there and that you may write to it."
        ) from error
    try:
        with contextlib.suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _writer(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:20].strip() or "unknown"
    except OSError:
        return "unknown"
