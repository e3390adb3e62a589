"""Why images match: codebook shares, heat maps, a map of the gallery, and what codewords hold."""

from phpq.explain.codebooks import (
    CodebookUsage,
    codebook_shares,
    project_codes,
    sample_rows,
    signed_parts,
)
from phpq.explain.heatmap import heat_map, heat_missing, heat_note, overlay_png
from phpq.explain.suggest import hottest_box, suggest_box

__all__ = [
    "CodebookUsage",
    "codebook_shares",
    "heat_map",
    "heat_missing",
    "heat_note",
    "hottest_box",
    "overlay_png",
    "project_codes",
    "sample_rows",
    "signed_parts",
    "suggest_box",
]
