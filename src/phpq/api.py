"""The Python front door: a data set in, a trained `Model` out; a model in, an `Evaluation` out.

    model = phpq.train("birds/", bits=32)
    evaluation = phpq.evaluate("runs/birds-32")

torch is imported inside the functions: a data set that is not there is reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phpq.config import DataConfig, RunConfig, to_dict, with_bits
from phpq.data import Dataset, data_home, learned_part, open_dataset
from phpq.errors import ConfigError, DataError, PhpqError, missing_extra
from phpq.evaluation.coded import FOLDER
from phpq.evaluation.embedding import Embed, Progress, find_bad_images
from phpq.evaluation.history import epoch_scores, read_rows
from phpq.evaluation.run import METRICS, Evaluation, evaluate_model
from phpq.files import read_json
from phpq.recipes import absolute_weights, default_weights, fit_patches, resolve_config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from phpq.model import Model, TorchModel
    from phpq.training import Reporter
    from phpq.training.distributed import Group

Source = str | Path | Dataset


def train(  # noqa: PLR0913  every way to say what is to be learned, by name
    source: Source | None = None,
    *,
    method: str | None = None,
    trunk: str | None = None,
    bits: int | None = None,
    out: str | Path | None = None,
    config: RunConfig | None = None,
    device: str = "auto",
    resume: bool = False,
    reporter: Reporter | None = None,
    group: Group | None = None,
) -> TorchModel:
    """Train a model on a data set and write its run folder.

    Args:
        source: What `open_dataset` takes: a folder of class folders, a CSV or Parquet table, a
            benchmark, "plumage"; or a `Dataset`. May be left out to resume.
        method: One of `phpq.config.RECIPES`, with its settings: "phpq" by default, or one that it
            is compared with, as "itq" or "hashnet". Not together with `config`.
        trunk: One of `phpq.config.TRUNKS`, a pretrained network with its settings, as
            "dinov2-small". Not together with `config`.
        bits: Length of a code; None takes the config's, 32 by default.
        out: The run folder, new or empty; by default `runs/<name of the data set>-<bits>`.
        config: Every setting. Without one: those of the method, and the hub's pretrained weights
            for the backbone, unless the data set is drawn plumage, which is learned from nothing.
        device: "auto" takes CUDA where there is one.
        resume: Continue the interrupted run in `out`, with its own settings.
        reporter: Sees the progress; silent by default.
        group: The processes that learn together, see `phpq.training.distributed`; each calls this.

    Returns:
        The trained model; `out` holds it too, for `phpq.load`.
    """
    if method is not None and (config is not None or resume):
        raise ConfigError(
            f"method={method!r} and a config contradict each other. Set method.name in the config."
        )
    if trunk is not None and (config is not None or resume):
        raise ConfigError(
            f"trunk={trunk!r} and a config contradict each other. Make the config by "
            f"phpq.recipes.resolve_config(trunk={trunk!r})."
        )
    run = open_run(
        source, config=config, method=method, trunk=trunk, bits=bits, out=out, resume=resume
    )
    try:
        from phpq.training import train_run
    except ModuleNotFoundError as error:
        raise missing_extra(error, "Training") from error
    return train_run(
        *run,
        device=device,
        resume=resume,
        reporter=reporter,
        cache=feature_cache(run.config),
        group=group,
    )


def evaluate(
    model: Model | str | Path,
    source: Source | None = None,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    runtime: str = "auto",
    own_codebooks: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure the retrieval of a model and write tables, curves, pictures and its gallery.

    The evaluation of a run makes the run a gallery: `phpq.Gallery.open(run)`.

    Args:
        model: A run folder, or a model.
        source: A data set, as for `train`; by default the one that the model learned on.
        out: Folder for `report.html`, `metrics.json`, the pictures and the coded gallery; by
            default `evaluation` in the run folder. For a model without a folder nothing is written
            unless `out` says where.
        device: Where a run's model is put; a model that is given stays where it is.
        runtime: What computes, as for `phpq.load`.
        own_codebooks: Also search by codebooks that the gallery owns, without and with its labels;
            embeds every image twice more.
        progress: Called with (what is done, images done, images in all).
    """
    from phpq.model import Model, load

    run = None if isinstance(model, Model) else Path(model)
    loaded = model if isinstance(model, Model) else load(model, device=device, runtime=runtime)
    dataset = open_origin(loaded.card.dataset) if source is None else as_dataset(source)
    local = run is not None and run.is_dir()  # a hub id is no folder to write to
    folder = Path(out) if out else run / FOLDER if run is not None and local else None
    epochs = epoch_scores(read_rows(run)) if run is not None and local else None
    evaluation = evaluate_model(
        loaded,
        dataset,
        out=folder,
        epochs=epochs,
        frozen=_frozen_features(loaded),
        own_codebooks=own_codebooks,
        progress=progress,
    )
    if run is not None and folder == run / FOLDER and find_spec("lance") is not None:
        from phpq.gallery.of_run import build_gallery

        build_gallery(run, loaded)  # without Lance: when the run is first opened where it is
    return evaluation


def _frozen_features(model: Model) -> Embed | None:
    """Return the features of the model's backbone as training found it, where they are wanted.

    None if no classes were held out, or if it began from no weights, or those or torch are not
    here.
    """
    config = model.card.config
    if not config.data.holdout_classes or config.model.weights == "none":
        return None
    try:
        from phpq.model.general import frozen_features
        from phpq.model.retrieval import TorchModel, apply_to_pixels, resolve_device

        place = model.device if isinstance(model, TorchModel) else resolve_device("cpu")
        describe = frozen_features(config.model, place)
    except (PhpqError, OSError, ModuleNotFoundError):
        return None

    def embed(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return apply_to_pixels(describe, pixels, config.data, device=place).cpu().numpy()

    return embed


def as_dataset(source: Source, *, home: Path | None = None) -> Dataset:
    """Open a source, unless it is open already."""
    return source if isinstance(source, Dataset) else open_dataset(source, home=home)


def open_origin(origin: str, *, home: Path | None = None) -> Dataset:
    """Open the data set that a model card names (`ModelCard.dataset`)."""
    try:
        return open_dataset(origin, home=home)
    except DataError as error:
        raise DataError(
            f"The data set that the model learned on cannot be opened: {error} "
            "Say where it is now by giving SOURCE."
        ) from error


class Run(NamedTuple):
    """A run that is about to begin or to go on."""

    dataset: Dataset
    config: RunConfig
    folder: Path


def open_run(  # noqa: PLR0913  every way to say what is to be learned, by name
    source: Source | None = None,
    *,
    config: RunConfig | None = None,
    method: str | None = None,
    recipe: str | None = None,
    trunk: str | None = None,
    file: Path | None = None,
    settings: Sequence[str] = (),
    bits: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    home: Path | None = None,
) -> Run:
    """Find data set, settings and folder of a run that is to begin, or to be resumed.

    Args are those of `train`, and:
        source: On resuming, where the data set is if it has moved.
        config: Otherwise the settings of the run that is resumed, or what
            `recipes.resolve_config` makes of method, recipe, trunk, file and settings.
        recipe: One of `phpq.config.READINGS`, how PHPQ is read.
        file: A TOML file of settings.
        settings: Texts such as "training.epochs=10".
        home: Where downloads are kept.
    """
    if resume:
        if out is None:
            raise ConfigError("There is no run to resume. Say which with out=FOLDER.")
        from phpq.model.checkpoint import interrupted_card

        folder = Path(out)
        card = interrupted_card(folder)
        config = config or card.config
        if source is None:
            dataset = open_origin(card.dataset, home=home)
        else:
            dataset = as_dataset(source, home=home)
        names = learned_part(dataset, config.data).class_names
        if names != card.class_names:
            raise DataError(
                f"The run in {str(folder)!r} learned {len(card.class_names)} classes; "
                f"{dataset.name!r} has {len(names)}, or others by name. "
                "Resume with the data set that the run began with."
            )
    elif source is None:
        raise ConfigError("There is no data set to train on. Give a source, or resume a run.")
    else:
        dataset = as_dataset(source, home=home)
        config = config or resolve_config(
            method=method,
            recipe=recipe,
            trunk=trunk,
            file=file,
            weights=default_weights(dataset.source),
            settings=settings,
        )
        config = fit_patches(config)
    if bits is not None:
        config = with_bits(config, bits)
    # The run folder keeps the path, and must be resumable from elsewhere.
    weights = absolute_weights(config.model.weights)
    config = replace(config, model=replace(config.model, weights=weights))
    return Run(dataset, config, Path(out) if out else default_folder(dataset, config))


def feature_cache(config: RunConfig, *, home: Path | None = None) -> Path | None:
    """Return where features of a frozen backbone are kept; None if everything learns."""
    return None if config.training.trainable == "all" else data_home(home) / "features"


def default_folder(dataset: Dataset, config: RunConfig) -> Path:
    """Return the run folder where none is named."""
    method = config.method.name
    name = dataset.name if method == "phpq" else f"{dataset.name}-{method}"
    return Path("runs") / f"{name}-{config.quantizer.bits}"


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the settings, the progress and the results of a run."""
    from phpq.model.checkpoint import STATE, WEIGHTS, describe_chances, read_card

    card = read_card(folder)
    rows = read_rows(folder)
    epochs = epoch_scores(rows)
    last = rows[-1] if rows else {}
    unfinished = (folder / STATE).is_file() or not (folder / WEIGHTS).is_file()
    evaluation, path = None, folder / FOLDER / METRICS
    if path.is_file():
        metrics = read_json(path, remedy=f"Run phpq evaluate {folder} again.")
        kept = ("dataset", "map", "map_float", "map_soft", "map_pq")
        evaluation = {"folder": str(path.parent)} | {name: metrics.get(name) for name in kept}
    return {
        "run": str(folder),
        "dataset": card.dataset,
        "classes": len(card.class_names),
        "method": card.config.method.name,
        "bits": card.config.quantizer.bits,
        "backbone": card.config.model.backbone,
        "epochs": {
            "done": last.get("epoch", 0),
            "planned": card.config.training.epochs,
            "finished": not unfinished,
        },
        "map": None if epochs is None else asdict(epochs),
        "code_health": {
            name: last.get(name) for name in ("distinct_codes", "dead_codewords", "entropy_bits")
        },
        "evaluation": evaluation,
        "probabilities": describe_chances(folder),
        "config": to_dict(card.config),
    }


def describe_dataset(
    dataset: Dataset, *, check_images: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Return classes and sizes; with `check_images` also which images cannot be decoded."""
    sizes = dataset.train.class_sizes()
    smallest = int(sizes.argmin())
    bad: list[dict[str, str]] | None = None
    if check_images:
        bad = [
            {"id": image.id, "reason": image.reason}
            for images in (dataset.train, dataset.test)
            for image in find_bad_images(images, DataConfig(), progress=progress)
        ]
    return {
        "dataset": dataset.name,
        "source": dataset.source,
        "classes": len(dataset.class_names),
        "train_images": len(dataset.train),
        "test_images": len(dataset.test),
        "smallest_class": {
            "name": dataset.class_names[smallest],
            "train_images": int(sizes[smallest]),
        },
        "classes_without_test_image": int((dataset.test.class_sizes() == 0).sum()),
        "bad_images": bad,
    }
