"""Search over codes: numpy in, numpy out."""

from phpq.index.engine import CodeIndex, SearchResult, fit_pq, to_faiss

__all__ = ["CodeIndex", "SearchResult", "fit_pq", "to_faiss"]
