"""Measures, protocols and timing of retrieval: arrays in, numbers out."""

from phpq.evaluation.metrics import code_health
from phpq.evaluation.protocol import LabelledEmbeddings, evaluate_codes, evaluate_float

__all__ = ["LabelledEmbeddings", "code_health", "evaluate_codes", "evaluate_float"]
