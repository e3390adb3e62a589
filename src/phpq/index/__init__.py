"""Search over codes: numpy in, numpy out."""

from phpq.index.faiss_pq import to_faiss
from phpq.index.flat import FlatIndex
from phpq.index.protocol import Index, SearchResult

__all__ = ["FlatIndex", "Index", "SearchResult", "to_faiss"]
