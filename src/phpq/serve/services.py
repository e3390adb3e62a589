"""What outlives a request: the gallery and the model, pools, counts, and who follows changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from phpq.codes import CodeArray, FloatArray
from phpq.data.boxes import Box
from phpq.errors import ConfigError, PhpqError
from phpq.explain.heatmap import heat_missing
from phpq.gallery.folder import DAMAGE
from phpq.gallery.shards import LocalShards, Shards
from phpq.gallery.view import GalleryView
from phpq.gallery.views import Views
from phpq.serve._pools import BoundedPool, Embedder
from phpq.serve._refusals import too_large
from phpq.serve.decode_pool import DecodePool
from phpq.serve.files import Pictures, Writer
from phpq.serve.settings import ServerSettings

if TYPE_CHECKING:
    from phpq.gallery import Gallery

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_WAITING_THREADS = 32  # searches at once where shards are other processes
_HEAT_SIDE = 512  # pixels of the images that heat maps are drawn over
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NO_HEAT = (
    "The gallery owns its codebooks, whose codewords span the whole vector: heat maps trace "
    "matches of the model's codebooks only."
)
_SHARD_EVENTS = {
    "retries": "Calls of a shard that failed and were made again.",
    "restarts": "Replicas of a shard that took the place of another.",
    "failures": "Requests that a shard did not answer in time.",
}


class Services:
    """What the routes work with; see `create_app` for the arguments."""

    def __init__(
        self, gallery: Gallery, settings: ServerSettings, shards: Shards | None = None
    ) -> None:
        self.settings = settings
        self.shards: Shards = shards or LocalShards(prepare=True)
        self.gallery = gallery
        self.metrics = Metrics()
        self.shards.report_to(self.metrics.shard_event)
        self.ready = False
        self._warmed: Any = None  # the model that was used before
        self.views = Views(
            gallery.path, gallery.models.of, shards=self.shards, changed=self._loaded
        )
        self.views.reload()
        self._follower = Follower(self.views, seconds=settings.reload_seconds)
        self.decoders = DecodePool(
            settings.decoders, max_pixels=settings.max_pixels, seconds=settings.decode_seconds
        )
        self.pictures = Pictures(self.decoders, cache_bytes=settings.cache_bytes)
        self.writer = Writer(gallery.path, gallery.models, self.decoders)
        self._embedder = Embedder()
        pool = partial(BoundedPool, waiting=settings.max_waiting, seconds=settings.request_seconds)
        # For what takes milliseconds. Threads that wait for other processes need no core each.
        threads = settings.workers or (_WAITING_THREADS if self.shards.remote else settings.threads)
        self.searches = pool("searches", threads=threads)
        # For what needs a decoder or the model. More threads than decoders: while some decode,
        # others wait for the model together.
        self.uploads = pool("uploads", threads=4 * settings.decoders)
        self.writes = pool("writes", threads=1)  # writers come one after the other
        self._heating = threading.Lock()

    def _loaded(self, view: GalleryView) -> None:
        view.prepare()
        if self.ready and view.model is not self._warmed:
            self._warmed = _warm(view)
        self.metrics.loaded(len(view), view.version)

    def start(self) -> None:
        """Begin to follow the gallery, and start what takes time to start."""
        self._follower.start()
        self.decoders.start()
        self._warmed = _warm(self.views.current)
        self.ready = True

    def close(self) -> None:
        """Stop threads and processes."""
        self.ready = False
        for part in (self.searches, self.uploads, self.writes):
            part.close()
        self._follower.close()
        self._embedder.close()
        self.decoders.close()

    async def read(self, work: Callable[[GalleryView], T]) -> T:
        """Call `work` with the current view, among the searches."""
        return await self.searches.run(lambda: self.views.read(work))

    async def remembered(self, what: str, limit: int, make: Callable[[GalleryView, int], T]) -> T:
        """Call `make(view, limit)`, once for each view and limit."""
        return await self.read(lambda view: view.cached((what, limit), lambda: make(view, limit)))

    def embed(
        self, view: GalleryView, content: bytes, name: str, box: Box | None = None
    ) -> FloatArray:
        """Embed an upload, or a box on it, as the images of a view were: (D,) float32."""
        if len(content) > self.settings.max_upload_bytes:
            raise too_large(f"{len(content):,} bytes", self.settings.max_upload_bytes)
        model = view.model
        square = self.decoders.square(content, model.card.config.data, name=name, box=box)
        work = partial(model.embed_pixels, space=view.store.manifest.space)
        seconds = self.settings.request_seconds
        return self._embedder.embed(work, square, seconds=seconds, model=id(model))

    def heat_missing(self, view: GalleryView) -> str:
        """Say why there is no heat map; nothing if there is one."""
        if view.store.manifest.owns_codebooks:
            return _NO_HEAT
        return view.cached("heat missing", lambda: heat_missing(view.model))

    def heat_png(
        self,
        view: GalleryView,
        content: bytes,
        name: str,
        code: CodeArray | None,
        box: Box | None = None,
    ) -> bytes:
        """Draw where in an image, or a box on it, its match with a code (M,) comes from: a PNG."""
        from PIL import Image

        from phpq.explain import heat_map, overlay_png

        longest = max(_HEAT_SIDE, 2 * view.model.card.config.data.store_size)
        image = Image.fromarray(self.decoders.pixels(content, longest, name=name, box=box))
        with self._heating:  # needs gradients, and so more memory than a search
            heat = heat_map(view.model, image, code=code)
        return overlay_png(image, heat)

    def suggest(self, view: GalleryView, content: bytes, name: str) -> Box:
        """Suggest a box on an upload, in its pixels."""
        from PIL import Image

        from phpq.explain import suggest_box

        if missing := heat_missing(view.model):
            raise ConfigError(f"No box can be suggested here. {missing}")
        longest = max(_HEAT_SIDE, 2 * view.model.card.config.data.store_size)
        width, height = self.decoders.check(content, name=name).shape
        image = Image.fromarray(self.decoders.pixels(content, longest, name=name))
        with self._heating:
            left, top, right, bottom = suggest_box(view.model, image)
        across, down = width / image.width, height / image.height
        return left * across, top * down, min(right * across, width), min(bottom * down, height)

    def jobs(self) -> dict[str, int]:
        """Return the jobs that run or wait, by pool."""
        return {pool.name: pool.jobs for pool in (self.searches, self.uploads, self.writes)}


def _warm(view: GalleryView) -> Any:
    """Return the model of a view, used once: its first images take longer than all others."""
    side = view.model.card.config.data.store_size
    square = np.zeros((1, 3, side, side), np.uint8)
    view.model.embed_pixels(square, space=view.store.manifest.space)
    return view.model


class Follower:
    """A thread that loads the new version of a gallery when another process wrote one."""

    def __init__(self, views: Views, *, seconds: float = 1.0) -> None:
        self._views = views
        self._seconds = seconds  # between two looks
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phpq-reload", daemon=True)

    def start(self) -> None:
        """Begin to look for changes."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        pause = self._seconds
        while not self._stop.wait(pause):
            start = time.monotonic()
            try:
                self._views.reload(at_least=self._views.newest())
            except (PhpqError, *DAMAGE):
                # The old view is served on; `phpq gallery verify` tells what is wrong.
                _LOG.exception("the gallery %s cannot be read anew", self._views.folder)
            # A gallery that changes all the time leaves half of the time to its readers.
            pause = max(self._seconds, time.monotonic() - start)


class Metrics:
    """Prometheus metrics of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("phpq_requests", "Requests answered.", labels, registry=own)
        self._seconds = Histogram(
            "phpq_request_seconds", "Time to answer.", ("route",), buckets=_SECONDS, registry=own
        )
        self._running = Gauge("phpq_requests_running", "Now.", registry=own)
        self._images = Gauge("phpq_images", "Images served.", registry=own)
        self._version = Gauge("phpq_gallery_version", "Served.", registry=own)
        self._reloads = Counter("phpq_reloads", "Versions loaded.", registry=own)
        self._jobs = Gauge("phpq_jobs", "Jobs that run or wait.", ("pool",), registry=own)
        self._shards = {
            event: Counter(f"phpq_shard_{event}", text, ("shard",), registry=own)
            for event, text in _SHARD_EVENTS.items()
        }

    def began(self) -> None:
        """Count a request that arrives."""
        self._running.inc()

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that is answered."""
        known = method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
        self._running.dec()
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def loaded(self, images: int, version: int) -> None:
        """Note down what is served from now on."""
        self._images.set(images)
        self._version.set(version)
        self._reloads.inc()

    def shard_event(self, event: str, shard: int) -> None:
        """Count what happened to a shard: "retries", "restarts" or "failures"."""
        self._shards[event].labels(str(shard)).inc()

    def text(self, jobs: dict[str, int]) -> bytes:
        """Return everything in the format of Prometheus."""
        for pool, count in jobs.items():
            self._jobs.labels(pool).set(count)
        return generate_latest(self._registry)
