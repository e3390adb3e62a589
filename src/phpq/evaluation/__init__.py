"""Measures, protocols, timing, plots and reports of retrieval."""

from phpq.evaluation.metrics import (
    CodeHealth,
    PrecisionRecallCurve,
    RetrievalMetrics,
    code_health,
    mean_average_precision,
    measure,
)
from phpq.evaluation.pictures import HitRow, draw_hits, hit_rows
from phpq.evaluation.plots import plot_precision_at, plot_precision_recall, plot_training
from phpq.evaluation.protocol import (
    CUTOFFS,
    LabelledEmbeddings,
    RetrievalScores,
    evaluate_codes,
    evaluate_float,
    evaluate_posthoc_pq,
)
from phpq.evaluation.ranking import label_groups, rank_codes, rank_embeddings, rank_scores
from phpq.evaluation.report import (
    Figure,
    Headline,
    Note,
    Report,
    Section,
    Settings,
    Table,
    render_report,
    write_report,
)
from phpq.evaluation.timing import SearchTiming, search_float, time_search

__all__ = [
    "CUTOFFS",
    "CodeHealth",
    "Figure",
    "Headline",
    "HitRow",
    "LabelledEmbeddings",
    "Note",
    "PrecisionRecallCurve",
    "Report",
    "RetrievalMetrics",
    "RetrievalScores",
    "SearchTiming",
    "Section",
    "Settings",
    "Table",
    "code_health",
    "draw_hits",
    "evaluate_codes",
    "evaluate_float",
    "evaluate_posthoc_pq",
    "hit_rows",
    "label_groups",
    "mean_average_precision",
    "measure",
    "plot_precision_at",
    "plot_precision_recall",
    "plot_training",
    "rank_codes",
    "rank_embeddings",
    "rank_scores",
    "render_report",
    "search_float",
    "time_search",
    "write_report",
]
