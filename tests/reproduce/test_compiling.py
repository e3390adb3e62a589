"""Which cells compile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from made_up_grids import tiny_plan, tiny_subject
from phpq.config import override
from phpq.model.method import build_method
from phpq.recipes import RECIPES
from phpq.reproduce import compiling as module
from phpq.reproduce.compiling import Compiling, can_compile, images_to_learn
from phpq.reproduce.grid import Cell

EPOCHS = 6
SHARE = "method.classifier_share=0.33"
GALLERY = 100


def cells(*methods: str) -> dict[str, Cell]:
    """Return the cells of one length, and what they start from, by name."""
    plan = tiny_plan("table1", *methods, subject=tiny_subject(SHARE, epochs=EPOCHS))
    return {cell.key.partition("-")[0]: cell for cell in plan.cells}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a machine with a GPU and a compiler; any number of images is enough."""
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    monkeypatch.setattr(module, "IMAGES_TO_COMPILE", 1)


def grid(*planned: Cell, device: str = "cuda", processes: int = 1) -> Compiling:
    return Compiling(planned, device=device, gallery=GALLERY, processes=processes)


def compile_only(compiling: Compiling, name: str) -> None:
    """Let the code of one method be compiled, and that of others not."""
    while compiling.beforehand:
        compiling.ended(well=compiling.beforehand[0].config.method.name == name)


def compiled(compiling: Compiling, *asked: Cell) -> list[bool]:
    return [compiling.compiles(cell) for cell in asked]


def test_images_are_counted_as_often_as_they_are_seen() -> None:
    of = cells("lsh", "dpsh", "phpq")
    assert images_to_learn(of["backbone"], GALLERY) == 200  # a third of the epochs
    assert images_to_learn(of["dpsh"], GALLERY) == 400  # what is left of them
    assert images_to_learn(of["lsh"], GALLERY) == 0


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("device", "can"), [("cuda", True), ("cuda:1", True), ("cpu", False)])
def test_gpus_can_compile(device: str, can: bool) -> None:
    assert can_compile(device) is can


def test_nothing_is_compiled_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert not can_compile("cuda")
    monkeypatch.setenv("CC", "cc")
    assert can_compile("cuda")
    monkeypatch.setattr(module, "find_spec", lambda name: None)  # no triton
    assert not can_compile("cuda")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("processes", [0, 1])
def test_one_by_one_all_that_learns_compiles_from_the_start(processes: int) -> None:
    of = cells("lsh", "dpsh", "phpq")
    compiling = grid(*of.values(), processes=processes)
    assert not compiling.beforehand
    learning = [of["backbone"], of["dpsh"], of["phpq"]]
    assert compiled(compiling, *learning, of["lsh"]) == [True, True, True, False]


@pytest.mark.usefixtures("gpu")
def test_at_once_cells_compile_once_their_code_is_there() -> None:
    of = cells("lsh", "dpsh", "hashnet", "dth", "phpq")
    dpsh, dth, phpq = of["dpsh"], of["dth"], of["phpq"]
    compiling = grid(*of.values(), processes=2)
    # One cell for each code: the first that does not start before anything is compiled.
    assert [cell.config.method.name for cell in compiling.beforehand] == ["dpsh", "phpq"]
    assert compiled(compiling, dpsh, dth, phpq, of["lsh"]) == [False] * 4
    assert [compiling.is_awaited(cell) for cell in (dpsh, dth, of["lsh"])] == [True, True, False]
    compile_only(compiling, "dpsh")
    assert compiled(compiling, dpsh, dth, phpq, of["lsh"]) == [True, True, False, False]
    assert not any(compiling.is_awaited(cell) for cell in of.values())


@pytest.mark.usefixtures("gpu")
def test_what_starts_first_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("table1", "phpq", bits=(16, 32, 64), subject=tiny_subject(epochs=6))
    each = images_to_learn(plan.cells[0], GALLERY)
    assert each > 0
    monkeypatch.setattr(module, "IMAGES_TO_COMPILE", 2 * each)
    assert not grid(*plan.cells, processes=3).beforehand
    # Two start at once, and the third has to win it back alone: in half of the time.
    assert grid(*plan.cells, processes=2).beforehand == [plan.cells[2]]
    monkeypatch.setattr(module, "IMAGES_TO_COMPILE", 2 * each + 2)
    assert not grid(*plan.cells, processes=2).beforehand


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("other", ["phpq", "fph", "srlh", "exchnet"])
def test_a_method_with_levels_of_its_own_has_code_of_its_own(other: str) -> None:
    of = cells("dpsh", "dth", other)
    first = [cell for cell in of.values() if not cell.features]
    compiling = grid(*first, of["dpsh"], of["dth"], of[other], processes=2)
    compile_only(compiling, "dpsh")
    assert compiled(compiling, of["dpsh"], of["dth"], of[other]) == [True, True, False]


def test_those_methods_are_the_ones_that_ask_for_more_levels() -> None:
    deep = [name for name, recipe in RECIPES.items() if recipe.kind != "shallow"]
    built = {
        name: build_method(cell.config, num_classes=4, load_weights=False)
        for name, cell in cells(*deep).items()
        if cell.kind == "training"
    }
    assert built.keys() == set(deep)
    more = {name for name, method in built.items() if method.backbone.levels > 1}
    assert more == set(module._OWN_LEVELS)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "setting", ["training.batch_size=16", "data.crop_size=16", "training.precision=bf16"]
)
def test_so_have_other_batches_and_crops(setting: str) -> None:
    of = cells("dpsh", "dth")
    other = replace(of["dth"], config=override(of["dth"].config, [setting]))
    compiling = grid(*of.values(), processes=2)
    compile_only(compiling, "dpsh")
    assert compiled(compiling, of["dth"], other) == [True, False]


@pytest.mark.usefixtures("gpu")
def test_only_what_learns_from_enough_images_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    of = cells("dpsh", "dth", "phpq")
    dpsh, dth, phpq = of["dpsh"], of["dth"], of["phpq"]
    assert images_to_learn(dpsh, GALLERY) == images_to_learn(phpq, GALLERY) == 400
    monkeypatch.setattr(module, "IMAGES_TO_COMPILE", 800)
    # Two of a family win back what one does not.
    assert compiled(grid(dpsh, dth, phpq), dpsh, phpq) == [True, False]
    assert compiled(grid(dpsh, phpq), dpsh, phpq) == [False, False]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("processes", [1, 4])
def test_nothing_compiles_on_a_cpu(processes: int) -> None:
    of = cells("phpq", "dpsh", "dth")
    compiling = grid(*of.values(), device="cpu", processes=processes)
    assert not compiling.beforehand
    assert compiled(compiling, *of.values()) == [False] * len(of)


@pytest.mark.usefixtures("gpu")
def test_what_most_images_wait_for_is_compiled_first() -> None:
    of = cells("fph", "dpsh", "dth")
    begin = [cell for cell in of.values() if not cell.features]
    assert len(begin) == 1  # the classifier
    rest = [of["fph"], of["dpsh"], of["dth"]]
    compiling = grid(*begin, *rest, processes=2)
    assert compiling.beforehand == [of["dpsh"], of["fph"]]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("asked", ["graph", "off"])
def test_nothing_is_compiled_for_who_does_not_want_it(asked: str) -> None:
    subject = tiny_subject(f"training.accelerate={asked}", epochs=EPOCHS)
    plan = tiny_plan("table1", "phpq", bits=(16, 32, 64), subject=subject)
    assert not grid(*plan.cells, processes=2).beforehand
    assert compiled(grid(*plan.cells), *plan.cells) == [False] * 3
