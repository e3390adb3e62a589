"""From tables, code lengths and seeds to the cells that must be run, each once.

A cell is one resolved config. Cells that several tables need (PHPQ itself is in all of them) are
one cell; its key says what it is to a reader and, by a checksum of its settings, to the machine.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from phpq.config import RECIPES, RunConfig, override, parse, to_dict, with_bits
from phpq.errors import ConfigError
from phpq.recipes import classifier_config, resolve_config
from phpq.reproduce.rows import FIGURES, Row, check_methods, expand_targets, rows_of
from phpq.reproduce.subject import Subject

Kind = Literal["training", "features", "shallow", "backbone"]
SHARED = ("backbone", "features")  # kinds that other cells start from

# Where and how fast a cell is run, not what it is.
_MACHINE = ("workers", "checkpoint_seconds", "images_on_device", "accelerate")


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to run.

    Its kind is a training with its evaluation; features of both splits for shallow methods; a
    shallow method fitted to stored features; or a backbone that learned to classify, from which the
    trainings of several methods go on.
    """

    key: str  # name of its files
    label: str  # a few words for messages
    kind: Kind
    config: RunConfig
    features: str = ""  # key of the features or the backbone that it starts from
    # Whether codes and queries are stored: of methods with the first seed, not of variants.
    keep: bool = False

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.config.quantizer.bits

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.config.training.seed

    @property
    def cost(self) -> float:
        """Expected time, in trainings of a plain hashing method."""
        if self.kind == "shallow":
            return 0.01
        if self.kind == "backbone":
            return 10.0  # others wait for it
        if self.config.method.features == "imagenet":
            return 0.1
        return RECIPES[self.config.method.name].cost + 0.001 * self.bits


@dataclass(frozen=True, slots=True)
class GridPlan:
    """All that a command asks for."""

    subject: Subject
    targets: tuple[str, ...]  # tables and figures
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    rows: dict[str, tuple[Row, ...]]  # of each target
    cells: tuple[Cell, ...]  # everything to run, in the order of `_in_order`
    places: dict[tuple[str, str, int, int], str]  # (target, row, bits, seed) -> key of the cell


def make_plan(
    subject: Subject,
    target: str,
    *,
    bits: Sequence[int],
    seeds: Sequence[int],
    methods: Sequence[str] = (),
) -> GridPlan:
    """Resolve every cell of the tables and figures that are asked for.

    Figures are of the first seed; tables of methods are of these alone, or of all if none is named.
    """
    targets, methods = expand_targets(target), check_methods(methods)
    bits, seeds = _check_bits(bits), _check_seeds(seeds)
    cells: dict[str, Cell] = {}
    places: dict[tuple[str, str, int, int], str] = {}
    rows = {name: rows_of(name, subject.base, methods) for name in targets}
    planner = _Planner(subject)
    for name, row in [(target, row) for target in targets for row in rows[target]]:
        config = planner.row_config(row)
        for length in (max(bits),) if name == "top10" else bits:
            for seed in seeds[:1] if name in FIGURES else seeds:
                made = planner.cells(config, bits=length, seed=seed, keep=seed == seeds[0])
                cells |= {cell.key: cell for cell in made}
                places[name, row.name, length, seed] = made[-1].key
    return GridPlan(subject, targets, bits, seeds, rows, _in_order(cells.values()), places)


def same_settings(recorded: Mapping[str, Any], cell: Cell, weights: str) -> bool:
    """Tell whether a record's "config" is that of a cell, whatever machine it ran on.

    Weights are compared by content, as the record names them.
    """
    try:
        config = parse(recorded)
    except ConfigError:
        return False  # of another version, which had other settings
    return _settings(config, config.model.weights) == _settings(cell.config, weights)


def recorded_config(config: RunConfig, weights: str) -> dict[str, dict[str, Any]]:
    """Return every setting as plain data, with weights named by content and not by place."""
    data = to_dict(config)
    data["model"]["weights"] = weights
    return data


def _in_order(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Sort cells: what others start from, then one cell of each method in turn, the longest first.

    In turn, so that the first cell of a method has filled the compiler's cache when the next one
    starts: see `runner.Compiling`.
    """
    longest = sorted(cells, key=lambda cell: (-cell.cost, cell.key))
    turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def place(cell: Cell) -> tuple[bool, bool, int]:
        turn = next(turns[cell.config.method.name])
        return cell.kind not in SHARED, cell.kind == "shallow", turn

    return tuple(sorted(longest, key=place))


class _Planner:
    """Resolves rows to cells; what many cells share is resolved once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.defaults = _flat(to_dict(RunConfig()))
        self.plain = _flat(to_dict(self._method_config("phpq")))
        # One training serves all shallow methods and lengths; ImageNet features serve all seeds.
        self.features = {
            kind: override(subject.base, ["method.name=lsh", f"method.features={kind}"])
            for kind in ("finetuned", "imagenet")
        }
        once = replace(self.features["imagenet"].training, epochs=1)
        self.features["imagenet"] = replace(self.features["imagenet"], training=once)

    def row_config(self, row: Row) -> RunConfig:
        """Return the settings of a row before length and seed."""
        return override(self._method_config(row.method), row.settings)

    def cells(self, config: RunConfig, *, bits: int, seed: int, keep: bool) -> tuple[Cell, ...]:
        """Return what a row needs at a code length and seed: its own cell last."""
        config = _with_seed(with_bits(config, bits), seed)
        method = config.method.name
        if RECIPES[method].kind != "shallow":
            training = self._cell("training", method, config, keep=keep)
            backbone = self._backbone(config, seed)
            if backbone is None:
                return (training,)
            return backbone, replace(training, features=backbone.key)
        kind = config.method.features
        shared = _with_seed(self.features[kind], seed if kind == "finetuned" else 0)
        features = self._cell("features", f"features-{kind}", shared)
        name = method if kind == "finetuned" else f"{method}-{kind}"
        fitted = self._cell("shallow", name, config, keep=keep)
        return features, replace(fitted, features=features.key)

    def _backbone(self, config: RunConfig, seed: int) -> Cell | None:
        """Return the fine-tuning that comes before a method, the same for all that share it."""
        same = [
            f"method.classifier_share={config.method.classifier_share}",
            f"training.epochs={config.training.epochs}",
            f"training.batch_size={config.training.batch_size}",
        ]
        shared = override(self.subject.base, [*self.subject.settings, *same])
        first = classifier_config(_with_seed(shared, seed))
        return None if first is None else self._cell("backbone", "backbone", first)

    def _method_config(self, method: str) -> RunConfig:
        """Return what all methods share, then the method's recipe, then what the user set."""
        subject = self.subject
        return resolve_config(base=subject.base, method=method, settings=subject.settings)

    def _cell(self, kind: Kind, name: str, config: RunConfig, *, keep: bool = False) -> Cell:
        # Only what is not a default: a setting that comes later leaves the keys as they are.
        settings = _flat(_settings(config, self.subject.weights)).items()
        changed = {path: value for path, value in settings if value != self.defaults.get(path)}
        content = json.dumps([self.subject.fingerprint, kind, changed], sort_keys=True)
        digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
        length, seed = config.quantizer.bits, config.training.seed
        if kind in ("features", "backbone"):
            return Cell(f"{name}-seed{seed}-{digest}", f"{name}, seed {seed}", kind, config)
        own = self._variation(config)
        key = f"{name}{own}-{length}bits-seed{seed}-{digest}"
        label = f"{name}{own}, {length} bits, seed {seed}"
        return Cell(key, label, kind, config, keep=keep and not own)

    def _variation(self, config: RunConfig) -> str:
        """Say in a few letters what a variant of PHPQ changes: "-kappa25"."""
        if config.method.name != "phpq":
            return ""
        parts = []
        for path, value in _flat(to_dict(config)).items():
            name = path.rpartition(".")[2]
            if value != self.plain.get(path) and name not in ("num_codebooks", "seed"):
                shown = "_".join(map(str, value)) if isinstance(value, list) else f"{value}"
                parts.append(f"-{name}{shown}")
        return re.sub(r"[^A-Za-z0-9._-]+", "", "".join(parts).replace(".0", ""))


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, training=replace(config.training, seed=seed))


def _settings(config: RunConfig, weights: str) -> dict[str, dict[str, Any]]:
    data = recorded_config(config, weights)
    for name in _MACHINE:
        del data["training"][name]
    return data


def _flat(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{stage}.{name}": list(value) if isinstance(value, tuple) else value
        for stage, fields in data.items()
        for name, value in fields.items()
    }


def _check_bits(bits: Sequence[int]) -> tuple[int, ...]:
    wrong = [length for length in bits if length < 8 or length % 8]
    if wrong or not bits:
        raise ConfigError(
            f"Code lengths {list(bits)} are not allowed: each must be a multiple of 8, and at "
            "least one must be given, as in --bits 16,32,48,64."
        )
    return tuple(dict.fromkeys(bits))


def _check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if not seeds or min(seeds) < 0:
        raise ConfigError(
            f"Seeds {list(seeds)} are not allowed: give at least one, none below 0, "
            "as in --seeds 0,1,2."
        )
    return tuple(dict.fromkeys(seeds))
