"""From pixels to embeddings and codes: backbone, pooling, quantizer, network, model folder."""

from phpq.model.network import Network, RetrievalOutput
from phpq.model.retrieval import Model, load, resolve_device

__all__ = ["Model", "Network", "RetrievalOutput", "load", "resolve_device"]
