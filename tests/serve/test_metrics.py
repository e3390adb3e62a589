"""Counts add up, in a registry of their own, with few names."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from phpq.serve.metrics import Metrics


def values(metrics: Metrics) -> dict[tuple[str, str], float]:
    text = metrics.text({"searches": 3}).decode()
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 503):
        metrics.began()
        metrics.ended("GET", "/search", status, 0.002)
    metrics.began()
    metrics.loaded(42, 7)
    found = values(metrics)
    assert found["phpq_requests_total", "GET,/search,200"] == 2
    assert found["phpq_requests_total", "GET,/search,503"] == 1
    assert found["phpq_request_seconds_count", "/search"] == 3
    assert found["phpq_requests_running", ""] == 1
    assert found["phpq_images", ""] == 42
    assert found["phpq_gallery_version", ""] == 7
    assert found["phpq_jobs", "searches"] == 3


def test_methods_that_somebody_made_up_share_one_name() -> None:
    metrics = Metrics()
    for number in range(20):
        metrics.began()
        metrics.ended(f"MADE{number}", "none", 405, 0.1)
    assert values(metrics)["phpq_requests_total", "other,none,405"] == 20


def test_what_happens_to_shards_is_counted() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.shard_event("retries", 1)
    metrics.shard_event("restarts", 0)
    metrics.shard_event("failures", 1)
    found = values(metrics)
    assert found["phpq_shard_retries_total", "1"] == 3
    assert found["phpq_shard_restarts_total", "0"] == 1
    assert found["phpq_shard_failures_total", "1"] == 1


def test_two_servers_do_not_share_their_counts() -> None:
    first, second = Metrics(), Metrics()
    first.loaded(1, 1)
    assert values(second)["phpq_images", ""] == 0
