"""The rows of each table: what differs from the base settings, and how it is called.

A row is a method or a variant of PHPQ as texts like "quantizer.kappa=25". No torch, no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phpq.config import RECIPES, RunConfig
from phpq.errors import ConfigError, nearest_hint, unknown_name

TABLES = ("table1", "variants", "kappa", "alpha", "tau", "future")
FIGURES = ("pn-curves", "efficiency", "top10")
TARGETS = (*TABLES, *FIGURES, "all")

RECONSTRUCTED = "\N{DAGGER}"  # beside every number of a method that is our reconstruction
KAPPAS = (1, 5, 25, 125, 256)
ALPHAS = (1, 2, 4, 8, 16, 32)
TAUS = (0.25, 0.5, 0.75, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table."""

    name: str  # unique in its table, and that of the paper's row where it has one
    title: str  # as printed
    settings: tuple[str, ...] = ()  # what it changes besides the method's recipe, in texts
    method: str = "phpq"  # one of `RECIPES`
    group: str = ""  # a heading it stands under

    @property
    def figure_title(self) -> str:
        """As printed in figures, where a method has one mark only."""
        recipe = RECIPES[self.method]
        title = f"{self.title}, learned database" if recipe.learned_database else self.title
        return f"{title} {RECONSTRUCTED}" if recipe.reconstruction else title


def rows_of(target: str, base: RunConfig, methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """Return the rows that a table or figure, one of `TARGETS` but "all", needs.

    Variants change `base`, the settings before any method. Tables of methods have only the given
    ones; all of them if there are none.
    """
    if target == "table1":
        return _method_rows(base, methods)
    if target in ("pn-curves", "efficiency"):  # more lines than these nobody can tell apart
        return tuple(row for row in _method_rows(base, methods) if row.name == row.method)
    if target == "top10":
        return tuple(row for row in _method_rows(base, ()) if row.name in ("phpq", "pqn"))
    if target in TABLES:
        return tuple(_phpq_rows(base)[target])
    raise unknown_name("table or figure", target, TARGETS)


def expand_targets(target: str) -> tuple[str, ...]:
    """Return the tables and figures that a word asks for."""
    if target not in TARGETS:
        raise ConfigError(f"Unknown table or figure {target!r}. {nearest_hint(target, TARGETS)}")
    return (*TABLES, *FIGURES) if target == "all" else (target,)


def check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that are no method, and repeated ones are taken once."""
    for method in methods:
        if method not in RECIPES:
            raise ConfigError(f"Unknown method {method!r}. {nearest_hint(method, RECIPES)}")
    return tuple(dict.fromkeys(methods))


def _method_rows(base: RunConfig, methods: Sequence[str]) -> tuple[Row, ...]:
    # The backbone as it starts: a network that was not pretrained knows no ImageNet.
    start = "untrained" if base.model.weights == "none" else "ImageNet"
    rows = []
    for name in [name for name in RECIPES if not methods or name in methods]:
        recipe = RECIPES[name]
        rows.append(Row(name, recipe.title, (), name, recipe.kind))
        if recipe.kind == "shallow":
            settings = ("method.features=imagenet",)
            title = f"{recipe.title}, {start} features"
            rows.append(Row(f"{name}-imagenet", title, settings, name, recipe.kind))
    return tuple(rows)


def _phpq_rows(base: RunConfig) -> dict[str, list[Row]]:
    """Return the rows of the tables that vary PHPQ."""
    levels, words = base.model.levels, base.quantizer.codebook_size
    full = f"quantizer.kappa={words}"
    ascending = ", ".join(f"{rho:g}" for rho in sorted(base.model.rho))
    alphas = [(f"alpha-{a}", f"alpha = {a}", f"quantizer.alpha={a}") for a in ALPHAS]
    return {
        "variants": [
            Row("phpq", "PHPQ"),
            # The 1000-way layer of ImageNet itself is no embedding; its input is meant.
            Row("last-fc", "last fc", ("model.levels=1", "model.rho=[1]")),
            Row("gap", "GAP", (f"model.rho=[{', '.join(['1'] * levels)}]",)),
            Row("gmp", "GMP", (f"model.rho=[{', '.join(['inf'] * levels)}]",)),
            Row("ascending-rho", "ascending rho", (f"model.rho=[{ascending}]",)),
            Row("full-attention", "full attention", (full,)),
            Row("without-cl", "without CL", ("loss.gamma=0",)),
        ],
        "kappa": [
            Row(f"kappa-{k}", f"kappa = {k}", (f"quantizer.kappa={k}",))
            for k in KAPPAS
            if k <= words
        ],
        "alpha": [
            *(Row(name, title, (a,), group="partial attention") for name, title, a in alphas),
            *(
                Row(f"{name}-full", f"{title}, full attention", (a, full), group="full attention")
                for name, title, a in alphas
            ),
        ],
        "tau": [Row(f"tau-{t}", f"tau = {t}", (f"loss.tau={t}",)) for t in TAUS],
        "future": [
            Row("phpq", "PHPQ"),
            Row("input-rho", "input-aware pooling", ("model.rho_mode=input",)),
            Row("anneal-kappa", "kappa annealed", ("quantizer.kappa_mode=anneal",)),
            Row("nucleus-kappa", "kappa by mass", ("quantizer.kappa_mode=nucleus",)),
        ],
    }
