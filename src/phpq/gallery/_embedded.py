"""Sources of embeddings when all rows are encoded again: kept ones, codes, or the images.

Images are embedded into files in the gallery, one per block of row numbers, each row with the hash
of its image. Meanwhile the gallery can be changed: rows that changed are embedded again, and after
a kill finished blocks are not.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray
from phpq.data.places import exists, is_uri, origin_at
from phpq.files import write_bytes
from phpq.gallery._part import batches, find_part
from phpq.gallery.folder import Manifest
from phpq.gallery.ingest import Progress, encode_items
from phpq.gallery.owned import SIDE
from phpq.gallery.records import code_matrix, embedding_matrix
from phpq.gallery.sources import Item
from phpq.gallery.store import GalleryStore

if TYPE_CHECKING:
    from phpq.model import Model

_BLOCK = 2048  # row numbers per file
_Key = tuple[int, bytes]  # row number and hash of its image
_Value = tuple[CodeArray, NDArray[np.float16]]  # code and embedding; what is not needed is empty


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Embeddings or codes of n rows."""

    embeddings: FloatArray  # (n, D), or (n, 0) if only the codes of the model are needed
    codes: CodeArray  # (n, M) of the model, or (n, 0) if the gallery owns its codebooks
    known: NDArray[np.bool_]  # (n,): False for rows that have neither


class KeptEmbeddings:
    """Embeddings that the gallery keeps."""

    from_codes = 0

    def of(self, store: GalleryStore, table: Any) -> Vectors:
        """Return the vectors of the rows of a table."""
        vectors = kept_embeddings(table)
        count = len(vectors)
        return Vectors(vectors, np.empty((count, 0), np.uint8), np.ones(count, np.bool_))


class DecodedCodes:
    """What the codes of a gallery that owns its codebooks tell of the embeddings."""

    def __init__(self) -> None:
        self.from_codes = 0  # rows, so far

    def of(self, store: GalleryStore, table: Any) -> Vectors:
        """Return the vectors of the rows of a table."""
        codes, count = code_matrix(table["code"], store.manifest.num_codebooks), table.num_rows
        labels = table["label"].to_pylist()
        vectors = store.own_codebooks().decode_without_class(codes, labels)
        self.from_codes += count
        return Vectors(vectors, np.empty((count, 0), np.uint8), np.ones(count, np.bool_))


class ReembeddedImages:
    """Images of a gallery, embedded by the model of the version that is `planned`."""

    def __init__(self, store: GalleryStore, model: Model, planned: Manifest) -> None:
        self.home = store.folder / SIDE / planned.model_fingerprint
        self._model, self._planned = model, planned
        # Old codes of the same model can be decoded where an image is gone.
        before = store.manifest
        same_model = before.model_fingerprint == planned.model_fingerprint
        self._decodable = before.owns_codebooks and same_model
        self._failed: set[_Key] = set()  # images that could not be read, or have changed
        self._prepared = False
        self.from_codes = 0  # rows, so far, that were decoded from their old codes

    def find_missing(self, store: GalleryStore) -> list[str]:
        """Return the ids of images that cannot be embedded, as far as is known before `prepare`."""
        if self._decodable:
            return []
        missing: list[str] = []
        at, held = -1, {}  # rows come in the order of their numbers: each file is read once
        for table in batches(store, without=("check", "code", "embedding")):
            for name, uri, key in _listed(table):
                gone = uri is None or key in self._failed
                if not gone and not self._prepared and not is_uri(uri) and not exists(uri or ""):
                    if key[0] // _BLOCK != at:
                        at = key[0] // _BLOCK
                        held = self._read(at)
                    gone = key not in held
                if gone:
                    missing.append(name)
        return missing

    def prepare(self, store: GalleryStore, progress: Progress | None) -> None:
        """Embed the images that are not embedded yet."""
        rows, done = find_part(store).rows, 0
        for block in np.unique(rows // _BLOCK).tolist():
            done += self._embed(store, block)
            if progress:
                progress("embedding", done, len(rows))
        self._prepared = True

    def of(self, store: GalleryStore, table: Any) -> Vectors:
        """Return the vectors of the rows of a table; decoded old codes where an image is gone."""
        rows, hashes = table["row"].to_numpy(), table["sha256"].to_pylist()
        planned = self._planned
        width = 0 if self._only_codes else planned.embedding_dim
        vectors = np.zeros((len(rows), width), np.float32)
        books = 0 if planned.owns_codebooks else planned.num_codebooks
        codes = np.zeros((len(rows), books), np.uint8)
        known = np.zeros(len(rows), np.bool_)
        for block in np.unique(rows // _BLOCK).tolist():
            held = self._read(block)
            for place in np.flatnonzero(rows // _BLOCK == block).tolist():
                value = held.get((int(rows[place]), hashes[place]))
                if value is not None:
                    (codes[place], vectors[place]), known[place] = value, True
        if self._decodable and not known.all():
            gone = code_matrix(table["code"], store.manifest.num_codebooks)[~known]
            labels = table["label"].filter(pa.array(~known)).to_pylist()
            vectors[~known] = store.own_codebooks().decode_without_class(gone, labels)
            self.from_codes += int((~known).sum())
            known[:] = True
        return Vectors(vectors, codes, known)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.home, ignore_errors=True)

    @property
    def _only_codes(self) -> bool:
        return not (self._planned.owns_codebooks or self._planned.keep_embeddings)

    def _embed(self, store: GalleryStore, block: int) -> int:
        """Embed the rows of one block that its file lacks; returns the rows of the block."""
        first = block * _BLOCK
        table = store.dataset.to_table(
            columns=["row", "id", "uri", "sha256"],
            filter=f"row >= {first} AND row < {first + _BLOCK}",
        )
        listed = _listed(table)
        held = self._read(block)
        missing = [
            (key, Item(name, origin_at(uri)))
            for name, uri, key in listed
            if key not in held and key not in self._failed and uri is not None
        ]
        if not missing:
            return len(listed)
        encoded = encode_items(
            [item for _, item in missing],
            self._model,
            keep_embeddings=not self._only_codes,
            space=self._planned.space,
        )
        for (key, _), each in zip(missing, chain.from_iterable(encoded), strict=True):
            record = each.record
            if record is None or record.sha256 != key[1]:
                self._failed.add(key)
                continue
            vector = record.embedding
            held[key] = (record.code, np.empty(0, np.float16) if vector is None else vector)
        self._write(block, {key: held[key] for _, _, key in listed if key in held})
        return len(listed)

    def _path(self, block: int) -> Path:
        return self.home / f"{block:09d}.safetensors"

    def _write(self, block: int, held: Mapping[_Key, _Value]) -> None:
        from safetensors.numpy import save

        if not held:
            return
        tensors: dict[str, NDArray[Any]] = {
            "rows": np.array([row for row, _ in held], np.int64),
            "sha256": np.frombuffer(b"".join(sha for _, sha in held), np.uint8),
            "codes": np.stack([code for code, _ in held.values()]),
            "embeddings": np.stack([vector for _, vector in held.values()]),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path(block), save(tensors))

    def _read(self, block: int) -> dict[_Key, _Value]:
        """Return what was embedded of a block."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            held = load(self._path(block).read_bytes())
            hashes = held["sha256"].tobytes()
            parts = zip(held["rows"].tolist(), held["codes"], held["embeddings"], strict=True)
            return {
                (row, hashes[32 * place : 32 * place + 32]): (code, vector)
                for place, (row, code, vector) in enumerate(parts)
            }
        except (OSError, SafetensorError, KeyError, ValueError):
            return {}  # then it is embedded again


EmbeddingSource = KeptEmbeddings | DecodedCodes | ReembeddedImages


def kept_embeddings(table: Any) -> FloatArray:
    """Return the kept embeddings (n, D) of a table, as float32."""
    return embedding_matrix(table["embedding"]).astype(np.float32)


def _listed(table: Any) -> list[tuple[str, str | None, _Key]]:
    """Return id, URI and key of every row."""
    columns = (table[name].to_pylist() for name in ("id", "uri", "row", "sha256"))
    return [(name, uri, (row, sha)) for name, uri, row, sha in zip(*columns, strict=True)]
