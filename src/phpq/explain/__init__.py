"""Why images match: codebook shares, heat maps, a map of the gallery, and what codewords hold."""

from phpq.explain.heatmap import heat_map, heat_note, overlay_png
from phpq.explain.projection import project_codes, sample_rows
from phpq.explain.shares import codebook_shares, signed_parts
from phpq.explain.usage import CodebookUsage

__all__ = [
    "CodebookUsage",
    "codebook_shares",
    "heat_map",
    "heat_note",
    "overlay_png",
    "project_codes",
    "sample_rows",
    "signed_parts",
]
