from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finished_runs import copy_run
from made_up_galleries import make_codebooks
from phpq.codes import group_codes
from phpq.errors import ConfigError, DataError
from phpq.gallery.advice import (
    advise_run,
    draw_codes,
    draw_queries,
    expected_distinct,
    find_runs,
)


def test_the_estimate_meets_a_simulation() -> None:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.full(400, 0.7))  # 400 codes, some rare
    sample = generator.choice(400, size=1500, p=shares)
    sizes = np.unique(sample, return_counts=True)[1]
    for size in (50, 500, 1500, 3000):
        trials = [
            len(np.unique(generator.choice(sample, size=size, replace=False)))
            if size <= 1500
            else len(np.unique(generator.choice(400, size=size, p=shares)))
            for _ in range(20)
        ]
        assert expected_distinct(sizes, size, most=4096) == pytest.approx(np.mean(trials), rel=0.06)


def test_the_estimate_keeps_its_bounds() -> None:
    once = np.ones(10, np.int64)
    assert expected_distinct(once, 10, most=256) == pytest.approx(10)
    assert expected_distinct(once, 1, most=256) == pytest.approx(1)
    assert expected_distinct(once, 10**9, most=16) == 16
    assert expected_distinct(np.array([5, 5]), 10**9, most=256) == 2
    assert expected_distinct(np.array([1]), 100, most=256) == 1


def test_made_up_codes_repeat_as_the_sample_does() -> None:
    generator = np.random.default_rng(0)
    grouped = np.repeat(generator.integers(4, size=(6, 3), dtype=np.uint8), 10, axis=0)
    drawn = draw_codes(grouped, 500, generator)
    assert drawn.shape == (500, 3)
    assert len(group_codes(drawn).sizes) <= 6  # no code occurs once: none is new
    single = np.stack([np.arange(60), np.arange(60) % 7, np.arange(60) % 5], axis=1)
    drawn = draw_codes(single.astype(np.uint8), 500, generator)
    assert len(group_codes(drawn).sizes) > 60
    queries = draw_queries(make_codebooks(), grouped, np.repeat(np.arange(6), 10), generator)
    assert queries.shape[1] == 6


def test_a_run_is_measured(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "runs" / "one")
    advice = advise_run(run, 1000)
    assert (advice.bits, advice.bytes_per_image, advice.images) == (12, 2, 24)
    assert 0 < advice.map_percent <= 100
    assert 1 <= advice.distinct_codes <= advice.expected_distinct <= 1000
    assert advice.images_per_code == pytest.approx(1000 / advice.expected_distinct, rel=0.1)
    assert advice.search_ms > 0
    assert advice.timed_rows == 1000
    assert advice.memory_bytes > 1000
    with pytest.raises(ConfigError, match="size=0"):
        advise_run(run, 0)
    assert find_runs([tmp_path / "runs"]) == find_runs([run]) == [run]
    with pytest.raises(DataError, match="no evaluated run"):
        find_runs([tmp_path])
