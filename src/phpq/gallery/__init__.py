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
            "phpq.gallery.export": "FaissGallery",
            "phpq.gallery.gallery": "Gallery",
            "phpq.gallery.ingest": "AddReport",
            "phpq.gallery.records": "Record",
            "phpq.gallery.repair": "VerifyReport verify_store",
            "phpq.gallery.store": "GalleryStore",
            "phpq.hits": "Found Hit Verdict",
        },
    )
