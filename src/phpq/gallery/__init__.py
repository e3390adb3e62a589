"""A durable collection of images: store, index and model."""

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = [
    "AddReport",
    "FaissGallery",
    "Found",
    "Gallery",
    "GalleryStore",
    "Hit",
    "Record",
    "Verdict",
    "VerifyReport",
    "verify_store",
]

if TYPE_CHECKING:
    from phpq.gallery.export import FaissGallery
    from phpq.gallery.gallery import Gallery
    from phpq.gallery.ingest import AddReport
    from phpq.gallery.records import Record
    from phpq.gallery.repair import VerifyReport, verify_store
    from phpq.gallery.store import GalleryStore
    from phpq.hits import Found, Hit, Verdict
else:
    __getattr__ = exports(
        __name__,
        {
            "AddReport": "phpq.gallery.ingest",
            "FaissGallery": "phpq.gallery.export",
            "Found": "phpq.hits",
            "Gallery": "phpq.gallery.gallery",
            "GalleryStore": "phpq.gallery.store",
            "Hit": "phpq.hits",
            "Record": "phpq.gallery.records",
            "Verdict": "phpq.hits",
            "VerifyReport": "phpq.gallery.repair",
            "verify_store": "phpq.gallery.repair",
        },
    )
