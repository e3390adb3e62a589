"""When compiling pays, which cells compile, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from made_up_grids import tiny_plan, tiny_subject
from phpq.config import override
from phpq.reproduce import compiling as module
from phpq.reproduce.compiling import (
    IMAGES_TO_COMPILE,
    Compiling,
    Order,
    StepCompiler,
    compiling_pays,
    images_to_learn,
)
from phpq.reproduce.grid import Cell

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
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert compiling_pays(device, images) is pays


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert not compiling_pays("cuda", MANY)
    monkeypatch.setenv("CC", "cc")
    assert compiling_pays("cuda", MANY)
    monkeypatch.setattr(module, "find_spec", lambda name: None)  # no triton
    assert not compiling_pays("cuda", MANY)


PLAIN = Order()


def test_of_one_family_the_shortest_fills_the_cache(tmp_path: Path) -> None:
    of = cells("lsh", "dpsh", "hashnet")
    backbone, dpsh, hashnet, shallow = of["backbone"], of["dpsh"], of["hashnet"], of["lsh"]
    compiling = Compiling(pays=True, gallery=100, folder=tmp_path)
    assert compiling.choose([shallow], set()) == {shallow.key: PLAIN}
    first = compiling.choose([dpsh, backbone, shallow], set())
    filled = first[backbone.key].filled
    assert filled is not None
    assert filled.parent == tmp_path
    assert not filled.exists()
    assert first == {
        backbone.key: Order(compiled=True, filled=filled),
        dpsh.key: Order(compiled=False, filled=filled),  # until the file is there
        shallow.key: PLAIN,
    }
    assert compiling.choose([hashnet], set()) == {hashnet.key: Order(False, filled)}
    filled.touch()
    assert compiling.choose([hashnet], {backbone.key}) == {hashnet.key: Order(True, filled)}


def test_each_batch_size_has_a_first_cell_of_its_own(tmp_path: Path) -> None:
    of = cells("dpsh", "phpq")
    config = override(of["phpq"].config, ["training.batch_size=16"])
    phpq, dpsh = replace(of["phpq"], config=config), of["dpsh"]
    orders = Compiling(pays=True, gallery=100, folder=tmp_path).choose([phpq, dpsh], set())
    assert [orders[cell.key].compiled for cell in (phpq, dpsh)] == [True, True]
    assert orders[phpq.key].filled != orders[dpsh.key].filled


def test_a_method_that_compiles_more_goes_first(tmp_path: Path) -> None:
    of = cells("dpsh", "srlh")
    backbone, srlh = of["backbone"], of["srlh"]
    assert images_to_learn(backbone, 100) < images_to_learn(srlh, 100)
    orders = Compiling(pays=True, gallery=100, folder=tmp_path).choose([backbone, srlh], set())
    assert [orders[cell.key].compiled for cell in (backbone, srlh)] == [False, True]


@pytest.mark.parametrize("failed", [True, False])
def test_another_takes_the_place_of_a_first_cell_that_filled_nothing(
    tmp_path: Path, failed: bool
) -> None:
    of = cells("dpsh", "hashnet")
    compiling = Compiling(pays=True, gallery=100, folder=tmp_path)
    compiling.choose([of["backbone"]], set())
    # It failed, or it died and is tried again.
    again = of["dpsh"] if failed else of["backbone"]
    ended = {of["backbone"].key} if failed else set()
    orders = compiling.choose([again, of["hashnet"]], ended)
    assert orders[again.key].compiled
    assert not orders[of["hashnet"].key].compiled


def test_nothing_compiles_where_it_does_not_pay(tmp_path: Path) -> None:
    phpq = cells("phpq")["phpq"]
    compiling = Compiling(pays=False, gallery=100, folder=tmp_path)
    assert compiling.choose([phpq], set()) == {phpq.key: PLAIN}


@pytest.mark.parametrize("order", [Order(), Order(True), Order(False, Path("a/b"))])
def test_orders_travel_as_plain_data(order: Order) -> None:
    assert Order.from_dict(order.to_dict()) == order


class Trained:
    """Counts how often it is compiled."""

    def __init__(self) -> None:
        self.compiled = 0

    def compile(self) -> None:
        self.compiled += 1


def test_who_compiles_says_so_after_the_first_epoch(tmp_path: Path) -> None:
    filled, trained = tmp_path / "filled", Trained()
    compiler = StepCompiler(Order(True, filled), trained, epochs=4)
    compiler.before(0)
    assert not filled.exists()
    compiler.before(1)
    assert filled.exists()
    filled.unlink()
    compiler.before(2)
    assert not filled.exists()
    assert trained.compiled == 0  # it was from the start
    assert compiler.compiled_from == 0


def test_the_others_compile_once_the_cache_is_filled(tmp_path: Path) -> None:
    filled, trained = tmp_path / "filled", Trained()
    compiler = StepCompiler(Order(False, filled), trained, epochs=8)
    compiler.before(0)
    compiler.before(1)
    assert (trained.compiled, compiler.compiled_from, filled.exists()) == (0, None, False)
    filled.touch()
    compiler.before(2)
    compiler.before(3)
    assert (trained.compiled, compiler.compiled_from) == (1, 2)


@pytest.mark.parametrize(("epoch", "compiled"), [(4, 1), (5, 0)])
def test_the_last_epochs_are_not_worth_compiling(tmp_path: Path, epoch: int, compiled: int) -> None:
    filled, trained = tmp_path / "filled", Trained()
    filled.touch()
    StepCompiler(Order(False, filled), trained, epochs=8).before(epoch)
    assert trained.compiled == compiled


def test_without_an_order_nothing_happens() -> None:
    trained = Trained()
    compiler = StepCompiler(PLAIN, trained, epochs=2)
    compiler.before(0)
    compiler.before(1)
    assert (trained.compiled, compiler.compiled_from) == (0, None)
