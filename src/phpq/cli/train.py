"""`phpq train`: a data set in, a run folder out.

Started by torchrun, its processes learn as one: `torchrun --nproc-per-node 4 -m phpq train ...`.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phpq.cli._console import AsJson, Device, config_table, home, messages, print_result
from phpq.cli._launch import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from phpq.api import Run
    from phpq.training.distributed import Group


CHOICES = ("last", "head", "all")  # of what learns, the best last: docs/decisions/0016


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="A folder with a sub-folder per class, a CSV or Parquet table, cub200, dogs120 or "
            "plumage.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="phpq, or a method to compare it with: itq, hashnet, adsh ... (default: phpq)",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How PHPQ learns: ours, large (larger views: better, 1.6 times as long), or paper "
            "(as printed). (default: ours)",
        ),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(metavar="N", help="Code length: 16, 32, 48 ... (default: 32)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run folder. (default: runs/NAME-BITS)"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file of settings.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="STAGE.FIELD=VALUE",
            help="One setting; may be repeated. phpq info RUN lists them.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Short for --set training.epochs=N")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Short for --set training.seed=N")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A timm model, such as resnet50. (default: resnet18)"),
    ] = None,
    trunk: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A pretrained network, such as dinov2-small, with weights, sizes and rates that "
            "suit it; phpq info --trunks lists them.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What the backbone starts from: hub (pretrained, fetched by timm), none, or a "
            "FILE. (default: hub for photographs, none for plumage)",
        ),
    ] = None,
    trainable: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What learns: head (all but the backbone: minutes without a GPU), last (its last "
            "stage too) or all. (default: all; without a GPU, the best that ends in about ten "
            "minutes)",
        ),
    ] = None,
    hold_out_classes: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Learn nothing from the last SHARE of the classes, such as 0.5; phpq evaluate "
            "then measures how well they are found as new kinds.",
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue an interrupted run with its own settings, or add the general embedding "
            "to a finished one that has none.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn to search a data set, and write a run folder.

    Options win over --config, and --config over the defaults. To continue a run that was
    interrupted: phpq train --resume RUN

    On several GPUs or machines: torchrun --nproc-per-node 4 -m phpq train ... The batch size is
    that of all processes together, and the result is the same as that of one.
    """
    short = {
        "training.epochs": epochs,
        "training.seed": seed,
        "model.backbone": backbone,
        "model.weights": weights,
        "training.trainable": trainable,
        "data.holdout_classes": hold_out_classes,
    }
    assignments = [f"{name}={value}" for name, value in short.items() if value is not None]
    assignments += settings or []
    asked = (method, recipe, trunk, bits, out, config)
    if resume is not None and (assignments or any(value is not None for value in asked)):
        hint = "a run goes on with its own settings; leave out all options but --device, --json"
        raise typer.BadParameter(hint, param_hint="--resume")
    if trunk is not None and backbone is not None:
        raise typer.BadParameter("it names a backbone already.", param_hint="--trunk")
    if resume is None and source is None:
        raise typer.BadParameter("give a data set, or --resume RUN.", param_hint="SOURCE")
    with joined(device) as group:
        from phpq import api
        from phpq.files import is_taken

        def opened(data: api.Source | None, *more: str) -> Run:
            return api.open_run(
                data,
                method=method,
                recipe=recipe,
                trunk=trunk,
                file=config,
                settings=[*more, *assignments],
                bits=bits,
                out=resume or out,
                resume=resume is not None,
                home=home(),
            )

        run = opened(source)
        if group is None or group.first:
            _show_data(run)
        named = any(text.startswith("training.trainable=") for text in assignments)
        # Training will refuse a folder that is taken: nothing need be measured before that.
        new = resume is None and not is_taken(run.folder)
        if new and group is None and trunk is None and not named:
            run = _chosen(run, opened, device)
        _train(run, device=device, resume=resume is not None, group=group)
        if group is None or group.first:
            _report(run.folder, as_json=as_json)


def _show_data(run: Run) -> None:
    """Say what was read: folders in folders, or a wrong column, show in the names of classes."""
    data = run.dataset
    names = data.train.class_names
    shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    images = f"{len(data.train):,} training and {len(data.test):,} test images"
    text = f"{data.name}: {images} of {len(names):,} classes ({shown})"
    messages().print(text, style="dim", markup=False, soft_wrap=True)


def _chosen(run: Run, opened: Callable[..., Run], device: str) -> Run:
    """Return the run with what can be learned here in about ten minutes; on a GPU as it is."""
    from phpq.model import resolve_device

    config = run.config
    begins = config.model.weights != "none" and not config.data.eval_flip
    if resolve_device(device).type != "cpu" or config.training.trainable != "all" or not begins:
        return run
    from rich.table import Table

    from phpq.training.choice import best_choice, measure_choices

    runs = {name: opened(run.dataset, f"training.trainable={name}") for name in CHOICES}
    messages().print("measuring how fast this machine learns ...", style="dim")
    costs = measure_choices(run.dataset, {name: one.config for name, one in runs.items()})
    best = best_choice(costs)
    table = Table("--trainable", "features once", "learning", "in all, about")
    for name, cost in costs.items():
        mark = " (chosen)" if name == best else ""
        spent = (cost.features, cost.learning, cost.total)
        times = (f"{seconds / 60:,.1f} min" if seconds >= 3 else "" for seconds in spent)
        table.add_row(name + mark, *times)
    messages().print(table)
    messages().print(
        "Lower rows find better. The lowest that ends in about ten minutes is chosen; to take "
        "another, name it with --trainable.",
        style="dim",
    )
    return runs[best]


def _train(run: Run, *, device: str, resume: bool, group: Group | None) -> None:
    """Show the settings, train, give the terminal back whatever happens, say how to resume."""
    from phpq import api
    from phpq.config import CONFIG_FILE
    from phpq.training import TerminalReporter, train_run

    if group is None or group.first:
        table = config_table(run.config, changed=True)
        if table.row_count:
            messages().print("settings other than the defaults (all of them: phpq info RUN)")
            messages().print(table)
    reporter = TerminalReporter(messages())
    try:
        cache = api.feature_cache(run.config, home=home())
        train_run(*run, device=device, resume=resume, reporter=reporter, cache=cache, group=group)
    except KeyboardInterrupt:
        begun = (run.folder / CONFIG_FILE).is_file()
        hint = f"Continue with: phpq train --resume {shlex.quote(str(run.folder))}"
        raise KeyboardInterrupt(hint if begun else "Nothing was written yet.") from None
    finally:
        reporter.finish()


def _report(folder: Path, *, as_json: bool) -> None:
    from phpq.api import describe_run

    run = describe_run(folder)
    name = shlex.quote(str(folder))
    rows = []
    if run["map"]:  # a model folder without its run has no rows
        last, best = run["map"]["last"], run["map"]["best"]
        final = f"{last['map']:.2f} after the last epoch ({last['epoch']})"
        rows.append(("MAP", f"{final}; best {best['map']:.2f} (epoch {best['epoch']})"))
    rows += (
        ("run", str(folder)),
        ("next", f"phpq evaluate {name}   how well it finds; then it can be searched"),
        ("", f"phpq index NAME.gallery IMAGES/ --model {name}"),
    )
    print_result(run, rows, as_json=as_json)
