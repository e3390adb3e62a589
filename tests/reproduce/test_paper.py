from __future__ import annotations

import pytest

from phpq.config import READINGS, RECIPES, RunConfig, override
from phpq.errors import PhpqError
from phpq.reproduce.paper import (
    BITS,
    CLAIMS,
    EXTRA_ROWS,
    FIGURES,
    PAPER,
    RECIPE_TITLES,
    TABLES,
    TARGETS,
    UNSEEN,
    UNSEEN_METHODS,
    UNSEEN_SETTINGS,
    Row,
    check_methods,
    expand_targets,
    rows_of,
)


@pytest.mark.parametrize("dataset", PAPER)
def test_phpq_is_the_same_in_all_tables(dataset: str) -> None:
    tables = PAPER[dataset]
    tau = {"cub200": "tau-0.5", "dogs120": "tau-0.25"}[dataset]
    places = {
        "headline": "phpq",
        "variants": "phpq",
        "kappa": "kappa-5",
        "alpha": "alpha-16",
        "tau": tau,
    }
    for bits in BITS:
        expected = tables["table1"].meant("phpq", bits)
        assert {tables[name].meant(row, bits) for name, row in places.items()} == {expected}


def test_the_appendix_is_kept_as_printed_and_put_right() -> None:
    alpha = PAPER["cub200"]["alpha"]
    assert alpha.printed("alpha-16", 16) == 79.03
    assert alpha.meant("alpha-16", 16) == 76.03
    assert "3.00" in alpha.note
    assert PAPER["dogs120"]["alpha"].meant("alpha-16", 16) == 81.01


def test_full_attention_is_kappa_256() -> None:
    for tables in PAPER.values():
        assert tables["variants"].rows["full-attention"] == tables["kappa"].rows["kappa-256"]


@pytest.mark.parametrize("target", ["table1", "variants", "kappa", "alpha", "tau"])
def test_every_row_of_the_paper_is_one_of_ours(target: str) -> None:
    ours = {row.name for row in rows_of(target, RunConfig())}
    for tables in PAPER.values():
        assert set(tables[target].rows) <= ours
        assert all(len(values) == len(BITS) for values in tables[target].rows.values())


def test_phpq_is_the_best_row_of_the_paper() -> None:
    for tables in PAPER.values():
        table = tables["table1"]
        for bits in BITS:
            column = [table.meant(row, bits) or 0 for row in table.rows]
            assert max(column) == table.meant("phpq", bits)


def test_what_the_paper_does_not_have() -> None:
    assert "future" not in PAPER["cub200"]
    table = PAPER["cub200"]["table1"]
    assert table.meant("exchnet", 16) is None
    assert table.meant("orthohash", 16) is None
    assert table.meant("phpq", 24) is None
    assert set(RECIPES) - set(table.rows) == {"orthohash", "csq"}


def config_of(row: Row) -> RunConfig:
    return override(RunConfig(), row.settings)


@pytest.mark.parametrize("target", [*TABLES, *FIGURES])
def test_rows_are_named_once_and_their_settings_exist(target: str) -> None:
    rows = rows_of(target, RunConfig())
    assert len({row.name for row in rows}) == len(rows) > (0 if target == "headline" else 1)
    for row in rows:
        assert row.method in RECIPES
        config_of(row)


def test_table1_has_every_method_and_both_kinds_of_features() -> None:
    names = [row.name for row in rows_of("table1", RunConfig())]
    assert set(RECIPES) <= set(names)
    assert [n for n in names if n.endswith("-imagenet")] == [
        f"{n}-imagenet" for n in ("lsh", "sh", "pq", "itq", "opq")
    ]


def test_variants_change_one_thing_each() -> None:
    rows = {row.name: config_of(row) for row in rows_of("variants", RunConfig())}
    assert rows["phpq"] == RunConfig()
    assert rows["last-fc"].model.levels == 1
    assert rows["gap"].model.rho == (1.0, 1.0, 1.0)
    assert rows["gmp"].model.rho == (float("inf"),) * 3
    assert rows["ascending-rho"].model.rho == (1.0, 2.0, 3.0)
    assert rows["full-attention"].quantizer.kappa == 256
    assert rows["without-cl"].loss.gamma == 0


def test_kappa_does_not_exceed_the_codebook() -> None:
    small = override(RunConfig(), ["quantizer.codebook_size=16"])
    assert [row.name for row in rows_of("kappa", small)] == ["kappa-1", "kappa-5"]
    full = [row for row in rows_of("alpha", small) if row.group == "full attention"]
    assert {override(small, row.settings).quantizer.kappa for row in full} == {16}


def test_only_some_methods() -> None:
    assert [row.name for row in rows_of("table1", RunConfig(), ["phpq", "itq"])] == [
        *("itq", "itq-finetuned", "itq-imagenet"),
        "phpq",
    ]
    assert [row.name for row in rows_of("table1", RunConfig(), ["phpq@paper", "pqn"])] == [
        "pqn",
        "phpq@paper",
    ]
    everything = [row.name for row in rows_of("table1", RunConfig())]
    assert everything[-4:] == ["phpq@paper", "phpq-without-z", "phpq-float", "phpq"]
    assert everything[everything.index("pqn") + 1] == "pqn-classified"
    assert check_methods(EXTRA_ROWS) == EXTRA_ROWS
    assert [row.name for row in rows_of(UNSEEN, RunConfig(), ["phpq", "pqn"])] == ["pqn", "phpq"]
    assert [row.name for row in rows_of("efficiency", RunConfig(), ["phpq", "itq"])] == [
        "itq",
        "phpq",
    ]
    assert [row.name for row in rows_of("top10", RunConfig(), ["itq"])] == ["pqn", "phpq"]


def test_reconstructions_are_marked_in_figures() -> None:
    titles = {row.name: row.figure_title for row in rows_of("efficiency", RunConfig())}
    assert titles["cfh"] == "CFH \N{DAGGER}"
    assert titles["adsh"] == "ADSH, learned database"
    assert titles["phpq"] == "PHPQ"


def test_variants_of_both_recipes() -> None:
    ours, theirs, both = (
        rows_of("kappa", RunConfig(), recipe=recipe) for recipe in ("ours", "paper", "both")
    )
    assert both == (*ours, *theirs)
    assert {row.recipe for row in theirs} == {"paper"}
    assert [row.printed for row in theirs] == [row.name for row in ours]
    assert set(RECIPE_TITLES) == set(READINGS)
    with pytest.raises(PhpqError, match=r"Unknown recipe 'papre'.*mean 'paper'"):
        rows_of("kappa", RunConfig(), recipe="papre")


@pytest.mark.parametrize("target", CLAIMS)
def test_claims_are_about_rows_and_the_papers_numbers_of_cub_make_them(target: str) -> None:
    names = {row.name for row in rows_of(target, RunConfig())}
    table = PAPER["cub200"][target]
    for claim in CLAIMS[target]:
        assert {claim.better, claim.worse} <= names
        pairs = [(table.meant(claim.better, b), table.meant(claim.worse, b)) for b in BITS]
        known = [better - worse for better, worse in pairs if better and worse]
        assert not known or sum(known) > 0, claim


def test_names() -> None:
    assert expand_targets("kappa") == ("kappa",)
    assert set(expand_targets("all")) == set(TARGETS) - {"all", UNSEEN}  # not of the paper
    assert check_methods(["phpq", "pqn", "phpq"]) == ("phpq", "pqn")
    with pytest.raises(PhpqError, match=r"Unknown table or figure 'tabel1'.*mean 'table1'"):
        expand_targets("tabel1")
    with pytest.raises(PhpqError, match=r"Unknown method 'hashnett'.*mean 'hashnet'"):
        check_methods(["hashnett"])
    with pytest.raises(PhpqError, match="Unknown table or figure 'all'"):
        rows_of("all", RunConfig())


def test_new_kinds_are_asked_of_methods_that_learned_half_of_the_classes() -> None:
    rows = rows_of(UNSEEN, RunConfig())
    assert {row.method for row in rows} == set(UNSEEN_METHODS)
    assert all(row.settings[-2:] == UNSEEN_SETTINGS for row in rows)
    frozen = next(row for row in rows if row.name == "pq-imagenet")
    assert frozen.settings == ("method.features=imagenet", *UNSEEN_SETTINGS)
    assert [row.name for row in rows_of(UNSEEN, RunConfig(), ["csq"])] == ["csq"]
    assert expand_targets(UNSEEN) == (UNSEEN,)
