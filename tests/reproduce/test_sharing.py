"""What a worker may take of a GPU."""

from __future__ import annotations

import pytest

from phpq.reproduce.sharing import MPS_SHARE, gpu_share


@pytest.mark.parametrize(
    ("processes", "share"), [(1, None), (2, "100"), (4, "60"), (8, "30"), (999, "1")]
)
def test_processes_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, processes: int, share: str | None
) -> None:
    monkeypatch.delenv(MPS_SHARE, raising=False)
    assert gpu_share(processes).get(MPS_SHARE) == share


def test_a_share_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_SHARE, "50")
    assert gpu_share(8) == {}
