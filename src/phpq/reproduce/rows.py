"""The rows of each table: what differs from the base settings, and how it is called.

A row is a method or a variant of PHPQ as texts like "quantizer.kappa=25". No torch, no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phpq.config import RunConfig
from phpq.errors import ConfigError, nearest_hint, unknown_name
from phpq.recipes import RECIPES

TABLES = ("table1", "variants", "kappa", "alpha", "tau", "future")
FIGURES = ("pn-curves", "efficiency", "top10")
TARGETS = (*TABLES, *FIGURES, "all")

RECONSTRUCTED = "\N{DAGGER}"  # beside every number of a method that is our reconstruction
KAPPAS = (1, 5, 25, 125, 256)
ALPHAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TAUS = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        name: Unique in its table, and that of the paper's row where it has one.
        title: As printed.
        method: One of `RECIPES`.
        settings: What it changes besides the method's recipe, in texts.
        group: A heading it stands under.
    """

    name: str
    title: str
    method: str = "phpq"
    settings: tuple[str, ...] = ()
    group: str = ""

    @property
    def figure_title(self) -> str:
        """As printed in figures, where a method has one mark only."""
        recipe = RECIPES[self.method]
        title = f"{self.title}, learned database" if recipe.learned_database else self.title
        return f"{title} {RECONSTRUCTED}" if recipe.reconstruction else title


def rows_of(target: str, base: RunConfig, methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """Return the rows that a table or figure needs.

    Args:
        target: One of `TARGETS` but "all".
        base: Settings before any method; variants change them.
        methods: Only these, for tables of methods; all of them if empty.
    """
    if target == "table1":
        return _method_rows(base, methods)
    if target in ("pn-curves", "efficiency"):  # more lines than these nobody can tell apart
        return tuple(row for row in _method_rows(base, methods) if row.name == row.method)
    if target == "variants":
        return _variant_rows(base)
    if target == "kappa":
        sizes = [kappa for kappa in KAPPAS if kappa <= base.quantizer.codebook_size]
        return tuple(
            Row(f"kappa-{k}", f"kappa = {k}", settings=(f"quantizer.kappa={k}",)) for k in sizes
        )
    if target == "alpha":
        return _alpha_rows(base)
    if target == "tau":
        return tuple(Row(f"tau-{t:g}", f"tau = {t:g}", settings=(f"loss.tau={t:g}",)) for t in TAUS)
    if target == "future":
        return _future_rows()
    if target == "top10":
        return tuple(row for row in _method_rows(base, ()) if row.name in ("phpq", "pqn"))
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
    rows = []
    for name, recipe in RECIPES.items():
        if methods and name not in methods:
            continue
        rows.append(Row(name, recipe.title, name, (), recipe.kind))
        if recipe.kind == "shallow":
            settings = ("method.features=imagenet",)
            # The backbone as it starts: a network that was not pretrained knows no ImageNet.
            start = "untrained" if base.model.weights == "none" else "ImageNet"
            title = f"{recipe.title}, {start} features"
            rows.append(Row(f"{name}-imagenet", title, name, settings, recipe.kind))
    return tuple(rows)


def _variant_rows(base: RunConfig) -> tuple[Row, ...]:
    levels, full = base.model.levels, base.quantizer.codebook_size
    ascending = sorted(base.model.rho)
    return (
        Row("phpq", "PHPQ"),
        # The 1000-way layer of ImageNet itself is no embedding; its input is meant.
        Row("last-fc", "last fc", settings=("model.levels=1", "model.rho=[1]")),
        Row("gap", "GAP", settings=(_rho(["1"] * levels),)),
        Row("gmp", "GMP", settings=(_rho(["inf"] * levels),)),
        Row("ascending-rho", "ascending rho", settings=(_rho([f"{r:g}" for r in ascending]),)),
        Row("full-attention", "full attention", settings=(f"quantizer.kappa={full}",)),
        Row("without-cl", "without CL", settings=("loss.gamma=0",)),
    )


def _alpha_rows(base: RunConfig) -> tuple[Row, ...]:
    partial = tuple(
        Row(
            f"alpha-{a:g}",
            f"alpha = {a:g}",
            settings=(f"quantizer.alpha={a:g}",),
            group="partial attention",
        )
        for a in ALPHAS
    )
    full = tuple(
        Row(
            f"alpha-{a:g}-full",
            f"alpha = {a:g}, full attention",
            settings=(f"quantizer.alpha={a:g}", f"quantizer.kappa={base.quantizer.codebook_size}"),
            group="full attention",
        )
        for a in ALPHAS
    )
    return (*partial, *full)


def _future_rows() -> tuple[Row, ...]:
    return (
        Row("phpq", "PHPQ"),
        Row("input-rho", "input-aware pooling", settings=("model.rho_mode=input",)),
        Row("anneal-kappa", "kappa annealed", settings=("quantizer.kappa_mode=anneal",)),
        Row("nucleus-kappa", "kappa by mass", settings=("quantizer.kappa_mode=nucleus",)),
    )


def _rho(values: Sequence[str]) -> str:
    return f"model.rho=[{', '.join(values)}]"
