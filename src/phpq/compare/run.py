"""One comparison from a source to its files: open, embed or learn, build every row, time, advise.

compare.html  compare.md  compare.json  compare-bytes.png  compare-speed.png
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phpq import api
from phpq._version import __version__
from phpq.codes import Codebooks
from phpq.compare.advice import advise
from phpq.compare.embed import Embedded, embed_with_models
from phpq.compare.measure import Budget, Timed, build_and_measure, time_rows
from phpq.compare.page import write_comparison
from phpq.compare.rivals import list_rivals
from phpq.data import Dataset
from phpq.errors import ConfigError, missing_extra
from phpq.evaluation.timing import available_cores
from phpq.files import make_folder
from phpq.index import CodeIndex
from phpq.machine import available_memory, code_commit, describe_machine, processor
from phpq.recipes import absolute_weights, default_weights, fit_patches, resolve_config

if TYPE_CHECKING:
    from phpq.training import Reporter

MINUTES = 20.0  # default limit of a comparison
_FLOATS = ".floats-"  # prefix of the temporary folder of floats
_NAMED = 20  # most unreadable images that are named one by one
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare, and how long it may take."""

    models: tuple[str, ...] = ()  # folders of runs, or hub ids; without any, heads are learned
    trunk: str | None = None  # one of `phpq.config.TRUNKS`
    settings: tuple[str, ...] = ()  # as "model.backbone=resnet50", of heads that are learned
    weights: str | None = None  # of the trunk: hub, none or a file
    rows: tuple[int, ...] = ()  # sizes of the gallery for weight and speed; none: as it is
    minutes: float = MINUTES
    hold_out: float | None = None  # share of the classes; None is a fifth, where there are enough
    home: Path | None = None  # where features are kept

    def __post_init__(self) -> None:
        if not 0 < self.minutes < np.inf:
            raise ConfigError(f"minutes={self.minutes:g} is not allowed: give more than 0.")
        if any(count < 1 for count in self.rows):
            raise ConfigError(f"rows={min(self.rows)} is not allowed: give 1 or more.")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise ConfigError(
                f"hold_out={self.hold_out:g} is not allowed: give a share of the classes, such as "
                "0.2, or 0 to hold out none."
            )
        if self.models and (self.trunk or self.settings or self.hold_out is not None):
            raise ConfigError(
                "A model brings its trunk, its settings and the classes that it held out: leave "
                "out --trunk, --backbone, --set, --seed and --hold-out-classes, or --model."
            )


def compare(
    source: api.Source,
    out: Path,
    options: Options | None = None,
    *,
    reporter: Reporter | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Measure every way to search a data set, write the files, and return what was measured."""
    options, started, commit = options or Options(), time.perf_counter(), code_commit()
    make_folder(out)  # a place that cannot be written to is told before anything is read
    dataset = api.as_dataset(source, home=options.home)
    for old in out.glob(f"{_FLOATS}*"):  # left behind by a comparison that was killed
        shutil.rmtree(old, ignore_errors=True)
    seconds = 60 * options.minutes
    if options.models:
        from phpq.model import load

        models = [load(name) for name in options.models]
        weights = None if options.weights is None else absolute_weights(options.weights)
        embedded = embed_with_models(dataset, models, weights=weights, seconds=seconds)
    else:
        embedded = _learned(dataset, out, options, reporter)
    with tempfile.TemporaryDirectory(dir=out, prefix=_FLOATS) as folder:
        content = compare_embedded(
            embedded,
            Path(folder),
            rows=options.rows,
            until=started + seconds,
            say=say,
        )
    content = {
        "phpq_version": __version__,
        "commit": commit,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "dataset": dataset.name,
        "minutes": options.minutes,
        "seconds": round(time.perf_counter() - started, 1),
        "machine": _machine(),
        **content,
    }
    write_comparison(out, content)
    return content


def compare_embedded(
    embedded: Embedded,
    folder: Path,
    *,
    rows: tuple[int, ...] = (),
    until: float,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Build and measure every row over embedded images; `folder` is for temporary floats.

    It should end at `until`, by `time.perf_counter`.
    """
    images = embedded.images
    _compile()
    say("choosing settings on held-out images")
    rivals, left_out, chosen = list_rivals(
        embedded.frozen, embedded.general, embedded.learned, images
    )
    built = []
    for number, rival in enumerate(rivals):
        say(f"{number + 1} of {len(rivals)}: {rival.name}")
        built.append(build_and_measure(rival, images, folder / f"{number}.float16"))
    measured = [one.row for one in built]
    sizes, room = sorted(set(rows)) or [len(images.gallery)], available_memory()
    timed: Timed = {}
    for number, size in enumerate(sizes):
        say(f"timing {size:,} rows")
        share = (until - time.perf_counter()) / (len(sizes) - number)
        budget = Budget(memory=room / 2, seconds=share, left=len(built))
        speeds = time_rows(built, images, size, folder, budget, timed)
        measured = [
            replace(row, speeds=(*row.speeds, speed))
            for row, speed in zip(measured, speeds, strict=True)
        ]
        for file in folder.glob("*.float16"):
            file.unlink()
    content = [row.to_dict() for row in measured]
    return {
        "images": {
            "gallery": len(images.gallery),
            "queries": len(images.queries),
            "classes": len(images.class_names),
            "unseen_classes": int(images.unseen.sum()),
            "seen_queries": len(images.seen_queries),
            "unseen_queries": len(images.unseen_queries),
        },
        "embedding": {"images_per_second": embedded.images_per_second, **embedded.facts},
        "chosen": asdict(chosen),
        "rows": content,
        "skipped": [asdict(image) for image in embedded.skipped],
        "left_out": [*left_out, *_skipped_lines(embedded)],
        "notes": [*embedded.notes, *chosen.notes],
        "advice": advise(content, room=room),
    }


def _skipped_lines(embedded: Embedded) -> list[str]:
    """Name the first images that could not be read, and count the others."""
    skipped = embedded.skipped
    lines = [f"image {image.id}: {image.reason.rstrip('.')}" for image in skipped[:_NAMED]]
    if len(skipped) > _NAMED:
        lines.append(f"{len(skipped) - _NAMED:,} more images that cannot be read")
    return lines


def _learned(dataset: Dataset, out: Path, options: Options, reporter: Reporter | None) -> Embedded:
    """Learn heads over a frozen trunk; for drawn birds the trunk first."""
    if find_spec("torch") is None:
        error = ModuleNotFoundError("torch", name="torch")
        advice = "Or compare with a model that was trained elsewhere: --model RUN"
        raise missing_extra(error, "Learning in a comparison", advice)
    from phpq.compare.learn import drawn_trunk, learn_and_embed

    settings, remarks = list(options.settings), list[str]()
    if options.weights is not None:
        settings.append(f"model.weights={absolute_weights(options.weights)}")
    if dataset.source.startswith("plumage:") and options.weights is None:
        config = drawn_trunk(dataset, out, settings=settings, reporter=reporter)
        remarks.append(
            "the frozen trunk was learned in this comparison, on as many drawn birds of other "
            "species"
        )
    else:
        config = resolve_config(
            trunk=options.trunk,
            weights=default_weights(dataset.source),
            settings=["training.trainable=head", *settings],
        )
        config = fit_patches(config)
    embedded = learn_and_embed(
        dataset,
        config,
        share=options.hold_out,
        seconds=60 * options.minutes,
        cache=api.feature_cache(config, home=options.home),
        reporter=reporter,
    )
    return replace(embedded, notes=[*remarks, *embedded.notes])


def _compile() -> None:
    """Compile the loops of the index before anything is timed."""
    words = np.eye(8, dtype=np.float32)[None].repeat(2, axis=0)
    codes = np.random.default_rng(0).integers(0, 8, (64, 2)).astype(np.uint8)
    CodeIndex(Codebooks(words), codes).build().search(np.ones((2, 16), np.float32), 2)


def _machine() -> dict[str, Any]:
    facts = describe_machine()
    return {
        "processor": processor(),
        "platform": platform.system() + " " + platform.release().split("-")[0],
        "cores": available_cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "packages": facts["packages"],
    }
