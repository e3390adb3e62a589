"""A filter in front of exact scoring: leaves out codes that lose too much, 64 at a time.

What an entry of a codebook's table loses against the best one is rounded down to a byte. Where the
bytes of a code add up to more than a limit, so does what it truly loses, and it need not be scored.
A table of 256 bytes fits four registers of AVX-512, and one instruction of VBMI looks up 64 entries
in two of them (Quicker ADC, André, Kermarrec and Le Scouarnec, arXiv 1812.09162). Where the
processor lacks it, nothing here is used.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray, IntArray
from phpq.compiling import compiled

# What numba compiles for, which is not always what the processor has; it keeps code apart by this.
_FEATURES = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
HAS_FILTER: bool = {"+avx512bw", "+avx512vbmi"} <= set(_FEATURES.split(","))

BLOCK = 64  # codes looked up at once: bytes of a register
CHUNK = 128 * BLOCK  # codes between two looks at the worst score kept
_MOST = CHUNK // 4  # that may be left of a chunk; to score all of it is then as fast
_LIMIT = 254.0  # of bytes added up, which end at 255
_STALE = 0.85  # of the reach that bytes were made for; below it they are made again
_DOWN = 1.0 - 2.0**-20  # by more than float32 rounds losses up

_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE = np.uint64(1)
_BYTES = ir.VectorType(ir.IntType(8), BLOCK)
_INDEX = ir.IntType(32)


class Sieve(NamedTuple):
    """What the filter keeps of one query."""

    losses: CodeArray  # (M, 256) rounded down, in units of reach / 254
    reach: NDArray[np.float64]  # (1,) the loss that 254 stands for; 0: none yet
    left: IntArray  # scratch: groups that are left of a chunk


@compiled
def aligned_bytes(rows: int, columns: int) -> CodeArray:
    """Return memory (rows, columns) that starts where a register's worth of bytes does."""
    size = rows * columns
    held = np.empty(size + BLOCK - 1, np.uint8)
    first = -held.ctypes.data % BLOCK
    return held[first : first + size].reshape(rows, columns)


@compiled
def new_sieve(codebooks: int) -> Sieve:
    """Make room for the filter of queries with M tables."""
    return Sieve(aligned_bytes(codebooks, 256), np.zeros(1), np.empty(_MOST + 2 * BLOCK, np.int64))


@compiled
def set_reach(sieve: Sieve, losses: FloatArray, reach: float) -> int:
    """Return the limit of the bytes added up above which a code loses more than `reach`."""
    reach = max(reach, 1e-200)  # 0 if all tables are
    if not _STALE * sieve.reach[0] <= reach <= sieve.reach[0]:
        sieve.reach[0] = reach
        unit = _DOWN * _LIMIT / reach
        for m in range(losses.shape[0]):
            for k in range(losses.shape[1]):
                sieve.losses[m, k] = np.uint8(min(np.float64(losses[m, k]) * unit, 255.0))
    return int(_LIMIT * reach / sieve.reach[0])


def _every(builder: Any, vectors: list[Any], start: int) -> Any:
    """Take byte `start` of n vectors in a row, and every n-th after it."""
    places = start + len(vectors) * np.arange(BLOCK)
    result = vectors[0]
    for number in range(1, len(vectors)):
        taken = places % BLOCK if number == 1 else np.arange(BLOCK)
        picks = np.where(places // BLOCK == number, BLOCK + places % BLOCK, taken)
        mask = ir.Constant(
            ir.VectorType(_INDEX, BLOCK), [ir.Constant(_INDEX, int(p)) for p in picks]
        )
        result = builder.shuffle_vector(result, vectors[number], mask)
    return result


def _columns(builder: Any, vectors: list[Any]) -> list[Any]:
    """Turn 64 rows of n bytes, n vectors in a row, into n columns of 64 bytes."""
    count = len(vectors)
    if count == 1:
        return vectors
    ways = 2 if count % 2 == 0 else count
    groups = [vectors[i : i + ways] for i in range(0, count, ways)]
    columns = [_columns(builder, [_every(builder, g, i) for g in groups]) for i in range(ways)]
    return [columns[j % ways][j // ways] for j in range(count)]


def _load(builder: Any, array: Any, start: Any, count: int) -> list[Any]:
    """Load vectors in a row from byte `start` of an array."""
    first = builder.bitcast(builder.gep(array.data, [start]), _BYTES.as_pointer())
    places = [builder.gep(first, [_INDEX(i)]) for i in range(count)]
    return [builder.load(place, align=1) for place in places]


def _block(_: Any, losses: Any, codes: Any, group: Any, limit: Any, books: Any) -> Any:
    """Emit code: which of the 64 codes from `group` on lose at most `limit`, a bit each."""
    signature = types.uint64(losses, codes, group, limit, books)
    count = books.literal_value

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tables, rows = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:2], args[:2], strict=True)
        )
        if not HAS_FILTER:
            return ir.IntType(64)(-1)  # none is left out
        look_up, add = (
            builder.module.declare_intrinsic(name, fnty=ir.FunctionType(_BYTES, [_BYTES] * takes))
            for name, takes in (
                ("llvm.x86.avx512.vpermi2var.qi.512", 3),
                ("llvm.uadd.sat.v64i8", 2),
            )
        )
        start = builder.mul(args[2], ir.IntType(64)(count))
        total = ir.Constant(_BYTES, [0] * BLOCK)
        for m, column in enumerate(_columns(builder, _load(builder, rows, start, count))):
            table = _load(builder, tables, ir.IntType(64)(256 * m), 4)
            low = builder.call(look_up, [table[0], column, table[1]])
            high = builder.call(look_up, [table[2], column, table[3]])
            is_high = builder.icmp_signed("<", column, ir.Constant(_BYTES, [0] * BLOCK))
            total = builder.call(add, [total, builder.select(is_high, high, low)])
        zeros = ir.Constant(ir.VectorType(_INDEX, BLOCK), [0] * BLOCK)
        lone = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), args[3], _INDEX(0))
        most = builder.shuffle_vector(lone, lone, zeros)
        return builder.bitcast(builder.icmp_unsigned("<=", total, most), ir.IntType(64))

    return signature, emit


def _lowest(_: Any, bits: Any) -> Any:
    """Emit code: the place of the lowest bit of a word that is not 0."""

    def emit(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), emit


_block_of = intrinsic(prefer_literal=True)(_block)
_lowest_bit = intrinsic(_lowest)


@compiled
def filters(codebooks: int) -> bool:
    """Say whether codes of M bytes can be filtered."""
    return HAS_FILTER and (codebooks in (4, 6, 8, 16))


def _sifting(books: int) -> Callable[[Sieve, CodeArray, tuple[int, int], int], int]:
    """Compile `sift` for one length: one loop for all keeps too many masks at hand."""

    def sift_books(sieve: Sieve, codes: CodeArray, span: tuple[int, int], limit: int) -> int:
        (first, last), left, count = span, sieve.left, 0
        whole, most = codes.shape[0] // BLOCK * BLOCK, np.uint8(limit)
        for group in range(first // BLOCK * BLOCK, min(last, whole), BLOCK):
            bits = _block_of(sieve.losses, codes, group, most, books)
            if not bits:
                continue
            if group < first:
                bits &= _ALL << np.uint64(first - group)
            if last - group < BLOCK:
                bits &= _ALL >> np.uint64(BLOCK - (last - group))
            if count > _MOST:
                return -1
            while bits:
                left[count] = group + _lowest_bit(bits)
                count += 1
                bits &= bits - _ONE
        for group in range(max(first, whole), last):
            left[count] = group
            count += 1
        return count

    return compiled(sift_books)


_sift_4, _sift_6, _sift_8, _sift_16 = (_sifting(books) for books in (4, 6, 8, 16))


@compiled
def sift(sieve: Sieve, codes: CodeArray, span: tuple[int, int], limit: int) -> int:
    """List the groups of a span that are left, in order; returns how many, or -1: too many.

    None that loses at most the limit is missing. The last rows of the part, less than a block, are
    all left.
    """
    books = codes.shape[1]
    if books == 4:
        return _sift_4(sieve, codes, span, limit)
    if books == 6:
        return _sift_6(sieve, codes, span, limit)
    if books == 8:
        return _sift_8(sieve, codes, span, limit)
    return _sift_16(sieve, codes, span, limit)
