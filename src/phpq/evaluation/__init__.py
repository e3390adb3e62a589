"""Measures, protocols and timing of retrieval: arrays in, numbers out."""

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = [
    "LabelledEmbeddings",
    "code_health",
    "evaluate_codes",
    "evaluate_float",
]

if TYPE_CHECKING:
    from phpq.evaluation.metrics import code_health
    from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes, evaluate_float
else:
    __getattr__ = exports(
        __name__,
        {
            "LabelledEmbeddings": "phpq.evaluation.protocol",
            "code_health": "phpq.evaluation.metrics",
            "evaluate_codes": "phpq.evaluation.protocol",
            "evaluate_float": "phpq.evaluation.protocol",
        },
    )
