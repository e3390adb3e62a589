"""When compiling pays, which cell compiles first, and what a worker may take of a GPU."""

from __future__ import annotations

import pytest

from made_up_grids import tiny_plan, tiny_subject
from phpq.reproduce import sharing
from phpq.reproduce.grid import Cell
from phpq.reproduce.sharing import (
    IMAGES_TO_COMPILE,
    MPS_SHARE,
    Compiling,
    compiling_pays,
    gpu_share,
    images_to_learn,
)

MANY = IMAGES_TO_COMPILE
EPOCHS = 6
SHARE = "method.classifier_share=0.33"


def cells(*methods: str) -> dict[str, Cell]:
    """Return the cells of one length, and what they start from, by name."""
    plan = tiny_plan("table1", *methods, subject=tiny_subject(SHARE, epochs=EPOCHS))
    return {cell.key.partition("-")[0]: cell for cell in plan.cells}


def test_images_are_counted_as_often_as_they_are_seen() -> None:
    of = cells("lsh", "dpsh", "phpq")
    assert images_to_learn(of["backbone"], 100) == 200  # a third of the epochs
    assert images_to_learn(of["dpsh"], 100) == 400  # what is left of them
    assert images_to_learn(of["lsh"], 100) == 0


@pytest.mark.parametrize(
    ("device", "images", "pays"),
    [("cuda", MANY, True), ("cuda:1", MANY, True), ("cuda", MANY - 1, False), ("cpu", MANY, False)],
)
def test_long_grids_on_a_gpu_compile(
    monkeypatch: pytest.MonkeyPatch, device: str, images: int, pays: bool
) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(sharing, "find_spec", lambda name: object())
    assert compiling_pays(device, images) is pays


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sharing, "find_spec", lambda name: object())
    assert not compiling_pays("cuda", MANY)
    monkeypatch.setenv("CC", "cc")
    assert compiling_pays("cuda", MANY)
    monkeypatch.setattr(sharing, "find_spec", lambda name: None)  # no triton
    assert not compiling_pays("cuda", MANY)


def test_the_shortest_of_the_first_cells_fills_the_cache() -> None:
    of = cells("lsh", "dpsh", "hashnet", "phpq")
    phpq, backbone, shallow = of["phpq"], of["backbone"], of["lsh"]
    compiling = Compiling(pays=True, gallery=100)
    assert compiling.choose([shallow], set()) == {shallow.key: False}
    first = compiling.choose([phpq, backbone, shallow], set())
    assert first == {phpq.key: False, backbone.key: True, shallow.key: False}
    # Before it has ended others go without, then all that learn compile.
    dpsh, hashnet = of["dpsh"], of["hashnet"]
    assert compiling.choose([dpsh], {phpq.key}) == {dpsh.key: False}
    later = compiling.choose([hashnet, shallow], {phpq.key, backbone.key})
    assert later == {hashnet.key: True, shallow.key: False}
    # Tried again, it compiles again.
    assert compiling.choose([backbone], set()) == {backbone.key: True}


def test_nothing_compiles_where_it_does_not_pay() -> None:
    of = cells("phpq")
    compiling = Compiling(pays=False, gallery=100)
    assert compiling.choose([of["phpq"]], set()) == {of["phpq"].key: False}
    assert compiling.choose([of["phpq"]], {of["phpq"].key, ""}) == {of["phpq"].key: False}


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
