"""Why images match: codebook shares, heat maps, a map of the gallery, and what codewords hold."""

from phpq.explain.heatmap import heat_map, heat_note
from phpq.explain.overlay import overlay_png
from phpq.explain.projection import GalleryMap, gallery_map, project_codes, sample_rows
from phpq.explain.shares import codebook_shares, signed_parts
from phpq.explain.usage import CodebookUsage, CodewordImages, codebook_usage, images_of_codeword

__all__ = [
    "CodebookUsage",
    "CodewordImages",
    "GalleryMap",
    "codebook_shares",
    "codebook_usage",
    "gallery_map",
    "heat_map",
    "heat_note",
    "images_of_codeword",
    "overlay_png",
    "project_codes",
    "sample_rows",
    "signed_parts",
]
