from __future__ import annotations

import pytest

from phpq.config import RECIPES, RunConfig
from phpq.reproduce.paper import BITS, PAPER
from phpq.reproduce.rows import rows_of


@pytest.mark.parametrize("dataset", PAPER)
def test_phpq_is_the_same_in_all_tables(dataset: str) -> None:
    tables = PAPER[dataset]
    tau = {"cub200": "tau-0.5", "dogs120": "tau-0.25"}[dataset]
    places = {"variants": "phpq", "kappa": "kappa-5", "alpha": "alpha-16", "tau": tau}
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
