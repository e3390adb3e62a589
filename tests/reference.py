"""Slow plain-loop twins of the fast paths, and small data to try both on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray
from phpq.evaluation._ranking import TieGroups


def random_codebooks(
    rng: np.random.Generator, num_codebooks: int = 3, codebook_size: int = 8, sub_dim: int = 4
) -> Codebooks:
    words = rng.standard_normal((num_codebooks, codebook_size, sub_dim))
    words /= np.linalg.norm(words, axis=2, keepdims=True)
    return Codebooks(words.astype(np.float32))


def encode_loop(codewords: FloatArray, embeddings: FloatArray) -> list[list[int]]:
    """argmax_k <z_m, c_m^k>, the first of equals."""
    books, size, sub_dim = codewords.shape
    codes = []
    for row in embeddings:
        code = []
        for m in range(books):
            best, best_score = 0, -math.inf
            for k in range(size):
                score = math.fsum(
                    float(row[m * sub_dim + j]) * float(codewords[m, k, j]) for j in range(sub_dim)
                )
                if score > best_score:
                    best, best_score = k, score
            code.append(best)
        codes.append(code)
    return codes


def aqd_loop(
    codewords: FloatArray, query: FloatArray, code: Sequence[int], *, unit: bool = True
) -> float:
    """sum_m <v_m, c_m^(i_m)>, with v_m the normalised (or raw) sub-vector of the query."""
    total = 0.0
    sub_dim = codewords.shape[2]
    for m, index in enumerate(code):
        part = [float(query[m * sub_dim + j]) for j in range(sub_dim)]
        length = math.sqrt(sum(value * value for value in part)) if unit else 1.0
        for j in range(sub_dim):
            total += part[j] / (length or 1.0) * float(codewords[m, index, j])
    return total


def average_precision_loop(relevant_in_order: Sequence[bool]) -> float:
    """AP of one ranked list; divided by what could be found, not by what was."""
    hits, total = 0, 0.0
    for rank, relevant in enumerate(relevant_in_order, start=1):
        if relevant:
            hits += 1
            total += hits / rank
    return total / sum(relevant_in_order)


def average_precision_over_permutations(scores: Sequence[float], relevant: Sequence[bool]) -> float:
    """Average the AP over every order of the gallery that keeps the scores descending."""
    values = average_precisions_of_orders(scores, relevant)
    return math.fsum(values) / len(values)


def average_precisions_of_orders(scores: Sequence[float], relevant: Sequence[bool]) -> list[float]:
    """Return the AP of every order of the gallery that keeps the scores descending."""
    return [average_precision_loop(order) for order in orders_of_ties(scores, relevant)]


def orders_of_ties(scores: Sequence[float], relevant: Sequence[bool]) -> list[list[bool]]:
    """Return every order of the gallery that keeps the scores descending: is the item relevant?"""
    groups: dict[float, list[bool]] = {}
    for score, hit in sorted(zip(scores, relevant, strict=True), key=lambda pair: -pair[0]):
        groups.setdefault(score, []).append(hit)
    orders = [list(itertools.permutations(group)) for group in groups.values()]
    return [[hit for group in choice for hit in group] for choice in itertools.product(*orders)]


def map_at_r_loop(relevant_in_order: Sequence[bool]) -> float:
    """AP of the first R items of a ranked list, R what could be found."""
    total = sum(relevant_in_order)
    hits, found = 0, 0.0
    for rank, relevant in enumerate(relevant_in_order[:total], start=1):
        if relevant:
            hits += 1
            found += hits / rank
    return found / total


def expected_hits_loop(scores: Sequence[float], relevant: Sequence[bool]) -> list[Fraction]:
    """Expected relevant items among the first N, for N = 0 .. all, under a random order of ties."""
    pairs = sorted(zip(scores, relevant, strict=True), key=lambda pair: -pair[0])
    hits = [Fraction(0)]
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        members = [hit for _, hit in group]
        for _ in members:
            hits.append(hits[-1] + Fraction(sum(members), len(members)))
    return hits


def precision_at_loop(scores: Sequence[float], relevant: Sequence[bool], n: int) -> float:
    hits = expected_hits_loop(scores, relevant)
    return float(hits[min(n, len(scores))] / n)


def precision_at_recall_loop(
    scores: Sequence[float], relevant: Sequence[bool], points: int
) -> list[float]:
    """Largest expected precision of all ranks whose expected recall reaches each level."""
    hits = expected_hits_loop(scores, relevant)
    total = sum(relevant)
    values = []
    for level in range(points):
        reach = Fraction(level * total, points - 1)
        values.append(float(max(hits[n] / n for n in range(1, len(hits)) if hits[n] >= reach)))
    return values


def search_loop(table: FloatArray, codes: CodeArray, top_k: int) -> list[tuple[int, float]]:
    """Rows by (score, insertion), each scored alone from the query's lookup table (M, K)."""
    scored = []
    for row, code in enumerate(codes):
        score = np.float32(0)
        for m, index in enumerate(code):
            score = score + table[m, index] if m else table[m, index]
        scored.append((row, float(score)))
    scored.sort(key=lambda pair: (-pair[1], pair[0]))
    return scored[:top_k]


def scan_codes(
    tables: FloatArray, codes: CodeArray, top_k: int, rows: IntArray | None = None
) -> tuple[IntArray, FloatArray]:
    """Score every row for queries (Q, M, K), sort stably: the first `top_k` ids and scores.

    `rows` ascending are those that may be found. Where too few are left: -1 and -inf.
    """
    ids = np.full((len(tables), top_k), -1, dtype=np.int64)
    best = np.full((len(tables), top_k), -np.inf, dtype=np.float32)
    rows = np.arange(len(codes)) if rows is None else rows
    for q, table in enumerate(tables):
        scores = table[0, codes[rows, 0]]
        for m in range(1, codes.shape[1]):
            scores = scores + table[m, codes[rows, m]]
        order = np.argsort(-scores, kind="stable")[:top_k]
        ids[q, : len(order)], best[q, : len(order)] = rows[order], scores[order]
    return ids, best


def relevance(query_labels: IntArray, gallery_labels: IntArray) -> list[list[bool]]:
    return [[bool(q == g) for g in gallery_labels] for q in query_labels]


Vector = Sequence[float]
Matrix = Sequence[Sequence[float]]


def gsp_loop(channel: Matrix, rho: float, *, kind: str) -> float:
    """Pool one channel (h, w): "paper" as printed, 1/HW (sum F^rho)^(1/rho); "gem" mean inside."""
    values = [float(value) for row in channel for value in row]
    if math.isinf(rho):
        return max(values) if kind == "gem" else max(values) / len(values)
    total = 0.0
    for value in values:
        total += value**rho
    if kind == "gem":
        return float((total / len(values)) ** (1 / rho))
    return float(total ** (1 / rho)) / len(values)


def gsp_gradient_loop(channel: Matrix, rho: float) -> list[list[float]]:
    """d a / d F_hw = 1/HW (sum F^rho)^(1/rho - 1) F_hw^(rho - 1), the paper's equation."""
    total = sum(value**rho for row in channel for value in row)
    count = sum(len(row) for row in channel)
    outer = total ** (1 / rho - 1) / count
    return [[float(outer * value ** (rho - 1)) for value in row] for row in channel]


def linear_loop(weight: Matrix, bias: Vector, point: Vector) -> list[float]:
    """W x + b."""
    return [
        sum(w * x for w, x in zip(row, point, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]


def fusion_loop(pooled: Sequence[Vector], layers: Sequence[tuple[Matrix, Vector]]) -> list[float]:
    """h2 = FC(f2); h3 = FC(h2 + f3); h4 = h3 + f4, for any number of levels."""
    fused = list(pooled[0])
    for (weight, bias), descriptor in zip(layers, pooled[1:], strict=True):
        carried = linear_loop(weight, bias, fused)
        fused = [h + f for h, f in zip(carried, descriptor, strict=True)]
    return fused


def unit_loop(vector: Vector) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def attention_loop(cosines: Vector, *, alpha: float, kappa: int) -> list[float]:
    """Softmax of 2 alpha cos over all codewords, mask all but the top kappa, renormalise."""
    exponentials = [math.exp(2 * alpha * cosine) for cosine in cosines]
    scores = [value / sum(exponentials) for value in exponentials]
    ranked = sorted(range(len(scores)), key=lambda k: -scores[k])
    masked = [score if k in ranked[:kappa] else 0.0 for k, score in enumerate(scores)]
    return [score / sum(masked) for score in masked]


def reconstruct_loop(
    embedding: Vector, codewords: Sequence[Matrix], *, alpha: float, kappa: int
) -> list[float]:
    """Soft quantization: z_m and c_m^k to unit length, then sum_k p_m^k c_m^k, side by side."""
    sub_dim = len(codewords[0][0])
    result: list[float] = []
    for m, book in enumerate(codewords):
        part = unit_loop(embedding[m * sub_dim : (m + 1) * sub_dim])
        words = [unit_loop(word) for word in book]
        cosines = [sum(a * b for a, b in zip(part, word, strict=True)) for word in words]
        weights = attention_loop(cosines, alpha=alpha, kappa=kappa)
        for j in range(sub_dim):
            result.append(sum(p * word[j] for p, word in zip(weights, words, strict=True)))
    return result


def cross_entropy_loop(
    logits: Matrix, labels: Sequence[int], *, tau: float, smoothing: float = 0.0
) -> float:
    """SR-CEL: mean of -log softmax(o / tau); a share of the target is spread over all classes."""
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        normaliser = math.log(sum(math.exp(value / tau) for value in row))
        for c, value in enumerate(row):
            target = smoothing / len(row) + (1 - smoothing if c == label else 0.0)
            total -= target * (value / tau - normaliser)
    return total / len(labels)


def contrastive_loop(
    points: Matrix,
    labels: Sequence[int],
    *,
    margins: tuple[float, float],
    positive_mean: str = "true",
    epsilon: float = 0.0,
) -> float:
    """Mean over classes of max(d+ - m+, 0) + max(m- - d-, 0), pair by pair."""

    def distance(i: int, j: int) -> float:
        squares = ((a - b) ** 2 for a, b in zip(points[i], points[j], strict=True))
        return math.sqrt(sum(squares) + epsilon)

    losses = []
    for label in sorted(set(labels)):
        inside = [i for i, other in enumerate(labels) if other == label]
        outside = [i for i, other in enumerate(labels) if other != label]
        positives = [distance(i, j) for i in inside for j in inside if i != j]
        negatives = [distance(i, j) for i in inside for j in outside]
        loss = 0.0
        if positives:
            pairs = len(positives) if positive_mean == "true" else len(inside) ** 2
            loss += max(sum(positives) / pairs - margins[0], 0.0)
        if negatives:
            loss += max(margins[1] - sum(negatives) / len(negatives), 0.0)
        losses.append(loss)
    return sum(losses) / len(losses)


def bilinear_loop(channel: Matrix, x: float, y: float) -> float:
    """Value of a channel (h, w) at a point, in pixels from the corner; edges repeat outwards."""
    height, width = len(channel), len(channel[0])
    column, row = x - 0.5, y - 0.5  # pixel centres lie at half numbers
    left, top = math.floor(column), math.floor(row)
    value = 0.0
    for i in (top, top + 1):
        for j in (left, left + 1):
            weight = (1 - abs(row - i)) * (1 - abs(column - j))
            value += weight * channel[min(max(i, 0), height - 1)][min(max(j, 0), width - 1)]
    return value


def rank_scores(scores: FloatArray, labels: IntArray, gallery_labels: IntArray) -> TieGroups:
    """Rank a gallery by a ready (Q, N) matrix of scores, item by item."""
    groups: list[tuple[int, int, int, int, int]] = []
    totals, first = [], []
    for query, (row, label) in enumerate(zip(scores.tolist(), labels.tolist(), strict=True)):
        right = [other == label for other in gallery_labels.tolist()]
        by_score: dict[float, list[bool]] = {}
        for score, hit in zip(row, right, strict=True):
            by_score.setdefault(score, []).append(hit)
        before = hits_before = 0
        for _, tied in sorted(by_score.items(), reverse=True):
            if any(tied):
                groups.append((query, len(tied), sum(tied), before, hits_before))
            before += len(tied)
            hits_before += sum(tied)
        totals.append(sum(right))
        first.append(right[row.index(max(row))])
    columns = np.array(groups, dtype=np.int64).reshape(-1, 5).T
    return TieGroups(
        query=columns[0],
        size=columns[1],
        relevant=columns[2],
        size_before=columns[3],
        relevant_before=columns[4],
        relevant_total=np.array(totals, dtype=np.int64),
        first_relevant=np.array(first),
        gallery_size=len(gallery_labels),
    )
