"""A durable collection of images: store, index and model."""

from phpq.gallery.gallery import Gallery
from phpq.gallery.hits import FaissGallery, Hit
from phpq.gallery.ingest import AddReport
from phpq.gallery.records import Record
from phpq.gallery.repair import VerifyReport, verify_store
from phpq.gallery.store import GalleryStore

__all__ = [
    "AddReport",
    "FaissGallery",
    "Gallery",
    "GalleryStore",
    "Hit",
    "Record",
    "VerifyReport",
    "verify_store",
]
