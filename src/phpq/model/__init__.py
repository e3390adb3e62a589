"""From pixels to embeddings and codes: backbone, pooling, quantizer, network, model folder.

What needs torch is loaded when it is first used: a model on onnxruntime does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phpq._lazy import exports
from phpq.model.interface import Model, load

__all__ = [
    "Method",
    "Model",
    "Network",
    "RetrievalOutput",
    "TorchModel",
    "build_method",
    "load",
    "resolve_device",
]

if TYPE_CHECKING:
    from phpq.model.method import Method, build_method
    from phpq.model.network import Network, RetrievalOutput
    from phpq.model.retrieval import TorchModel, resolve_device
else:  # a type checker would take any name for known if it saw this
    __getattr__ = exports(
        __name__,
        {
            "phpq.model.method": "Method build_method",
            "phpq.model.network": "Network RetrievalOutput",
            "phpq.model.retrieval": "TorchModel resolve_device",
        },
    )
