from __future__ import annotations

from dataclasses import replace
from multiprocessing.reduction import ForkingPickler

import pytest

from made_up_grids import tiny_plan, tiny_subject
from phpq.config import RECIPES, override, to_dict
from phpq.errors import ConfigError
from phpq.reproduce.grid import make_plan, recorded_config, same_settings


def test_cells_that_tables_share_are_planned_once() -> None:
    plan = tiny_plan("all", bits=(16, 32), seeds=(0, 1))
    assert len({cell.key for cell in plan.cells}) == len(plan.cells)
    settings = [str(to_dict(cell.config)) + cell.kind for cell in plan.cells]
    assert len(set(settings)) == len(settings)
    base = plan.subject.base
    shared = {
        plan.places[target, row, 16, 0]
        for target, row in (
            ("table1", "phpq"),
            ("variants", "phpq"),
            ("kappa", f"kappa-{base.quantizer.kappa}"),
            ("alpha", f"alpha-{base.quantizer.alpha:g}"),
            ("tau", f"tau-{base.loss.tau:g}"),
            ("future", "phpq"),
            ("pn-curves", "phpq"),
        )
    }
    assert len(shared) == 1


def test_a_cell_has_the_same_key_in_every_table() -> None:
    alone = tiny_plan("kappa", seeds=(0,))
    whole = tiny_plan("all", seeds=(0, 1, 2))
    assert {cell.key for cell in alone.cells} <= {cell.key for cell in whole.cells}


def test_every_place_has_a_cell_of_its_length_and_seed() -> None:
    plan = tiny_plan("all", bits=(16, 32), seeds=(0, 3))
    cells = {cell.key: cell for cell in plan.cells}
    for (target, _, bits, seed), key in plan.places.items():
        assert (cells[key].bits, cells[key].seed) == (bits, seed), target
    assert {seed for target, _, _, seed in plan.places if target == "efficiency"} == {0}
    assert {bits for target, _, bits, _ in plan.places if target == "top10"} == {32}


def test_one_training_of_features_serves_all_shallow_methods() -> None:
    plan = tiny_plan("table1", "lsh", "sh", "pq", bits=(16, 32), seeds=(0, 1))
    features = {cell.key: cell for cell in plan.cells if cell.kind == "features"}
    shallow = [cell for cell in plan.cells if cell.kind == "shallow"]
    assert len(features) == 3  # fine-tuned for two seeds, ImageNet for all
    assert len(shallow) == 3 * 2 * 2 * 2
    for cell in shallow:
        source = features[cell.features]
        assert source.config.method.features == cell.config.method.features
        if cell.config.method.features == "finetuned":
            assert source.seed == cell.seed


def test_one_fine_tuned_backbone_serves_all_that_start_from_it() -> None:
    subject = tiny_subject("method.classifier_share=0.5", epochs=4)
    plan = make_plan(subject, "table1", bits=(16, 32), seeds=(0, 1), methods=["dpsh", "hashnet"])
    backbones = {cell.key: cell for cell in plan.cells if cell.kind == "backbone"}
    assert [cell.seed for cell in backbones.values()] == [0, 1]
    assert {cell.config.training.epochs for cell in backbones.values()} == {2}
    trainings = [cell for cell in plan.cells if cell.kind == "training"]
    assert len(trainings) == 8
    assert all(backbones[cell.features].seed == cell.seed for cell in trainings)
    assert [cell.kind for cell in plan.cells[:2]] == ["backbone", "backbone"]


def test_features_come_first_then_the_longest() -> None:
    plan = tiny_plan("table1", "lsh", "dpsh", "srlh")
    kinds = [cell.kind for cell in plan.cells]
    assert kinds == ["features", "features", "training", "training", "shallow", "shallow"]
    assert [c.config.method.name for c in plan.cells if c.kind == "training"] == ["srlh", "dpsh"]


def test_keys_read_well() -> None:
    plan = tiny_plan("variants", seeds=(7,))
    names = {row: plan.places["variants", row, 16, 7] for row in ("phpq", "gap", "without-cl")}
    assert names["phpq"].startswith("phpq-16bits-seed7-")
    assert names["gap"].startswith("phpq-rho1_1_1-16bits-seed7-")
    assert names["without-cl"].startswith("phpq-gamma0-16bits-seed7-")


def test_what_is_asked_for_counts_more_than_a_recipe_and_less_than_a_row() -> None:
    subject = tiny_subject("training.sampler=shuffle", "quantizer.kappa=7")
    plan = make_plan(subject, "all", bits=(16,), seeds=(0,))
    assert RECIPES["dpsh"].settings
    cells = {cell.key: cell.config for cell in plan.cells}
    assert cells[plan.places["table1", "dpsh", 16, 0]].training.sampler == "shuffle"
    assert cells[plan.places["kappa", "kappa-25", 16, 0]].quantizer.kappa == 25
    assert cells[plan.places["table1", "phpq", 16, 0]].quantizer.kappa == 7


def test_codes_are_kept_of_methods_with_the_first_seed() -> None:
    plan = tiny_plan("all", seeds=(1, 0))
    kept = [cell for cell in plan.cells if cell.keep]
    assert {cell.seed for cell in kept} == {1}
    assert {cell.config.method.name for cell in kept} == set(RECIPES)
    assert sum(cell.config.method.name == "phpq" for cell in kept) == 1


def test_a_cell_survives_the_way_to_a_worker() -> None:
    for cell in tiny_plan("all").cells:
        assert ForkingPickler.loads(ForkingPickler.dumps(cell)) == cell


def test_cells_of_a_method_do_not_start_together() -> None:
    """The first one fills the compiler's cache for those that come later."""
    plan = tiny_plan("table1", "dpsh", "phpq", "csq", "lsh", bits=(16, 32))
    names = [cell.key.rpartition("-seed")[0] for cell in plan.cells]
    assert names == [
        *("features-finetuned", "features-imagenet"),
        *("phpq-32bits", "csq-32bits", "dpsh-32bits"),
        *("phpq-16bits", "csq-16bits", "dpsh-16bits"),
        *names[-4:],
    ]
    assert all(name.startswith("lsh-") for name in names[-4:])


def test_settings_are_compared_not_machines() -> None:
    plan = tiny_plan("table1", "phpq")
    cell = plan.cells[0]
    recorded = recorded_config(cell.config, "none")
    assert same_settings(recorded, cell, "none")
    moved = override(cell.config, ["training.workers=5", "training.accelerate=off"])
    assert same_settings(recorded_config(moved, "none"), cell, "none")
    assert same_settings(recorded, replace(cell, config=moved), "none")
    other = override(cell.config, ["training.learning_rate=1e-5"])
    assert not same_settings(recorded_config(other, "none"), cell, "none")
    assert not same_settings(recorded, cell, "net:123")
    recorded["loss"]["gone"] = 1  # of a version that had another setting
    assert not same_settings(recorded, cell, "none")


def test_keys_differ_by_data_weights_and_settings() -> None:
    subject = tiny_subject()
    variants = [
        subject,
        replace(subject, fingerprint="other"),
        replace(subject, weights="net:123"),
        tiny_subject(epochs=9),
    ]
    keys = {tiny_plan("table1", "phpq", subject=one).cells[0].key for one in variants}
    assert len(keys) == 4


@pytest.mark.parametrize("bits", [(), (12,), (16, 4), (0,)])
def test_bad_lengths(bits: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"multiple of 8.*--bits 16,32"):
        tiny_plan(bits=bits)


@pytest.mark.parametrize("seeds", [(), (0, -1)])
def test_bad_seeds(seeds: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="--seeds 0,1,2"):
        tiny_plan(seeds=seeds)
