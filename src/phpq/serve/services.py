"""What the routes work with: one object that holds the gallery, the model and the pools."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phpq.codes import CodeArray, FloatArray
from phpq.gallery.shards import LocalShards, Shards
from phpq.gallery.view import GalleryView
from phpq.gallery.views import Views
from phpq.serve.decode_pool import DecodePool
from phpq.serve.embedder import Embedder
from phpq.serve.files import Pictures
from phpq.serve.limits import BoundedPool
from phpq.serve.metrics import Metrics
from phpq.serve.refusals import too_large
from phpq.serve.reload import Follower
from phpq.serve.settings import ServerSettings
from phpq.serve.writer import Writer

if TYPE_CHECKING:
    from phpq.gallery import Gallery

PixelArray = NDArray[np.uint8]
_WAITING_THREADS = 32  # searches at once where shards are other processes
_HEAT_SIDE = 512  # pixels of the images that heat maps are drawn over


class Services:
    """Everything that outlives a request.

    Args:
        gallery: Open; the server reads it by views of its own.
        settings: Of the server.
        shards: Hold the codes and search them; by default one, in this process.

    Attributes:
        model: Embeds uploads.
        views: What is served; `views.read` gives a request its view.
        searches: Threads for what takes milliseconds.
        uploads: Threads for what needs a decoder or the model.
        decoders: Processes that decode.
        pictures: The files of the gallery.
        writes: One thread: writers come one after the other.
        writer: Adds and deletes.
        metrics: Counts.
    """

    def __init__(
        self, gallery: Gallery, settings: ServerSettings, shards: Shards | None = None
    ) -> None:
        self.settings = settings
        self.shards: Shards = shards or LocalShards(prepare=True)
        self.gallery = gallery
        self.model = gallery.model
        self.metrics = Metrics()
        self.shards.report_to(self.metrics.shard_event)
        self.views = Views(
            gallery.path, gallery.model.codebooks, shards=self.shards, changed=self._loaded
        )
        self.views.reload()
        self._follower = Follower(self.views, seconds=settings.reload_seconds)
        self.decoders = DecodePool(
            settings.decoders, max_pixels=settings.max_pixels, seconds=settings.decode_seconds
        )
        self.pictures = Pictures(self.decoders, cache_bytes=settings.cache_bytes)
        self.fingerprint = gallery.model.fingerprint()
        self._embedder = Embedder(gallery.model.embed_pixels)
        # Threads that wait for other processes need no core each.
        threads = settings.workers or (_WAITING_THREADS if self.shards.remote else settings.threads)
        self.searches = self._pool("searches", threads)
        # More threads than decoders: while some decode, others wait for the model together.
        self.uploads = self._pool("uploads", 4 * settings.decoders)
        self.writes = self._pool("writes", 1)
        self.writer = Writer(gallery.path, gallery.model, self.decoders)
        self._heating = threading.Lock()
        self.ready = False

    def _pool(self, name: str, threads: int) -> BoundedPool:
        settings = self.settings
        waiting, seconds = settings.max_waiting, settings.request_seconds
        return BoundedPool(name, threads=threads, waiting=waiting, seconds=seconds)

    def _loaded(self, view: GalleryView) -> None:
        view.prepare()
        self.metrics.loaded(len(view), view.version)

    def start(self) -> None:
        """Begin to follow the gallery, and start what takes time to start."""
        self._follower.start()
        self.decoders.start()
        # The first images take a model longer than all others: not those of the first client.
        side = self.model.card.config.data.store_size
        self.embed_square(np.zeros((3, side, side), np.uint8))
        self.ready = True

    def close(self) -> None:
        """Stop threads and processes."""
        self.ready = False
        self.searches.close()
        self.uploads.close()
        self.writes.close()
        self._follower.close()
        self._embedder.close()
        self.decoders.close()

    def embed(self, content: bytes, name: str) -> FloatArray:
        """Embed an upload: (D,) float32."""
        return self.embed_square(self.square(content, name))

    def square(self, content: bytes, name: str) -> PixelArray:
        """Decode an upload: (3, S, S) uint8."""
        if len(content) > self.settings.max_upload_bytes:
            raise too_large(f"{len(content):,} bytes", self.settings.max_upload_bytes)
        return self.decoders.square(content, self.model.card.config.data, name=name)

    def embed_square(self, square: PixelArray) -> FloatArray:
        """Embed (3, S, S) uint8: (D,) float32."""
        return self._embedder.embed(square, seconds=self.settings.request_seconds)

    def heat_png(self, content: bytes, name: str, code: CodeArray | None) -> bytes:
        """Draw where in an image its match with a code, (M,) uint8, comes from, as a PNG."""
        from PIL import Image

        from phpq.explain import heat_map, overlay_png

        longest = max(_HEAT_SIDE, 2 * self.model.card.config.data.store_size)
        image = Image.fromarray(self.decoders.pixels(content, longest, name=name))
        with self._heating:  # needs gradients, and so more memory than a search
            heat = heat_map(self.model, image, code=code)
        return overlay_png(image, heat)

    def jobs(self) -> dict[str, int]:
        """Return the jobs that run or wait, by pool."""
        return {pool.name: pool.jobs for pool in (self.searches, self.uploads, self.writes)}
