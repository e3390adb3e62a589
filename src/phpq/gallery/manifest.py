"""`manifest.json`: what a gallery says of itself. Read and written as one frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phpq._version import __version__
from phpq.codes import Codebooks, QueryNorm
from phpq.errors import FormatError
from phpq.files import read_json, write_json

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The settings of a gallery.

    Attributes:
        model_fingerprint: Of the model that made the codes.
        num_codebooks: M, bytes of a code.
        codebook_size: K.
        embedding_dim: D.
        query_norm: How queries are scored, see `Codebooks.lookup_tables`.
        keep_embeddings: Whether float16 embeddings are stored beside the codes.
        created: Time in UTC, ISO 8601.
        phpq_version: That made it.
        format_version: Of the layout on disk.
    """

    model_fingerprint: str
    num_codebooks: int
    codebook_size: int
    embedding_dim: int
    query_norm: QueryNorm = "unit"
    keep_embeddings: bool = False
    created: str = ""
    phpq_version: str = __version__
    format_version: int = FORMAT_VERSION

    @property
    def bits(self) -> int:
        """Bits of one code: M log2 K."""
        return self.num_codebooks * (self.codebook_size.bit_length() - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self) | {"bits": self.bits}


def new_manifest(
    codebooks: Codebooks,
    fingerprint: str,
    *,
    query_norm: QueryNorm = "unit",
    keep_embeddings: bool = False,
) -> Manifest:
    """Describe a gallery that is made now."""
    return Manifest(
        model_fingerprint=fingerprint,
        num_codebooks=codebooks.num_codebooks,
        codebook_size=codebooks.codebook_size,
        embedding_dim=codebooks.embedding_dim,
        query_norm=query_norm,
        keep_embeddings=keep_embeddings,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def repair_command(folder: Path) -> str:
    """Return the end of a message about damage: the command that fixes it."""
    return f"Repair it with: phpq gallery verify --repair {folder}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` in one atomic step."""
    write_json(folder / MANIFEST, manifest.to_dict())


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        FormatError: If it is missing, damaged or of an unknown version; the message says what next.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        seen = "is a file" if folder.exists() else "does not exist"
        raise FormatError(
            f"The gallery {str(folder)!r} {seen}. Make one with: "
            f"phpq index {folder} IMAGES --model RUN"
        )
    if not path.is_file():
        inside = (folder / "images.lance").is_dir()
        given = "Give a folder that `phpq index` wrote, or an evaluated run of `phpq train`."
        hint = repair_command(folder) if inside else given
        raise FormatError(f"{str(folder)!r} is not a gallery: it has no {MANIFEST}. {hint}")
    return parse_manifest(read_json(path, remedy=repair_command(folder)), folder)


def parse_manifest(content: Mapping[str, Any], folder: Path) -> Manifest:
    """Turn plain data into a `Manifest`, checked."""
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatError(
            f"The gallery {str(folder)!r} has format version {version!r}; this phpq "
            f"({__version__}) reads {FORMAT_VERSION}. Update phpq, or index the images again; if "
            f"the file is damaged: phpq gallery verify --repair {folder}"
        )
    known = {field.name for field in dataclasses.fields(Manifest)}
    try:
        manifest = Manifest(**{key: content[key] for key in known})
        good = (
            version == FORMAT_VERSION
            and isinstance(manifest.model_fingerprint, str)
            and isinstance(manifest.keep_embeddings, bool)
            and manifest.query_norm in ("unit", "raw")
            and manifest.num_codebooks >= 1
            and manifest.embedding_dim % manifest.num_codebooks == 0
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
