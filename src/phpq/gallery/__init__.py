"""A durable collection of images: store, index and model."""

from phpq.gallery.export import FaissGallery
from phpq.gallery.gallery import Gallery
from phpq.gallery.ingest import AddReport
from phpq.gallery.records import Record
from phpq.gallery.repair import VerifyReport, verify_store
from phpq.gallery.store import GalleryStore
from phpq.hits import Found, Hit, Verdict

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
