"""From pixels to embeddings and codes: backbone, pooling, quantizer, network, model folder."""

from phpq.model.method import Method, build_method
from phpq.model.network import Network, RetrievalOutput
from phpq.model.retrieval import Model, load, resolve_device

__all__ = [
    "Method",
    "Model",
    "Network",
    "RetrievalOutput",
    "build_method",
    "load",
    "resolve_device",
]
