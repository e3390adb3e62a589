"""`phpq info`: what is here: the machine, a run, a gallery, a data set; pretrained trunks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from phpq.cli import doctor, gallery
from phpq.cli._console import (
    AsJson,
    config_table,
    doubt_rows,
    home,
    is_gallery,
    is_run,
    print_facts,
    print_json,
    print_result,
    progress_bars,
    results,
    table_of,
)


def info(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|GALLERY|SOURCE",
            help="A run, a gallery or a data set. (default: this machine)",
            show_default=False,
        ),
    ] = None,
    check_images: Annotated[
        bool, typer.Option(help="Decode every image of a data set and name the bad ones.")
    ] = False,
    trunks: Annotated[
        bool, typer.Option("--trunks", help="List the trunks of phpq train --trunk, with licences.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show this machine, or what a run, a gallery or a data set holds."""
    if trunks:
        if what is not None:
            raise typer.BadParameter("give nothing else with it.", param_hint="--trunks")
        _show_trunks(as_json=as_json)
        return
    if what is None:
        doctor.doctor(as_json=as_json)
        return
    from phpq import api
    from phpq.config import parse
    from phpq.data import open_dataset

    if is_gallery(Path(what)):
        gallery.info(Path(what), as_json=as_json)
        return
    if is_run(Path(what)):
        content = api.describe_run(Path(what))
        rows = _run_rows(content)
    else:
        dataset = open_dataset(what, home=home())
        with progress_bars() as progress:
            content = api.describe_dataset(dataset, check_images=check_images, progress=progress)
        rows = _dataset_rows(content)
    print_result(content, rows, as_json=as_json)
    if "config" in content and not as_json:
        results().print(config_table(parse(content["config"])))


def _show_trunks(*, as_json: bool) -> None:
    from phpq.config import TERMS, TRUNKS

    rows = [
        {
            "name": trunk.name,
            "backbone": trunk.backbone,
            "licence": trunk.licence,
            "terms": TERMS.get(trunk.licence, ""),
            "million_parameters": trunk.parameters,
            "megabytes": trunk.megabytes,
            "pixels": trunk.side,
            "dim": trunk.dim,
        }
        for trunk in TRUNKS.values()
    ]
    if as_json:
        print_json({"trunks": rows})
        return
    table = table_of("", ("parameters", "MB", "pixels", "dim"), first="trunk")
    table.add_column("licence")
    for row in rows:
        sizes = (str(row[key]) for key in ("megabytes", "pixels", "dim"))
        parameters = f"{row['million_parameters']} M"
        table.add_row(str(row["name"]), parameters, *sizes, str(row["licence"]))
    results().print(table)
    print_facts([(f"{licence}:", text) for licence, text in TERMS.items()])


def _run_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    epochs, scores, health = content["epochs"], content["map"], content["code_health"]
    state = "finished" if epochs["finished"] else "interrupted or running"
    rows = [
        ("run", content["run"]),
        ("data set", f"{content['dataset']} ({content['classes']} classes)"),
        ("method", f"{content['method']} on {content['backbone']}, {content['bits']} bits"),
        ("epochs", f"{epochs['done']} of {epochs['planned']}, {state}"),
    ]
    if scores:
        last, best = scores["last"], scores["best"]
        text = f"{last['map']:.2f} last (epoch {last['epoch']}), "
        rows.append(("MAP", text + f"{best['map']:.2f} best (epoch {best['epoch']})"))
    if health["distinct_codes"] is not None:
        text = f"{health['distinct_codes']:,} distinct, {health['dead_codewords']:,} dead codewords"
        rows.append(("codes", f"{text}, {health['entropy_bits']:.2f} bits of entropy per codebook"))
    if content["evaluation"]:
        rows.append(("evaluation", content["evaluation"]["folder"]))
    return [*rows, *doubt_rows(content["probabilities"])]


def _dataset_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    smallest, bad = content["smallest_class"], content["bad_images"]
    rows = [
        ("data set", content["dataset"]),
        ("source", content["source"]),
        ("classes", f"{content['classes']:,}"),
        ("train", f"{content['train_images']:,} images (the gallery)"),
        ("test", f"{content['test_images']:,} images (the queries)"),
        ("smallest", f"{smallest['name']}: {smallest['train_images']:,} training images"),
    ]
    if content["classes_without_test_image"]:
        rows.append(("untested", f"{content['classes_without_test_image']:,} classes"))
    count = "not looked for; add --check-images" if bad is None else f"{len(bad):,}"
    return [*rows, ("bad images", count), *(("", image["reason"]) for image in bad or ())]
