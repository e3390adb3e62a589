"""Prometheus metrics of one server, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts what the server does."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "phpq_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "phpq_request_seconds",
            "Time to answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._running = Gauge("phpq_requests_running", "Now.", registry=self._registry)
        self._images = Gauge("phpq_images", "Images served.", registry=self._registry)
        self._version = Gauge("phpq_gallery_version", "Served.", registry=self._registry)
        self._reloads = Counter("phpq_reloads", "Versions loaded.", registry=self._registry)
        self._jobs = Gauge(
            "phpq_jobs", "Jobs that run or wait.", ("pool",), registry=self._registry
        )
        self._shards = {
            event: Counter(f"phpq_shard_{event}", text, ("shard",), registry=self._registry)
            for event, text in (
                ("retries", "Calls of a shard that failed and were made again."),
                ("restarts", "Replicas of a shard that took the place of another."),
                ("failures", "Requests that a shard did not answer in time."),
            )
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
