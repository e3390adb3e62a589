from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from phpq.data.ahead import read_ahead


@pytest.mark.parametrize("ahead", [1, 3, 100])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_are_those_of_a_plain_loop(ahead: int, workers: int) -> None:
    done = list(read_ahead(range(40), lambda n: n * n, ahead=ahead, workers=workers))
    assert done == [n * n for n in range(40)]


def test_items_are_taken_only_so_far_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = read_ahead(items(), str, ahead=5)
    assert next(results) == "1"
    assert taken == 6
    results.close()
    assert taken == 6


def test_an_error_is_raised_where_its_result_would_be() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    seen: list[int] = []
    with pytest.raises(ValueError, match="three"):
        seen.extend(read_ahead(range(9), work, ahead=9))
    assert seen == [0, 1, 2]


def test_threads_end_and_waiting_work_is_dropped_when_the_consumer_stops() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number:
            gate.wait(10)
        return number

    results = read_ahead(range(50), work, ahead=20, workers=2)
    before = threading.active_count()
    assert next(results) == 0
    threading.Timer(0.1, gate.set).start()
    results.close()
    assert len(begun) < 20
    gate.wait(10)
    assert threading.active_count() <= before + 1  # the timer may still be ending
