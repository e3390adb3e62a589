"""What each codebook adds to the score of a match: a query and a code in, M shares out."""

from __future__ import annotations

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, QueryNorm, check_codes
from phpq.errors import ShapeError


def codebook_shares(
    codebooks: Codebooks,
    query_embedding: FloatArray,
    code: CodeArray,
    *,
    query_norm: QueryNorm = "unit",
) -> FloatArray:
    """Split the score of one query and one gallery image by codebook.

    Args:
        codebooks: Those of the gallery.
        query_embedding: (D,) float, normalised or not. For a query that is known by its code only,
            what the code decodes to, as `Gallery.search_id` does it.
        code: (M,) uint8, of the gallery image.
        query_norm: As the gallery searches; see `Codebooks.lookup_tables`.

    Returns:
        (M,) float32, negative where a codebook speaks against the match. They add up to the score
        of the index; not to that of a re-ranked hit, which float embeddings score.
    """
    if not isinstance(query_embedding, np.ndarray) or query_embedding.ndim != 1:
        raise ShapeError(
            f"query_embedding has shape {np.shape(query_embedding)}; expected "
            f"({codebooks.embedding_dim},). Explain one query at a time."
        )
    chosen = check_code(codebooks, code)
    tables = codebooks.lookup_tables(query_embedding[None], norm=query_norm)
    shares: FloatArray = tables[0, np.arange(codebooks.num_codebooks), chosen]
    return shares


def signed_parts(shares: FloatArray) -> FloatArray:
    """Scale shares so that their sizes add up to 1; what speaks against the match stays negative.

    Args:
        shares: (M,) float.

    Returns:
        (M,) float32; zeros if all shares are zero.
    """
    sizes = float(np.abs(shares).sum(dtype=np.float64))
    return (np.asarray(shares, np.float64) / (sizes or 1.0)).astype(np.float32)


def check_code(codebooks: Codebooks, code: CodeArray) -> CodeArray:
    """Return `code`, or raise a `ShapeError` unless it is one (M,) uint8 code of the codebooks."""
    if not isinstance(code, np.ndarray) or code.ndim != 1:
        raise ShapeError(
            f"code has shape {np.shape(code)}; expected ({codebooks.num_codebooks},): "
            "the code of one image."
        )
    check_codes("code", code[None], codebooks.num_codebooks, codebooks.codebook_size)
    return code
