"""The border between torch and numpy: codebooks, codes, and scores by table lookup.

Float embeddings (N, D) go in; codes (N, M) uint8, one byte per sub-vector, come out. A query
becomes an M x K table, and the score of a code (the paper's AQD) is the sum of the M entries it
picks.

Binary codes are product codes: eight bits are one codebook of all 256 sign patterns. Their inner
product is `bits - 2 * Hamming distance`, so that hashing methods are stored, searched and measured
by the same code. Sums of ones are exact in float32: equal distances give equal scores.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from phpq.errors import ShapeError

FloatArray = NDArray[np.float32]
CodeArray = NDArray[np.uint8]
IntArray = NDArray[np.int64]
QueryNorm = Literal["unit", "raw"]
# Embeddings of a model: the one learned with its codebooks, or the one for unseen classes.
Space = Literal["learned", "general"]

BITS_PER_BOOK = 8  # of a binary code
_BLOCK_ROWS = 1024  # rows of one matrix product with the codewords
_SETTLE_ROWS = 2048  # close candidates compared at once
_UNIT_TOLERANCE = 1e-3  # float16 weights pass, unnormalised codewords do not
_SCORE_BLOCK = 1 << 20  # scores held in one temporary array (4 MiB)


@dataclass(frozen=True, slots=True, eq=False)
class Codebooks:
    """M codebooks of K codewords; the numpy twin of the trained quantizer.

    Codewords of PHPQ have unit length. Those of other methods need not (`unit` False): sign
    patterns, or centroids of k-means with an offset.
    """

    codewords: FloatArray  # (M, K, d), finite; kept as a read-only copy
    unit: bool = True

    def __post_init__(self) -> None:
        codewords = np.array(_floats("codewords", self.codewords, ndim=3), order="C")
        books, size, sub_dim = codewords.shape
        if not books or not sub_dim or not 2 <= size <= 256 or size & (size - 1):
            raise ShapeError(
                f"codewords has shape {codewords.shape}; expected (M, K, d) with K a power of two "
                "from 2 to 256 and M, d at least 1. Pass the quantizer's codebooks unflattened."
            )
        lengths = np.linalg.norm(codewords, axis=2)
        worst = float(lengths.flat[np.abs(lengths - 1).argmax()])
        if self.unit and abs(worst - 1) > _UNIT_TOLERANCE:
            raise ShapeError(
                f"codewords holds a row of length {worst:.6g}; expected unit length within "
                f"{_UNIT_TOLERANCE:g}. Divide each codeword by its norm first, or say unit=False."
            )
        codewords.flags.writeable = False
        object.__setattr__(self, "codewords", codewords)

    @property
    def num_codebooks(self) -> int:
        """M: codebooks, and bytes of an unpacked code."""
        return int(self.codewords.shape[0])

    @property
    def codebook_size(self) -> int:
        """K: codewords of one codebook."""
        return int(self.codewords.shape[1])

    @property
    def sub_dim(self) -> int:
        """d: length of a codeword."""
        return int(self.codewords.shape[2])

    @property
    def embedding_dim(self) -> int:
        """D = M d."""
        return self.num_codebooks * self.sub_dim

    @property
    def bits_per_index(self) -> int:
        """log2 K."""
        return self.codebook_size.bit_length() - 1

    @property
    def bits(self) -> int:
        """Bits of one code: M log2 K."""
        return self.num_codebooks * self.bits_per_index

    def encode(self, embeddings: FloatArray) -> CodeArray:
        """Choose for each sub-vector the codeword of largest inner product.

        A row's code does not depend on the other rows: candidates closer than the rounding error of
        the matrix product are compared again in float64, row by row. The first of equal codewords
        wins. Takes (N, D) floats, normalised or not (the choice is the same); returns (N, M) uint8.
        """
        vectors = check_embeddings("embeddings", embeddings, self.embedding_dim)
        codes = np.empty((len(vectors), self.num_codebooks), dtype=np.uint8)
        for start, products in self._products(vectors):
            part = slice(start, start + len(products))
            codes[part] = products.argmax(axis=2)
            self._settle(codes[part], vectors[part], products)
        return codes

    def decode(self, codes: CodeArray) -> FloatArray:
        """Concatenate the codewords that codes (N, M) pick: (N, D) float32."""
        check_codes("codes", codes, self.num_codebooks, self.codebook_size)
        vectors: FloatArray = self.codewords[np.arange(self.num_codebooks), codes]
        return vectors.reshape(len(codes), self.embedding_dim)

    def lookup_tables(self, queries: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Score every codeword against every query, one table per codebook.

        "unit" divides each sub-vector of a query by its length, as in training; with "raw" longer
        sub-vectors weigh more. Takes (Q, D) floats and returns (Q, M, K) float32; the score of a
        code is the sum of the entries that it picks.
        """
        vectors = check_embeddings("queries", queries, self.embedding_dim)
        if norm not in ("unit", "raw"):
            raise ShapeError(f"norm={norm!r} is not known; use 'unit' (as trained) or 'raw'.")
        if norm == "unit":
            vectors = normalise_sub_vectors(vectors, self.num_codebooks)
        shape = (len(vectors), self.num_codebooks, self.codebook_size)
        tables = np.empty(shape, dtype=np.float32)
        for start, products in self._products(vectors):
            tables[start : start + len(products)] = products
        return tables

    def vectors(self, embeddings: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Return (N, D) vectors whose inner products are float scores."""
        rows = check_embeddings("embeddings", embeddings, self.embedding_dim)
        return normalise_sub_vectors(rows, self.num_codebooks) if norm == "unit" else rows

    def normalised(self, embeddings: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Return (N, D) embeddings with the same search results, each of equal weight in a mean.

        With "raw" a long sub-vector weighs more, as it does in a search.
        """
        return self.vectors(embeddings, norm=norm)

    def best(self, tables: FloatArray) -> FloatArray:
        """Return (Q,) the highest score that a code could reach under tables (Q, M, K)."""
        scores: FloatArray = tables.max(axis=2).sum(axis=1)
        return scores

    def best_float(self, vectors: FloatArray) -> FloatArray:
        """Return (Q,) the highest inner product of (Q, D) with a row of unit sub-vectors."""
        parts = vectors.reshape(len(vectors), self.num_codebooks, self.sub_dim)
        scores: FloatArray = np.linalg.norm(parts, axis=2).sum(axis=1)
        return scores

    def fingerprint(self) -> str:
        """Return the sha256 of shape and values, as hex: equal for equal codebooks only."""
        digest = hashlib.sha256(f"phpq codebooks {self.codewords.shape}".encode())
        digest.update(self.codewords.astype("<f4").tobytes())
        return digest.hexdigest()

    def _products(self, vectors: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """Yield (first row, (n, M, K) inner products) for blocks of at most _BLOCK_ROWS rows."""
        words = self.codewords.transpose(0, 2, 1)  # (M, d, K)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            rows = vectors[start : start + _BLOCK_ROWS]
            block = rows.reshape(-1, self.num_codebooks, self.sub_dim).transpose(1, 0, 2)
            yield start, np.matmul(block, words).transpose(1, 0, 2)

    def _settle(self, codes: CodeArray, vectors: FloatArray, products: FloatArray) -> None:
        """Choose again, in place, where rounding could have decided between codewords."""
        parts = vectors.reshape(-1, self.num_codebooks, self.sub_dim)
        # Each product is off by at most d * 2^-24 * |z_m| |c|, so a gap above twice that is real;
        # the margin is twice that again.
        lengths = np.sqrt(np.square(parts).sum(axis=2))
        lengths *= np.linalg.norm(self.codewords, axis=2).max()
        margin = 2 * self.sub_dim * np.finfo(np.float32).eps * lengths
        close = products >= (products.max(axis=2) - margin)[:, :, None]
        close &= lengths[:, :, None] > 0  # all products are 0: the first codeword stands
        rows, books = np.nonzero(close.sum(axis=2) > 1)
        pair, word = np.nonzero(close[rows, books])
        exact = np.empty(len(pair))
        for start in range(0, len(pair), _SETTLE_ROWS):
            part = slice(start, start + _SETTLE_ROWS)
            row, book = rows[pair[part]], books[pair[part]]
            terms = parts[row, book].astype(np.float64) * self.codewords[book, word[part]]
            exact[part] = terms.sum(axis=1)
        order = np.lexsort((word, -exact, pair))
        first = np.searchsorted(pair, np.arange(len(rows)))  # `pair` is ascending
        codes[rows, books] = word[order][first]


@dataclass(frozen=True, slots=True, eq=False)
class CodeGroups:
    """The rows of a gallery by distinct code, in lexicographic order of the codes."""

    codes: CodeArray  # (G, M) each code once
    group_of_row: IntArray  # (N,) which of them each row holds
    sizes: IntArray  # (G,) rows per code


def group_codes(codes: CodeArray) -> CodeGroups:
    """Find the distinct codes of (N, M); codes learned from labels repeat often.

    The order of the groups depends on the codes only, not on the order of the rows.
    """
    check_codes("codes", codes)
    books = codes.shape[1]
    if books <= 8:
        # Big-endian 64-bit numbers sort like their bytes, and much faster.
        padded = np.zeros((len(codes), 8), dtype=np.uint8)
        padded[:, :books] = codes
        keys, group_of_row, sizes = np.unique(
            padded.view(">u8").ravel().astype(np.uint64), return_inverse=True, return_counts=True
        )
        distinct = keys.astype(">u8").view(np.uint8).reshape(-1, 8)[:, :books]
    else:
        distinct, group_of_row, sizes = np.unique(
            codes, axis=0, return_inverse=True, return_counts=True
        )
    return CodeGroups(
        codes=np.ascontiguousarray(distinct),
        group_of_row=group_of_row.reshape(-1).astype(np.int64),
        sizes=sizes.astype(np.int64),
    )


def normalise_sub_vectors(embeddings: FloatArray, num_codebooks: int) -> FloatArray:
    """Divide each of the M sub-vectors of a row by its length; a zero sub-vector stays zero.

    Takes (N, D) floats, D divisible by M, and returns a new array; M = 1 normalises whole rows.
    """
    vectors = _floats("embeddings", embeddings, ndim=2)
    rows, dim = vectors.shape
    if num_codebooks < 1 or dim % num_codebooks:
        raise ShapeError(
            f"embeddings has {dim} columns, which {num_codebooks!r} sub-vectors do not divide. "
            "Use the number of codebooks the model was trained with."
        )
    result = np.empty((rows, num_codebooks, dim // num_codebooks), dtype=np.float32)
    for start in range(0, rows, 4096):
        block = vectors[start : start + 4096].reshape(-1, *result.shape[1:])
        lengths = np.sqrt(np.square(block, dtype=np.float64).sum(axis=2, keepdims=True))
        result[start : start + 4096] = block / np.where(lengths > 0, lengths, 1)
    return result.reshape(rows, dim)


def pack_codes(codes: CodeArray, bits_per_index: int) -> CodeArray:
    """Write the indices of each row one after the other, `bits_per_index` bits each.

    Lowest bit first, as faiss does it; each row starts on a byte, the last byte is filled with 0.
    Takes (N, M) and returns (N, ceil(M * bits_per_index / 8)); bits_per_index is log2 K, 1 to 8.
    """
    _check_bits(bits_per_index)
    check_codes("codes", codes, codebook_size=1 << bits_per_index)
    bits = np.unpackbits(codes[:, :, None], axis=2, count=bits_per_index, bitorder="little")
    flat = bits.reshape(len(codes), codes.shape[1] * bits_per_index)
    return np.packbits(flat, axis=1, bitorder="little")


def unpack_codes(packed: CodeArray, num_codebooks: int, *, bits_per_index: int) -> CodeArray:
    """Undo `pack_codes`: returns (N, M) uint8."""
    _check_bits(bits_per_index)
    count = num_codebooks * bits_per_index
    check_codes("packed", packed, (count + 7) // 8)
    bits = np.unpackbits(packed, axis=1, count=count, bitorder="little")
    bits = bits.reshape(len(packed), num_codebooks, bits_per_index)
    return np.packbits(bits, axis=2, bitorder="little")[:, :, 0]


def score_codes(tables: FloatArray, codes: CodeArray) -> FloatArray:
    """Score every code for every query by table lookups: AQD, higher is better.

    The M entries are added in the order of the codebooks, so equal codes get bit-equal scores.
    Takes tables (Q, M, K) of `Codebooks.lookup_tables` and codes (N, M); returns (Q, N) float32.
    """
    tables = _floats("tables", tables, ndim=3)
    check_codes("codes", codes, tables.shape[1], tables.shape[2])
    columns = codes.T.astype(np.intp)  # (M, N)
    scores = np.empty((len(tables), len(codes)), dtype=np.float32)
    step = max(1, _SCORE_BLOCK // max(1, len(codes)))
    for start in range(0, len(tables), step):
        block = scores[start : start + step]
        # Codes were checked above; "clip" avoids a second check.
        np.take(tables[start : start + step, 0], columns[0], axis=1, out=block, mode="clip")
        for m in range(1, tables.shape[1]):
            block += np.take(tables[start : start + step, m], columns[m], axis=1, mode="clip")
    return scores


def check_embeddings(name: str, array: FloatArray, dim: int | None = None) -> FloatArray:
    """Return finite (N, D) float32 rows, or raise a `ShapeError` that names the argument."""
    vectors = _floats(name, array, ndim=2)
    if dim is not None and vectors.shape[1] != dim:
        raise ShapeError(
            f"{name} has shape {vectors.shape}; expected (N, {dim}). Embed the images with the "
            "model that the codebooks come from."
        )
    return vectors


def check_codes(
    name: str, codes: CodeArray, num_codebooks: int | None = None, codebook_size: int = 256
) -> None:
    """Raise a `ShapeError` that names the argument unless it is (N, M) uint8, indices below K."""
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8 or codes.ndim != 2:
        raise ShapeError(f"{name} is {seen_as(codes)}; expected a uint8 array of shape (N, M).")
    if codes.shape[1] != (num_codebooks or max(1, codes.shape[1])):
        raise ShapeError(
            f"{name} has shape {codes.shape}; expected (N, {num_codebooks or 'M >= 1'}). "
            "Codes and codebooks must come from the same model."
        )
    if codebook_size < 256 and codes.size and int(codes.max()) >= codebook_size:
        raise ShapeError(
            f"{name} holds the index {int(codes.max())}; expected 0 to {codebook_size - 1}. "
            "Codes and codebooks must come from the same model."
        )


def _check_bits(bits_per_index: int) -> None:
    if not 1 <= bits_per_index <= 8:
        raise ShapeError(f"bits_per_index={bits_per_index!r} must be 1 to 8: log2 of K.")


def _floats(name: str, array: Any, *, ndim: int) -> FloatArray:
    good = isinstance(array, np.ndarray) and array.ndim == ndim
    if not good or not np.issubdtype(array.dtype, np.floating):
        raise ShapeError(
            f"{name} is {seen_as(array)}; expected a float array of {ndim} dimensions."
        )
    with np.errstate(over="ignore"):  # reported below, by name
        values = np.asarray(array, dtype=np.float32)
    if not np.isfinite(values).all():
        count = int(np.size(values) - np.isfinite(values).sum())
        raise ShapeError(
            f"{name} holds {count} values that are not finite in float32; expected none. "
            "Look for a diverged model or a bad input image."
        )
    return values


def seen_as(value: Any) -> str:
    """Describe a value that is not the expected array."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {str(value.dtype)!r}"
    return f"a {type(value).__name__!r}"


def sign_codebooks(bits: int) -> Codebooks:
    """Return codebooks whose codes are packed signs: bit j of a byte is 1 for a positive sign.

    Codewords are (bits / 8, 256, 8) of -1 and +1. Search with `query_norm="raw"`.
    """
    if bits < BITS_PER_BOOK or bits % BITS_PER_BOOK:
        raise ShapeError(
            f"bits={bits!r} is not allowed for a binary code; use a multiple of {BITS_PER_BOOK}."
        )
    bytes_ = np.arange(256, dtype=np.uint8)[:, None]
    patterns = 2.0 * np.unpackbits(bytes_, axis=1, bitorder="little") - 1
    books = np.broadcast_to(patterns.astype(np.float32), (bits // BITS_PER_BOOK, 256, 8))
    return Codebooks(books, unit=False)


def pack_signs(values: FloatArray) -> CodeArray:
    """Pack the signs of (N, bits) floats into (N, bits / 8) uint8, as `sign_codebooks` does."""
    bits = check_embeddings("values", values) >= 0
    if bits.shape[1] % BITS_PER_BOOK:
        raise ShapeError(
            f"values has {bits.shape[1]} columns; expected a multiple of {BITS_PER_BOOK}."
        )
    return np.packbits(bits, axis=1, bitorder="little")


def hamming_distances(queries: CodeArray, gallery: CodeArray) -> IntArray:
    """Count differing bits of codes (Q, bytes) and (N, bytes): (Q, N) int64."""
    check_codes("queries", queries)
    check_codes("gallery", gallery, queries.shape[1])
    differing = np.bitwise_count(queries[:, None] ^ gallery[None])
    return np.asarray(differing.sum(axis=2, dtype=np.int64))
