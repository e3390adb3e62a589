"""From a data set, tables, code lengths and seeds to the cells that must be run, each once.

A subject identifies its data set by content: the same images in another folder or on another
machine give the same keys, so that a grid can be continued there. A cell is one resolved config.
Tables share cells (PHPQ itself is in all of them). The key of a cell is readable, and ends with a
checksum of its settings.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from phpq import recipes
from phpq.config import RECIPES, RunConfig, override, parse, to_dict, with_bits
from phpq.data import Dataset, open_dataset
from phpq.errors import ConfigError
from phpq.reproduce.paper import FIGURES, UNSEEN, Row, check_methods, expand_targets, rows_of

# Small enough for every method to learn two epochs on two cores in three minutes.
SMALL_PLUMAGE = "plumage:species=12,images=10,test=4,size=32"

_FACTS = ("name", "fingerprint", "classes", "gallery", "queries", "weights")
_DRAWN = "plumage:"  # prefix of the sources of drawn birds
_OF_DATASET = {"dogs120": ("loss.tau=0.25",)}  # as the paper sets it

# A training with its evaluation; features of both splits for shallow methods; a shallow method
# fitted to stored features; a backbone fine-tuned as a classifier, from which trainings start.
Kind = Literal["training", "features", "shallow", "backbone"]
SHARED = ("backbone", "features")  # kinds that other cells start from

# Settings that do not change the result of a cell.
_MACHINE = ("workers", "checkpoint_seconds", "images_on_device", "accelerate", "onnx")


@dataclass(frozen=True, slots=True)
class Subject:
    """A data set and the settings that all methods share on it."""

    name: str  # of the data set, as "cub200"
    source: str  # what `open_dataset` opens
    fingerprint: str  # of the ids and labels of both splits
    classes: int
    gallery: int  # training images
    queries: int  # test images
    weights: str  # that backbones start from: "none", "hub", or name and checksum of a file
    base: RunConfig  # before any method, code length or seed
    settings: tuple[str, ...]  # of the user; they override a method's recipe

    @property
    def drawn(self) -> str:
        """The source of drawn images; empty for photographs."""
        return self.source if self.source.startswith(_DRAWN) else ""

    def facts(self) -> dict[str, Any]:
        """Return the facts about the data set that a result records, as plain data."""
        return {name: getattr(self, name) for name in (*_FACTS, "drawn")}


@dataclass(frozen=True, slots=True)
class Cell:
    """One training, or another thing to run."""

    key: str  # name of its files
    label: str  # for messages
    kind: Kind
    config: RunConfig
    start: str = ""  # key of the cell whose features or backbone it starts from
    keep: bool = False  # store codes and queries: of methods with the first seed, not of variants

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
        """Expected time, in trainings of a plain hashing method; largest if others wait for it."""
        if self.kind in ("shallow", "backbone"):
            return 0.01 if self.kind == "shallow" else 10.0
        if self.config.method.features == "imagenet":
            return 0.1
        return RECIPES[self.config.method.name].cost + 0.001 * self.bits


@dataclass(frozen=True, slots=True)
class GridPlan:
    """All cells of a command, and where their results belong."""

    subject: Subject
    targets: tuple[str, ...]  # tables and figures
    bits: tuple[int, ...]
    seeds: tuple[int, ...]
    rows: dict[str, tuple[Row, ...]]  # of each target
    cells: tuple[Cell, ...]  # everything to run, in the order of `_in_order`
    cell_keys: dict[tuple[str, str, int, int], str]  # by (target, row, bits, seed)
    # (target, recipe) -> the row of plain PHPQ, which variants are compared with.
    bases: dict[tuple[str, str], str]


def open_subject(
    spec: str | Path,
    *,
    weights: str | None = None,
    settings: Sequence[str] = (),
    epochs: int | None = None,
    home: Path | None = None,
) -> tuple[Subject, Dataset]:
    """Open a data set and resolve the settings that all methods share on it.

    Arguments are those of `command.Options`; "plumage" is `SMALL_PLUMAGE`.
    """
    dataset = open_dataset(SMALL_PLUMAGE if spec == "plumage" else spec, home=home)
    facts = {
        "name": dataset.name,
        "fingerprint": _fingerprint(dataset),
        "classes": len(dataset.class_names),
        "gallery": len(dataset.train),
        "queries": len(dataset.test),
        "weights": recipes.absolute_weights(weights or recipes.default_weights(dataset.source)),
        "drawn": dataset.source if dataset.source.startswith(_DRAWN) else "",
    }
    subject = recall_subject(facts, settings=settings, epochs=epochs)
    start = identify_weights(subject.base.model.weights)
    return replace(subject, source=dataset.source, weights=start), dataset


def recall_subject(
    facts: Mapping[str, Any], *, settings: Sequence[str] = (), epochs: int | None = None
) -> Subject:
    """Return a subject from the facts that an earlier command recorded, without its images."""
    own = (*settings, *(() if epochs is None else (f"training.epochs={epochs}",)))
    drawn: tuple[str, ...] = ()
    if facts["drawn"]:
        side = re.search(r"size=(\d+)", facts["drawn"])
        drawn = recipes.drawn_settings(int(side[1]) if side else 96)
    shared = (*_OF_DATASET.get(facts["name"], ()), *drawn, *own)
    # The file of weights may not be here, but rows are named by it.
    base = recipes.resolve_config(weights=facts["weights"], settings=shared)
    known = {name: facts[name] for name in _FACTS}
    return Subject(**known, source=facts["drawn"], base=base, settings=own)


def identify_weights(weights: str) -> str:
    """Return the name and checksum of a file of weights; "none" and "hub" stay as they are."""
    if weights in ("none", "hub"):
        return weights
    path = Path(weights)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"Cannot read the weights {weights!r}: {error.strerror}. "
            "Give a file of weights, 'hub' or 'none' (--weights)."
        ) from error
    return f"{path.name}:{digest[:12]}"


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for split in (dataset.train, dataset.test):
        digest.update(json.dumps([split.ids, split.labels.tolist()]).encode())
    if dataset.source.startswith(_DRAWN):  # ids do not depend on how it is drawn
        digest.update(dataset.source.encode())
    return digest.hexdigest()


def make_plan(
    subject: Subject,
    target: str,
    *,
    bits: Sequence[int],
    seeds: Sequence[int],
    methods: Sequence[str] = (),
    recipe: str = "ours",
) -> GridPlan:
    """Resolve every cell of the requested tables and figures.

    Variants of PHPQ are learned by the recipe, or by "both". Figures show the first seed only.
    `methods` restricts tables of methods; empty is all.
    """
    targets, methods = expand_targets(target), check_methods(methods)
    bits, seeds = tuple(dict.fromkeys(bits)), tuple(dict.fromkeys(seeds))
    if not bits or any(length < 8 or length % 8 for length in bits):
        raise ConfigError(
            f"Code lengths {list(bits)} are not allowed: each must be a multiple of 8, and at "
            "least one must be given, as in --bits 16,32,48,64."
        )
    if not seeds or min(seeds) < 0:
        raise ConfigError(
            f"Seeds {list(seeds)} are not allowed: give at least one, none below 0, "
            "as in --seeds 0,1,2."
        )
    cells, keys = dict[str, Cell](), dict[tuple[str, str, int, int], str]()
    rows = {name: rows_of(name, subject.base, methods, recipe=recipe) for name in targets}
    planner, bases = _Planner(subject), dict[tuple[str, str], str]()
    for name, row in [(target, row) for target in targets for row in rows[target]]:
        config = planner.row_config(row)
        if config == planner.plain_config("phpq", row.recipe):
            bases.setdefault((name, row.recipe), row.name)
        for length in (max(bits),) if name in ("top10", UNSEEN) else bits:
            # Float search has no code length: one training serves all.
            trained = max(bits) if row.searched == "float" else length
            for seed in seeds[:1] if name in FIGURES else seeds:
                made = planner.cells(row, config, bits=trained, seed=seed, keep=seed == seeds[0])
                cells |= {cell.key: cell for cell in made}
                keys[name, row.name, length, seed] = made[-1].key
    return GridPlan(subject, targets, bits, seeds, rows, _in_order(cells.values()), keys, bases)


def same_settings(recorded: Mapping[str, Any], cell: Cell, weights: str) -> bool:
    """Tell whether a record's "config" is that of a cell, but for settings of the machine.

    Weights are compared by content, as the record names them.
    """
    try:
        config = parse(recorded)
    except ConfigError:
        return False  # of another version, with other settings
    return _settings(config, config.model.weights) == _settings(cell.config, weights)


def recorded_config(config: RunConfig, weights: str) -> dict[str, dict[str, Any]]:
    """Return every setting as plain data, with weights named by content, not by path."""
    data = to_dict(config)
    data["model"]["weights"] = weights
    return data


def _in_order(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Sort cells: those that others start from, then methods in turns, the longest first.

    In turns, so that the first cell of a method has filled the compiler's cache when the next one
    starts: see `runner.Run.compiles`.
    """
    longest = sorted(cells, key=lambda cell: (-cell.cost, cell.key))
    turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def place(cell: Cell) -> tuple[bool, bool, int]:
        turn = next(turns[cell.config.method.name])
        return cell.kind not in SHARED, cell.kind == "shallow", turn

    return tuple(sorted(longest, key=place))


class _Planner:
    """Resolves rows to cells."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.defaults = _flat(to_dict(RunConfig()))
        self.plain_config = cache(self._plain_config)
        # One fine-tuning serves all shallow methods and lengths; ImageNet features all seeds too.
        shallow = override(subject.base, ["method.name=lsh", "method.features=finetuned"])
        once = ["method.features=imagenet", "training.epochs=1"]
        self.features = {"finetuned": shallow, "imagenet": override(shallow, once)}

    def row_config(self, row: Row) -> RunConfig:
        """Return the base settings, overridden by the recipe, the user and the row, in turn."""
        base, settings = self.subject.base, self.subject.settings
        config = recipes.resolve_config(
            base=base, method=row.method, recipe=row.recipe, settings=settings
        )
        return override(config, row.settings)

    def _plain_config(self, method: str, recipe: str) -> RunConfig:
        return self.row_config(Row(method, "", method=method, recipe=recipe))

    def cells(
        self, row: Row, config: RunConfig, *, bits: int, seed: int, keep: bool
    ) -> tuple[Cell, ...]:
        """Return the cells of a row at a code length and seed: its own cell last."""
        changes = self._variation(config, row.recipe)
        keep = keep and not changes and row.recipe == "ours"
        config = _with_seed(with_bits(config, bits), seed)
        name, kind = config.method.name, config.method.features
        if RECIPES[name].kind != "shallow":
            name += ("" if row.recipe == "ours" else f"-{row.recipe}") + changes
            own, start = self._cell("training", name, config, keep=keep), self._backbone(config)
        else:
            source = "imagenet" if kind == "imagenet" else "finetuned"
            features = replace(self.features[source], data=config.data)
            shared = _with_seed(features, 0 if kind == "imagenet" else seed)
            start = self._cell("features", f"features-{source}", shared)
            name = name if kind == "finetuned" else f"{name}-{kind}"
            own = self._cell("shallow", name, config, keep=keep)
        return (own,) if start is None else (start, replace(own, start=start.key))

    def _backbone(self, config: RunConfig) -> Cell | None:
        """Return the fine-tuning before a method, which methods share."""
        training, subject = config.training, self.subject
        same = [f"training.{name}={getattr(training, name)}" for name in ("epochs", "batch_size")]
        same.append(f"method.classifier_share={config.method.classifier_share}")
        shared = override(subject.base, [*subject.settings, *same])
        shared = replace(_with_seed(shared, training.seed), data=config.data)
        first = recipes.classifier_config(shared)
        return None if first is None else self._cell("backbone", "backbone", first)

    def _cell(self, kind: Kind, name: str, config: RunConfig, *, keep: bool = False) -> Cell:
        # Only changed settings, so that a new one with a default keeps the keys.
        settings = _flat(_settings(config, self.subject.weights)).items()
        changed = {path: value for path, value in settings if value != self.defaults.get(path)}
        content = json.dumps([self.subject.fingerprint, kind, changed], sort_keys=True)
        digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
        parts, seed = [name], config.training.seed
        if kind not in SHARED:
            parts = [name, f"{config.quantizer.bits} bits"]
        key = "-".join([*parts, f"seed{seed}", digest]).replace(" ", "")
        label = ", ".join([*parts, f"seed {seed}"])
        return Cell(key, label, kind, config, keep=keep)

    def _variation(self, config: RunConfig, recipe: str) -> str:
        """Abbreviate what a variant of PHPQ changes, as "-kappa25"; of other methods, options."""
        plain = self.plain_config(config.method.name, recipe)
        before, now = plain.method.options, config.method.options
        parts = [f"-{name}{value}" for name, value in now.items() if value != before.get(name)]
        if config.method.name == "phpq":
            usual = _flat(to_dict(plain))
            for path, value in _flat(to_dict(config)).items():
                if value != usual.get(path) and path != "method.options":
                    several = isinstance(value, list | tuple)
                    shown = "_".join(map(str, value)) if several else value
                    parts.append(f"-{path.rpartition('.')[2]}{shown}")
        return re.sub(r"[^A-Za-z0-9._-]+", "", "".join(parts).replace(".0", ""))


def _with_seed(config: RunConfig, seed: int) -> RunConfig:
    return replace(config, training=replace(config.training, seed=seed))


def _settings(config: RunConfig, weights: str) -> dict[str, dict[str, Any]]:
    data = recorded_config(config, weights)
    for name in _MACHINE:
        del data["training"][name]
    return data


def _flat(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{stage}.{name}": value for stage in data for name, value in data[stage].items()}
