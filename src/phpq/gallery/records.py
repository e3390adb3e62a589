"""The rows of a gallery: records in, an Arrow table of the stored columns out, and back.

Stored columns: `row` (order of insertion), `id`, `uri`, `label`, `sha256`, `code`, `check` (a
checksum of row and code), `embedding` where kept, and free metadata columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import CodeArray, IntArray
from phpq.errors import DataError
from phpq.gallery.folder import Manifest

INTERNAL = ("row", "check", "code", "embedding", "sha256")
RESERVED = frozenset({"id", "uri", "label", "path", "image", *INTERNAL})


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One image as it is stored."""

    id: str  # its name, unique in the gallery
    uri: str | None  # where its file is; None if it comes from no file
    label: str | None  # its class, if it has one
    sha256: bytes  # of the file's bytes, 32 bytes
    code: CodeArray  # (M,) uint8
    # Values of the free columns; None and a missing name are the same.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: NDArray[np.float16] | None = None  # (D,), or None where embeddings are not kept


def sql_text(text: str) -> str:
    """Write any text as an expression of Lance SQL."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def base_schema(manifest: Manifest) -> Any:
    """Return the Arrow schema of a gallery without metadata columns."""
    fields = [
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("uri", pa.string()),
        pa.field("label", pa.string()),
        pa.field("sha256", pa.binary(32)),
        pa.field("code", pa.list_(pa.uint8(), manifest.num_codebooks)),
        pa.field("check", pa.uint32()),
    ]
    if manifest.keep_embeddings:
        fields.append(pa.field("embedding", pa.list_(pa.float16(), manifest.embedding_dim)))
    return pa.schema(fields)


def column_name(name: str) -> str:
    """Return the column of a metadata name: lower case, `_` for characters that SQL would quote."""
    cleaned = re.sub(r"\W+", "_", name.strip()).strip("_").lower()
    if not cleaned or cleaned in RESERVED or cleaned.startswith("_"):
        raise DataError(
            f"{name!r} cannot name a metadata column. These are taken: "
            f"{', '.join(sorted(RESERVED))}. Rename the column."
        )
    return f"c_{cleaned}" if cleaned[0].isdigit() else cleaned


def checked_codes(table: Any, num_codebooks: int) -> tuple[IntArray, CodeArray]:
    """Return row numbers (n,) int64 and codes (n, M) uint8; a `ValueError` if damaged."""
    if any(table.column(name).null_count for name in ("row", "code", "check")):
        raise ValueError("codes are missing")
    rows: IntArray = numbers(table.column("row"))
    codes = code_matrix(table.column("code"), num_codebooks)
    if (row_checks(rows, codes) != numbers(table.column("check"))).any():
        raise ValueError("codes are not what was written")
    return rows, codes


def row_checks(rows: IntArray, codes: CodeArray) -> NDArray[np.uint32]:
    """Return the checksums (N,) uint32 of row numbers (N,) and codes (N, M)."""
    # Odd multipliers: every change of a single byte changes the sum.
    factors = np.random.default_rng(20).integers(1 << 32, size=codes.shape[1], dtype=np.uint32) | 1
    sums = (codes.astype(np.uint32) * factors).sum(axis=1, dtype=np.uint32)
    return np.asarray(sums ^ (rows * 2654435761 & 0xFFFFFFFF).astype(np.uint32))


def to_table(records: Sequence[Record], rows: IntArray, schema: Any) -> Any:
    """Lay out records with clean metadata names as an Arrow table; `rows` (n,) are their numbers.

    The table has the columns of the gallery, `schema`, then the new ones. A `DataError` names a
    column whose values do not fit its type.
    """
    count = schema.field("code").type.list_size
    codes = np.stack([record.code for record in records]).reshape(-1, count)
    columns: dict[str, Any] = {
        "row": pa.array(rows),
        "id": pa.array([record.id for record in records], pa.string()),
        "uri": pa.array([record.uri for record in records], pa.string()),
        "label": pa.array([record.label for record in records], pa.string()),
        "sha256": pa.array([record.sha256 for record in records], pa.binary(32)),
        "code": pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), count),
        "check": pa.array(row_checks(rows, codes)),
    }
    if "embedding" in schema.names:
        columns["embedding"] = _embeddings(records, schema.field("embedding").type)
    free = dict.fromkeys(name for name in schema.names if name not in columns)
    free |= dict.fromkeys(name for record in records for name in record.metadata)
    for name in free:
        values = [record.metadata.get(name) for record in records]
        kind = schema.field(name).type if name in schema.names else None
        array = _metadata(name, values, kind)
        if array is not None:
            columns[name] = array
    return pa.table(columns)


def code_matrix(column: Any, num_codebooks: int) -> CodeArray:
    """Turn a `code` column without nulls into (N, M) uint8."""
    flat = [chunk.flatten() for chunk in column.chunks]
    codes = numbers(pa.chunked_array(flat, pa.uint8())).reshape(-1, num_codebooks)
    return codes.astype(np.uint8, copy=False)


def embedding_matrix(column: Any) -> NDArray[np.float16]:
    """Turn an `embedding` column without nulls into (N, D)."""
    flat: NDArray[np.float16] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, column.type.list_size)


def numbers(column: Any) -> NDArray[Any]:
    """Turn a column of numbers without nulls into (N,); Arrow's own way would load pandas."""
    return np.concatenate(
        [np.empty(0, column.type.to_pandas_dtype()), *map(np.from_dlpack, column.chunks)]
    )


def _embeddings(records: Sequence[Record], kind: Any) -> Any:
    vectors = [record.embedding for record in records if record.embedding is not None]
    if len(vectors) != len(records):
        raise DataError("The gallery keeps embeddings, but some records have none. Give them all.")
    flat = np.stack(vectors).astype(np.float16).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), kind.list_size)


def _metadata(name: str, values: list[Any], kind: Any) -> Any:
    """Return an Arrow array, or None for a new column without a value."""
    try:
        if kind is not None:
            return pa.array(values, pa.string() if pa.types.is_string(kind) else None).cast(kind)
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        seen = next((value for value in values if value is not None), None)
        wanted = f"{kind} as before" if kind is not None else "values of one type"
        raise DataError(
            f"The metadata column {name!r} has values such as {seen!r}; expected {wanted}. "
            f"Fix them, or name the column otherwise. ({error})"
        ) from error
    if pa.types.is_null(array.type):
        return None
    if pa.types.is_nested(array.type):
        raise DataError(
            f"The metadata column {name!r} holds {array.type}; expected texts, numbers, truth "
            "values or dates."
        )
    return array
