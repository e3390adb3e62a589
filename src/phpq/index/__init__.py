"""Search over codes: numpy in, numpy out."""

from phpq.index.engine import CodeIndex
from phpq.index.faiss_pq import fit_pq, from_faiss, to_faiss
from phpq.index.flat import FlatIndex
from phpq.index.protocol import Index, SearchResult

__all__ = ["CodeIndex", "FlatIndex", "Index", "SearchResult", "fit_pq", "from_faiss", "to_faiss"]
