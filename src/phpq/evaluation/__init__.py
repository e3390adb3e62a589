"""Measures, protocols and timing of retrieval: arrays in, numbers out."""

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = ["LabelledEmbeddings", "code_health", "evaluate_codes", "evaluate_float"]

if TYPE_CHECKING:
    from phpq.evaluation.metrics import code_health
    from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes, evaluate_float
else:
    __getattr__ = exports(
        __name__,
        {
            "phpq.evaluation.metrics": "code_health",
            "phpq.evaluation.protocol": "LabelledEmbeddings evaluate_codes evaluate_float",
        },
    )
