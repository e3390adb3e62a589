"""Measures, protocols and timing of retrieval: arrays in, numbers out."""

from phpq.evaluation.metrics import CodeHealth, RetrievalScores, code_health, measure
from phpq.evaluation.protocol import (
    CUTOFFS,
    LabelledEmbeddings,
    evaluate_codes,
    evaluate_float,
    evaluate_posthoc_pq,
)
from phpq.evaluation.timing import SearchTiming, search_float, time_search

__all__ = [
    "CUTOFFS",
    "CodeHealth",
    "LabelledEmbeddings",
    "RetrievalScores",
    "SearchTiming",
    "code_health",
    "evaluate_codes",
    "evaluate_float",
    "evaluate_posthoc_pq",
    "measure",
    "search_float",
    "time_search",
]
