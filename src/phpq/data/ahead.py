"""Work done in threads a little ahead of whoever uses it: items in, results in their order out.

Every stage that decodes images uses this: training, embedding, evaluation and indexing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(
    items: Iterable[Item], work: Callable[[Item], Result], *, ahead: int, workers: int = 0
) -> Generator[Result, None, None]:
    """Yield `work(item)` for every item, in order and in flat memory.

    An error of `work` is raised where its result would have been yielded. When the generator is
    closed, work that has not begun is dropped, and the threads end.

    Args:
        items: Any number; taken one by one, by the thread that asks for results.
        work: Run in threads (Pillow decodes outside the interpreter lock).
        ahead: Items that are taken before their results are asked for, at least 1.
        workers: Threads; 0 is one per core.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        try:
            for item in items:
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
