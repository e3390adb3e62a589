"""The paper's evaluation as data: the rows of each table and figure, and the numbers as printed.

A row is a method, or a variant of PHPQ given by texts like "quantizer.kappa=25". Printed numbers
are MAP in per cent at 16, 32, 48 and 64 bits, by the names of rows. Where the paper contradicts
itself, both the printed and the corrected value are kept. No torch, no data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from phpq.config import READINGS, RECIPES, RunConfig
from phpq.errors import ConfigError, nearest_hint, unknown_name

TITLES = {
    "headline": "The default recipe",
    "table1": "All methods",
    "variants": "Variants of PHPQ",
    "kappa": "Codewords that take part: kappa",
    "alpha": "Sharpness of the attention: alpha",
    "tau": "Temperature of the classifier: tau",
    "future": "Future work of the paper, tried",
    "pn-curves": "Precision of the first N hits",
    "efficiency": "Time against MAP",
    "top10": "The first ten hits of PHPQ and of PQN",
    "unseen": "Kinds that training never saw",
}
FIGURES = ("pn-curves", "efficiency", "top10")
UNSEEN = "unseen"  # not of the paper, and so not of "all"
TABLES = tuple(target for target in TITLES if target not in (*FIGURES, UNSEEN))
TARGETS = (*TABLES, *FIGURES, "all", UNSEEN)
# Half of the classes are learned, with all their images: the usual protocol of metric learning.
UNSEEN_SETTINGS = ("data.holdout_classes=0.5", "data.learned_images=all")
UNSEEN_METHODS = ("phpq", "pqn", "pq", "opq", "itq", "csq", "orthohash", "hashnet", "adsh")

# Titles of `READINGS` on pages.
RECIPE_TITLES = {
    "ours": "our recipe",
    "large": "our recipe, larger views",
    "paper": "paper as printed",
}
# Rows of Table 1 besides the methods; shown if named, or if no method is named.
EXTRA_ROWS = ("phpq@paper", "phpq-without-z", "phpq-float", "pqn-classified")
NEVER = 1_000_000  # an epoch that no training reaches

RECONSTRUCTED = "\N{DAGGER}"  # beside every number of a method that is our reconstruction
KAPPAS = (1, 5, 25, 125, 256)
ALPHAS = (1, 2, 4, 8, 16, 32)
TAUS = (0.25, 0.5, 0.75, 1)

BITS = (16, 32, 48, 64)
DATASETS = ("cub200", "dogs120")  # those the paper knows
_DASH = math.nan  # in place of a number
# How many times faster than float search 1,000 queries are, by data set.
SPEED_UP = {"cub200": 7.35, "dogs120": 9.41}
_SOURCES = {
    "headline": "Table 1, the row of PHPQ",
    "table1": "Table 1, MAP of all methods",
    "variants": "Table 2, MAP of PHPQ variants",
    "kappa": "Table 3, threshold kappa of partial attention",
    "alpha": "appendix, table of the scaling factor alpha",
    "tau": "appendix, table of the temperature tau",
}
_SLIP = (
    "The appendix prints the CUB-200-2011 cells of this table exactly 3.00 above those of the "
    "tables in the body (79.03 for 76.03 and so on). The body's own differences fit the lower "
    "ones, so 3.00 is taken off every printed cell here."
)
_CORRECTIONS = {("cub200", "alpha"): (-3.0, _SLIP), ("cub200", "tau"): (-3.0, _SLIP)}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table."""

    name: str  # unique in its table, and that of the paper's row where it has one
    title: str  # as printed
    settings: tuple[str, ...] = ()  # what it changes besides the method's recipe, in texts
    method: str = "phpq"  # one of `RECIPES`
    group: str = ""  # a heading it stands under
    recipe: str = "ours"  # one of `READINGS`
    searched: Literal["codes", "float"] = "codes"  # what its numbers measure

    @property
    def printed(self) -> str:
        """Name of the paper's row that it is compared with."""
        return printed_name(self.name)

    @property
    def figure_title(self) -> str:
        """The title in figures, where a method has one curve only."""
        recipe = RECIPES[self.method]
        title = f"{self.title}, learned database" if recipe.learned_database else self.title
        return f"{title} {RECONSTRUCTED}" if recipe.reconstruction else title


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says about two rows of a table: that one is better."""

    text: str
    better: str
    worse: str


_GAINS = (("over the last layer alone", "last-fc"), ("over GAP", "gap"), ("over GMP", "gmp"))
CLAIMS = {
    "variants": (
        *(Claim(f"the pyramid with hybrid pooling helps ({o})", "phpq", row) for o, row in _GAINS),
        Claim("a falling order of rho is better than a rising one", "phpq", "ascending-rho"),
        Claim("partial attention helps", "phpq", "full-attention"),
        Claim("the contrastive term helps", "phpq", "without-cl"),
    ),
    "kappa": tuple(
        Claim(f"kappa = 5 is better than {other}", "kappa-5", f"kappa-{other}")
        for other in (1, 25, 256)
    ),
    "alpha": (
        *(
            Claim(f"partial attention helps at alpha = {a}", f"alpha-{a}", f"alpha-{a}-full")
            for a in ALPHAS
        ),
        Claim("alpha = 16 is better than 4", "alpha-16", "alpha-4"),
    ),
    "tau": (
        Claim("tau = 0.5 is better than 0.25", "tau-0.5", "tau-0.25"),
        Claim("tau = 0.5 is better than 1", "tau-0.5", "tau-1"),
    ),
}


def printed_name(row: str) -> str:
    """Return the name of a row whatever recipe it is learned by."""
    return row.partition("@")[0]


def rows_of(
    target: str, base: RunConfig, methods: Sequence[str] = (), *, recipe: str = "ours"
) -> tuple[Row, ...]:
    """Return the rows of a table or figure, one of `TARGETS` but "all".

    Variants change `base`, the settings before any method, and are learned by one of `READINGS` or
    by "both". `methods` restricts tables of methods; empty is all.
    """
    recipes = check_recipe(recipe)
    if target == "table1":
        return _table1_rows(base, methods)
    if target in ("pn-curves", "efficiency"):  # one curve per method: more would be unreadable
        return tuple(row for row in _method_rows(base, methods) if row.name == row.method)
    if target == "top10":
        return tuple(row for row in _method_rows(base, ()) if row.name in ("phpq", "pqn"))
    if target == UNSEEN:
        # Of a frozen backbone both kinds of features are the same.
        kinds = ("imagenet",) if base.training.trainable == "head" else ("finetuned", "imagenet")
        rows = _method_rows(base, methods or UNSEEN_METHODS, shallow=kinds)
        return tuple(replace(row, settings=(*row.settings, *UNSEEN_SETTINGS)) for row in rows)
    if target in TABLES:
        variants = _phpq_rows(base)[target]
        return tuple(_read(row, recipe) for recipe in recipes for row in variants)
    raise unknown_name("table or figure", target, TARGETS)


def expand_targets(target: str) -> tuple[str, ...]:
    """Return the tables and figures of a target: all for "all"."""
    if target not in TARGETS:
        raise ConfigError(f"Unknown table or figure {target!r}. {nearest_hint(target, TARGETS)}")
    return (*TABLES, *FIGURES) if target == "all" else (target,)


def check_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that are no method and no row of Table 1; repeated ones are taken once."""
    known = (*RECIPES, *EXTRA_ROWS)
    for method in methods:
        if method not in known:
            raise ConfigError(f"Unknown method {method!r}. {nearest_hint(method, known)}")
    return tuple(dict.fromkeys(methods))


def check_recipe(recipe: str) -> tuple[str, ...]:
    """Return the recipes of a name: one of `READINGS`, or both for "both"."""
    if recipe not in (*READINGS, "both"):
        hint = nearest_hint(recipe, (*READINGS, "both"))
        raise ConfigError(f"Unknown recipe {recipe!r}. {hint}")
    return ("ours", "paper") if recipe == "both" else (recipe,)


def _read(row: Row, recipe: str) -> Row:
    """Return a row learned by a recipe, whose name is appended unless it is ours."""
    return row if recipe == "ours" else replace(row, name=f"{row.name}@{recipe}", recipe=recipe)


def _table1_rows(base: RunConfig, methods: Sequence[str]) -> tuple[Row, ...]:
    """Return the methods, and PHPQ and PQN with other settings beside them."""
    kind = RECIPES["phpq"].kind
    without = ("loss.embedding_weight=0",)
    classified = ("method.options.classification=1",)
    before = {
        "phpq": (
            _read(Row("phpq", "PHPQ, paper as printed", group=kind), "paper"),
            Row("phpq-without-z", "PHPQ without the classification of z", without, group=kind),
            Row(
                "phpq-float",
                "PHPQ's network trained without codebooks, float search",
                (f"training.codebook_epoch={NEVER}", *without),
                group=kind,
                searched="float",
            ),
        )
    }
    after = {"pqn": (Row("pqn-classified", "PQN with classification", classified, "pqn", "deep"),)}
    rows: list[Row] = []
    for row in _method_rows(base, ()):
        rows += (*before.get(row.name, ()), row, *after.get(row.name, ()))
    asked = set(methods) or {*RECIPES, *EXTRA_ROWS}
    return tuple(r for r in rows if (r.name if r.name in EXTRA_ROWS else r.method) in asked)


def _method_rows(
    base: RunConfig,
    methods: Sequence[str],
    shallow: Sequence[str] = ("discriminant", "finetuned", "imagenet"),
) -> tuple[Row, ...]:
    """Return a row for each method; shallow ones have one for each kind of features.

    The first kind has the method's own name. Discriminant features are those of the recipe.
    """
    # A backbone that was not pretrained has no ImageNet features.
    start = "untrained" if base.model.weights == "none" else "ImageNet"
    titles = {"finetuned": "pooled features", "imagenet": f"{start} features"}
    rows = []
    for name in [name for name in RECIPES if not methods or name in methods]:
        recipe = RECIPES[name]
        kinds = shallow if recipe.kind == "shallow" else (None,)
        for number, kind in enumerate(kinds):
            settings = () if kind in (None, "discriminant") else (f"method.features={kind}",)
            row = Row(name, recipe.title, settings, name, recipe.kind)
            if number and kind is not None:
                row = replace(row, name=f"{name}-{kind}", title=f"{recipe.title}, {titles[kind]}")
            rows.append(row)
    return tuple(rows)


def _phpq_rows(base: RunConfig) -> dict[str, list[Row]]:
    """Return the rows of the tables that vary PHPQ."""
    levels, words = base.model.levels, base.quantizer.codebook_size
    full = f"quantizer.kappa={words}"
    ascending = ", ".join(f"{rho:g}" for rho in sorted(base.model.rho))
    alphas = [(f"alpha-{a}", f"alpha = {a}", f"quantizer.alpha={a}") for a in ALPHAS]
    return {
        "headline": [Row("phpq", "PHPQ")],
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


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table of the paper for one data set."""

    source: str  # where it stands
    rows: dict[str, tuple[float, ...]]  # by name; NaN where the paper has a dash
    offset: float = 0.0  # to be added to every printed cell
    note: str = ""  # why, and what else a reader must know

    def printed(self, row: str, bits: int) -> float | None:
        """Return a cell as it is printed; None where there is none."""
        values = self.rows.get(row)
        value = values[BITS.index(bits)] if values and bits in BITS else math.nan
        return None if math.isnan(value) else value

    def meant(self, row: str, bits: int) -> float | None:
        """Return a cell with the paper's own mistake corrected."""
        value = self.printed(row, bits)
        return None if value is None else round(value + self.offset, 2)


# Target -> row -> what is printed for each of `DATASETS`.
_ROWS: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "table1": {
        "lsh": ((8.67, 9.14, 18.57, 19.31), (8.01, 19.54, 30.99, 41.62)),
        "sh": ((26.39, 43.90, 51.39, 55.12), (25.26, 43.69, 49.69, 55.66)),
        "pq": ((35.01, 41.95, 52.16, 54.94), (43.64, 44.42, 47.32, 48.45)),
        "itq": ((25.19, 45.96, 53.76, 58.97), (31.70, 46.59, 54.37, 57.40)),
        "opq": ((34.89, 43.68, 52.90, 55.09), (39.97, 52.65, 51.75, 52.07)),
        "dpsh": ((34.97, 43.01, 49.08, 52.25), (42.70, 55.28, 60.80, 62.31)),
        "dth": ((46.41, 54.54, 57.71, 58.81), (54.35, 62.58, 63.62, 65.73)),
        "dsh": ((31.56, 49.30, 54.08, 59.67), (47.28, 55.87, 61.28, 63.19)),
        "hashnet": ((37.91, 46.28, 48.53, 51.23), (47.45, 55.21, 55.75, 59.34)),
        "adsh": ((42.93, 57.65, 67.19, 72.28), (47.91, 61.05, 66.38, 68.60)),
        "pqn": ((59.07, 65.89, 70.39, 72.91), (65.94, 67.04, 70.76, 70.95)),
        "fph": ((51.69, 58.32, 61.24, 62.33), (63.40, 69.09, 70.60, 71.30)),
        "srlh": ((69.08, 69.22, 70.87, 70.10), (66.68, 74.02, 75.16, 75.38)),
        "exchnet": ((_DASH, 67.74, 71.05, _DASH), (_DASH, _DASH, _DASH, _DASH)),
        "cfh": ((72.08, 73.41, 73.21, 72.71), (79.33, 79.96, 79.47, 79.34)),
        "phpq": ((76.03, 76.24, 76.25, 76.21), (81.01, 81.27, 81.44, 81.29)),
    },
    "variants": {
        "phpq": ((76.03, 76.24, 76.25, 76.21), (81.01, 81.27, 81.44, 81.29)),
        "last-fc": ((74.13, 74.54, 74.61, 74.72), (79.83, 80.14, 80.32, 80.26)),
        "gap": ((75.35, 75.65, 75.80, 75.64), (80.81, 80.94, 80.83, 80.52)),
        "gmp": ((73.70, 74.14, 74.30, 74.12), (79.57, 79.93, 80.06, 79.80)),
        "ascending-rho": ((75.15, 75.52, 75.54, 75.36), (80.11, 80.53, 80.70, 80.40)),
        "full-attention": ((75.03, 75.74, 75.99, 75.98), (80.38, 80.42, 80.67, 80.45)),
        "without-cl": ((73.30, 74.25, 74.69, 74.48), (78.07, 77.98, 77.88, 77.56)),
    },
    "kappa": {
        "kappa-1": ((67.41, 73.47, 74.51, 75.03), (50.56, 74.76, 77.91, 79.55)),
        "kappa-5": ((76.03, 76.24, 76.25, 76.21), (81.01, 81.27, 81.44, 81.29)),
        "kappa-25": ((75.87, 75.98, 76.15, 76.12), (80.79, 80.97, 81.23, 81.05)),
        "kappa-125": ((75.14, 75.82, 76.03, 76.03), (80.53, 80.54, 80.87, 80.59)),
        "kappa-256": ((75.03, 75.74, 75.99, 75.98), (80.38, 80.42, 80.67, 80.45)),
    },
    "alpha": {
        "alpha-1": ((71.86, 75.80, 77.02, 77.42), (64.95, 72.73, 75.96, 77.37)),
        "alpha-2": ((73.83, 77.17, 77.96, 78.09), (69.56, 74.93, 76.59, 77.74)),
        "alpha-4": ((77.86, 78.36, 78.58, 78.55), (80.25, 80.99, 81.00, 80.54)),
        "alpha-8": ((78.72, 79.19, 79.18, 78.93), (80.43, 81.19, 81.46, 80.99)),
        "alpha-16": ((79.03, 79.24, 79.25, 79.21), (81.01, 81.27, 81.44, 81.29)),
        "alpha-32": ((78.84, 78.97, 79.04, 79.01), (80.73, 81.15, 81.22, 81.13)),
    },
    "tau": {
        "tau-0.25": ((78.51, 78.94, 79.02, 78.61), (81.01, 81.27, 81.44, 81.29)),
        "tau-0.5": ((79.03, 79.24, 79.25, 79.21), (80.42, 80.73, 80.96, 80.96)),
        "tau-0.75": ((77.75, 79.11, 79.09, 79.25), (80.32, 80.68, 80.84, 80.81)),
        "tau-1": ((78.02, 78.89, 78.83, 78.95), (80.12, 80.75, 80.82, 80.74)),
    },
}
_ROWS["headline"] = {"phpq": _ROWS["table1"]["phpq"]}
# Data set -> target -> table.
PAPER = {
    dataset: {
        target: PaperTable(
            _SOURCES[target],
            {name: cells[place] for name, cells in rows.items()},
            *_CORRECTIONS.get((dataset, target), ()),
        )
        for target, rows in _ROWS.items()
    }
    for place, dataset in enumerate(DATASETS)
}
