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


def grid(*planned: Cell, device: str = "cuda") -> Compiling:
    return Compiling(planned, device=device, gallery=GALLERY)


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
def test_the_shortest_of_the_first_cells_fills_the_cache() -> None:
    of = cells("lsh", "dpsh", "hashnet", "dth")
    backbone, dpsh, dth, shallow = of["backbone"], of["dpsh"], of["dth"], of["lsh"]
    compiling = grid(*of.values())
    assert compiling.choose([shallow], set()) == {shallow.key: False}
    first = compiling.choose([dpsh, backbone, shallow], set())
    assert first == {dpsh.key: False, backbone.key: True, shallow.key: False}
    # Before it has ended others go without, then all that learn compile.
    assert compiling.choose([dth], {dpsh.key}) == {dth.key: False}
    hashnet = of["hashnet"]
    later = compiling.choose([hashnet, shallow], {dpsh.key, backbone.key})
    assert later == {hashnet.key: True, shallow.key: False}
    # Tried again, it compiles again.
    assert compiling.choose([backbone], set()) == {backbone.key: True}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("other", ["phpq", "fph", "srlh", "exchnet"])
def test_a_method_with_levels_of_its_own_has_code_of_its_own(other: str) -> None:
    of = cells("dpsh", other)
    own, dpsh = of[other], of["dpsh"]
    assert grid(own, dpsh).choose([own, dpsh], set()) == {own.key: True, dpsh.key: True}


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
    chosen = grid(other, of["dpsh"]).choose([other, of["dpsh"]], set())
    assert list(chosen.values()) == [True, True]
    alike = grid(of["dth"], of["dpsh"]).choose([of["dth"], of["dpsh"]], set())
    assert sorted(alike.values()) == [False, True]


@pytest.mark.usefixtures("gpu")
def test_only_what_learns_from_enough_images_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    of = cells("dpsh", "dth", "phpq")
    dpsh, dth, phpq = of["dpsh"], of["dth"], of["phpq"]
    assert images_to_learn(dpsh, GALLERY) == images_to_learn(phpq, GALLERY) == 400
    monkeypatch.setattr(module, "IMAGES_TO_COMPILE", 800)
    # Two of a family win back what one does not.
    chosen = grid(dpsh, dth, phpq).choose([dpsh, phpq], set())
    assert chosen == {dpsh.key: True, phpq.key: False}
    assert grid(dpsh, phpq).choose([dpsh, phpq], set()) == {dpsh.key: False, phpq.key: False}


@pytest.mark.usefixtures("gpu")
def test_nothing_compiles_on_a_cpu() -> None:
    phpq = cells("phpq")["phpq"]
    assert grid(phpq, device="cpu").choose([phpq], set()) == {phpq.key: False}
