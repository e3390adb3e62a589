from __future__ import annotations

import shutil
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from benchmark_layouts import write_cub200, write_dogs120
from made_up_grids import BIRDS, tiny_plan, tiny_subject
from phpq.config import RECIPES, override, to_dict
from phpq.errors import ConfigError
from phpq.reproduce.grid import (
    GridPlan,
    identify_weights,
    make_plan,
    open_subject,
    recall_subject,
    recorded_config,
    same_settings,
)
from phpq.reproduce.paper import EXTRA_ROWS, rows_of


@pytest.fixture(scope="module")
def whole() -> GridPlan:
    return tiny_plan("all", bits=(16, 32), seeds=(1, 0))


def test_cells_that_tables_share_are_planned_once(whole: GridPlan) -> None:
    plan = whole
    assert len({cell.key for cell in plan.cells}) == len(plan.cells)
    settings = [str(to_dict(cell.config)) + cell.kind for cell in plan.cells]
    assert len(set(settings)) == len(settings)
    base = plan.subject.base
    shared = {
        plan.cell_keys[target, row, 16, 1]
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


def test_a_cell_has_the_same_key_in_every_table(whole: GridPlan) -> None:
    alone = tiny_plan("kappa", seeds=(0,))
    assert {cell.key for cell in alone.cells} <= {cell.key for cell in whole.cells}


def test_every_place_has_a_cell_of_its_length_and_seed(whole: GridPlan) -> None:
    cells = {cell.key: cell for cell in whole.cells}
    for (target, row, bits, seed), key in whole.cell_keys.items():
        trained = 32 if row == "phpq-float" else bits  # floats have no length
        assert (cells[key].bits, cells[key].seed) == (trained, seed), target
    assert {seed for target, _, _, seed in whole.cell_keys if target == "efficiency"} == {1}
    assert {bits for target, _, bits, _ in whole.cell_keys if target == "top10"} == {32}


def test_one_training_of_features_serves_all_shallow_methods() -> None:
    plan = tiny_plan("table1", "lsh", "sh", "pq", bits=(16, 32), seeds=(0, 1))
    features = {cell.key: cell for cell in plan.cells if cell.kind == "features"}
    shallow = [cell for cell in plan.cells if cell.kind == "shallow"]
    assert len(features) == 3  # fine-tuned for two seeds, ImageNet for all
    assert len(shallow) == 3 * 3 * 2 * 2
    for cell in shallow:
        source, kind = features[cell.start], cell.config.method.features
        assert (source.config.method.features == "imagenet") is (kind == "imagenet")
        if kind != "imagenet":
            assert source.seed == cell.seed


def test_one_fine_tuned_backbone_serves_all_that_start_from_it() -> None:
    subject = tiny_subject("method.classifier_share=0.5", epochs=4)
    plan = make_plan(subject, "table1", bits=(16, 32), seeds=(0, 1), methods=["dpsh", "hashnet"])
    backbones = {cell.key: cell for cell in plan.cells if cell.kind == "backbone"}
    assert [cell.seed for cell in backbones.values()] == [0, 1]
    assert {cell.config.training.epochs for cell in backbones.values()} == {2}
    trainings = [cell for cell in plan.cells if cell.kind == "training"]
    assert len(trainings) == 8
    assert all(backbones[cell.start].seed == cell.seed for cell in trainings)
    assert [cell.kind for cell in plan.cells[:2]] == ["backbone", "backbone"]


def test_features_come_first_then_the_longest() -> None:
    plan = tiny_plan("table1", "lsh", "dpsh", "srlh")
    kinds = [cell.kind for cell in plan.cells]
    assert kinds == ["features"] * 2 + ["training"] * 2 + ["shallow"] * 3
    assert [c.config.method.name for c in plan.cells if c.kind == "training"] == ["srlh", "dpsh"]


def test_keys_read_well() -> None:
    plan = tiny_plan("variants", seeds=(7,))
    names = {row: plan.cell_keys["variants", row, 16, 7] for row in ("phpq", "gap", "without-cl")}
    assert names["phpq"].startswith("phpq-16bits-seed7-")
    assert names["gap"].startswith("phpq-rho1_1_1-16bits-seed7-")
    assert names["without-cl"].startswith("phpq-gamma0-16bits-seed7-")


def test_keys_name_the_recipe_and_what_a_row_changes() -> None:
    plan = tiny_plan("table1", "phpq", "pqn", *EXTRA_ROWS, seeds=(7,))
    starts = {
        "phpq": "phpq-16bits-",
        "phpq@paper": "phpq-paper-16bits-",
        "phpq-without-z": "phpq-embedding_weight0-16bits-",
        "phpq-float": "phpq-embedding_weight0-codebook_epoch1000000-16bits-",
        "pqn": "pqn-16bits-",
        "pqn-classified": "pqn-classification1-16bits-",
    }
    for row, start in starts.items():
        assert plan.cell_keys["table1", row, 16, 7].startswith(f"{start}seed7-")


def test_the_paper_as_printed_keeps_what_the_data_set_needs_and_what_is_asked_for() -> None:
    subject = tiny_subject("quantizer.alpha=8")
    plan = tiny_plan("table1", "phpq", "phpq@paper", subject=subject)
    cells = {cell.key: cell.config for cell in plan.cells}
    ours, theirs = (cells[plan.cell_keys["table1", row, 16, 0]] for row in ("phpq", "phpq@paper"))
    assert theirs.quantizer.alpha == ours.quantizer.alpha == 8  # asked for
    assert theirs.data == ours.data  # of the drawn birds
    assert theirs.training.learning_rate == ours.training.learning_rate
    assert (theirs.loss.embedding_weight, theirs.quantizer.init) == (0, "xavier")
    assert (theirs.model.embedding_norm, theirs.loss.label_smoothing) == ("none", 0)


def test_what_is_asked_for_counts_more_than_a_recipe_and_less_than_a_row() -> None:
    subject = tiny_subject("training.sampler=shuffle", "quantizer.kappa=7")
    plan = make_plan(subject, "all", bits=(16,), seeds=(0,))
    assert RECIPES["dpsh"].settings
    cells = {cell.key: cell.config for cell in plan.cells}
    assert cells[plan.cell_keys["table1", "dpsh", 16, 0]].training.sampler == "shuffle"
    assert cells[plan.cell_keys["kappa", "kappa-25", 16, 0]].quantizer.kappa == 25
    assert cells[plan.cell_keys["table1", "phpq", 16, 0]].quantizer.kappa == 7


def test_codes_are_kept_of_methods_with_the_first_seed(whole: GridPlan) -> None:
    kept = [cell for cell in whole.cells if cell.keep]
    assert {cell.seed for cell in kept} == {1}
    assert {cell.config.method.name for cell in kept} == set(RECIPES)
    assert sum(cell.config.method.name == "phpq" for cell in kept) == 2  # one per length


def test_a_cell_survives_the_way_to_a_worker(whole: GridPlan) -> None:
    for cell in whole.cells:
        assert ForkingPickler.loads(ForkingPickler.dumps(cell)) == cell


def test_cells_of_a_method_do_not_start_together() -> None:
    """The first one fills the compiler's cache for those that come later."""
    plan = tiny_plan("table1", "dpsh", "phpq", "csq", "lsh", bits=(16, 32))
    names = [cell.key.rpartition("-seed")[0] for cell in plan.cells]
    assert names == [
        *("features-finetuned", "features-imagenet"),
        *("phpq-32bits", "csq-32bits", "dpsh-32bits"),
        *("phpq-16bits", "csq-16bits", "dpsh-16bits"),
        *names[-6:],
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


def test_drawn_birds_get_a_small_network_of_their_size() -> None:
    subject, dataset = open_subject(BIRDS)
    assert (subject.name, subject.classes, subject.gallery, subject.queries) == (
        "plumage",
        4,
        24,
        8,
    )
    assert subject.base.data.store_size == subject.base.data.eval_size == 32
    assert subject.base.model.backbone == "test_resnet"
    assert subject.weights == subject.base.model.weights == "none"
    assert len(dataset.train) == 24


def test_plain_plumage_is_small() -> None:
    assert open_subject("plumage")[0].gallery <= 200


def test_photographs_keep_the_defaults(tmp_path: Path) -> None:
    subject, _ = open_subject(write_cub200(tmp_path))
    assert subject.name == "cub200"
    assert subject.base.loss.tau == 0.5
    assert subject.base.model.weights == "hub"
    assert subject.drawn == ""
    dogs, _ = open_subject(write_dogs120(tmp_path / "dogs"))
    assert (dogs.name, dogs.base.loss.tau) == ("dogs120", 0.25)


def test_a_data_set_is_known_by_content_not_by_place(tmp_path: Path) -> None:
    here, there = write_cub200(tmp_path / "a"), tmp_path / "b" / "c"
    shutil.copytree(here, there)
    weights = tmp_path / "w.bin"
    weights.write_bytes(b"weights")
    (tmp_path / "b" / "w.bin").write_bytes(b"weights")
    first = open_subject(here, weights=str(weights))[0]
    second = open_subject(there, weights=str(tmp_path / "b" / "w.bin"))[0]
    assert first.facts() == second.facts()
    assert str(tmp_path) not in str(first.facts())
    other = open_subject(BIRDS)[0], open_subject(BIRDS + ",seed=1")[0]
    assert other[0].fingerprint != other[1].fingerprint


def test_settings_and_epochs_come_last() -> None:
    subject, _ = open_subject(BIRDS, settings=["training.batch_size=4"], epochs=3)
    assert subject.base.training.batch_size == 4
    assert subject.base.training.epochs == 3
    assert subject.settings == ("training.batch_size=4", "training.epochs=3")


def test_a_subject_is_recalled_without_images() -> None:
    subject, _ = open_subject(BIRDS, settings=["loss.tau=1"], epochs=3)
    again = recall_subject(subject.facts(), settings=["loss.tau=1"], epochs=3)
    assert again == subject


def test_a_recalled_subject_names_its_rows_as_before(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"weights")
    subject, _ = open_subject(BIRDS, weights=str(file))
    again = recall_subject(subject.facts())
    titles = [[row.title for row in rows_of("table1", s.base)] for s in (subject, again)]
    assert titles[0] == titles[1]
    assert "PQ, ImageNet features" in titles[1]


def test_weights_by_content(tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    file.write_bytes(b"one")
    one = identify_weights(str(file))
    file.write_bytes(b"two")
    assert one.startswith("net.safetensors:")
    assert identify_weights(str(file)) != one
    assert identify_weights("hub") == "hub"
    with pytest.raises(ConfigError, match=r"Cannot read the weights .*none\.bin.*--weights"):
        identify_weights(str(tmp_path / "none.bin"))
