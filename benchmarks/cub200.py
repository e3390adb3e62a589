"""CUB-200-2011 on one GPU: retrieval quality for each code length, and training speed.

    python benchmarks/cub200.py quality --data DIR --weights FILE --cache DIR --out cub200.json
    python benchmarks/cub200.py speed   --data DIR --weights FILE --cache DIR --out cub200.json

`quality` trains every code length with every seed, several at once in processes that share the GPU,
and reports tie-aware MAP over the whole gallery at the last epoch. `speed` times the 70-epoch run
beside a plain PyTorch loop in the same run. With `--holdout 5`, queries are five training images a
class: the way to compare recipes without looking at the test split. Both write into one file and
leave what the other wrote.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from queue import Empty
from typing import Any

from provenance import provenance


def main() -> None:
    """Parse the command line and run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder for decoded pixels")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32, 48, 64])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--holdout", type=int, default=0)
    parser.add_argument("--commit", default="")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.FIELD=VALUE")
    options = parser.parse_args()
    if options.what == "quality":
        measure_quality(options)
    else:
        measure_speed(options)


def run_config(options: argparse.Namespace, bits: int, seed: int) -> Any:
    """Return the default recipe with this run's weights, bits and seed, and nothing else."""
    from phpq.config import RunConfig, override, with_bits

    changes = [
        f"model.weights={options.weights}",
        f"data.holdout_per_class={options.holdout}",
        f"training.seed={seed}",
        *options.set,
    ]
    return with_bits(override(RunConfig(), changes), bits)


def build_trainer(options: argparse.Namespace, dataset: Any, config: Any) -> Any:
    """Return a run on the best device, silent, its pixels from the cache."""
    from phpq.model import resolve_device
    from phpq.training import Reporter, Trainer

    return Trainer(
        dataset,
        config,
        device=resolve_device("auto"),
        reporter=Reporter(),
        cache=options.cache,
    )


def measure_quality(options: argparse.Namespace) -> None:
    """Train the grid in parallel processes and print MAP, mean and deviation."""
    context = multiprocessing.get_context("spawn")
    jobs: Any = context.Queue()
    results: Any = context.Queue()
    grid = [(bits, seed) for seed in options.seeds for bits in options.bits]
    for job in grid:
        jobs.put(job)
    time.sleep(0.5)  # the queue's feeder thread must have written before a worker looks
    started = time.perf_counter()
    workers = [
        context.Process(target=work, args=(options, jobs, results))
        for _ in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    rows: list[dict[str, Any]] = []
    while len(rows) < len(grid):
        rows.append(results.get())
        row = rows[-1]
        print(f"{row['bits']:>3} bits seed {row['seed']}: MAP {row['map']:.2f}", row, flush=True)
        seconds = time.perf_counter() - started
        write_quality(options, rows, seconds)  # after every run: a lost machine loses one run
    for worker in workers:
        worker.join()
    print_quality(rows)


def work(options: argparse.Namespace, jobs: Any, results: Any) -> None:
    """Take runs from the queue until it is empty."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    while True:
        try:
            bits, seed = jobs.get_nowait()
        except Empty:
            return
        results.put(one_run(options, bits, seed))
        gc.collect()
        torch.cuda.empty_cache()


def one_run(options: argparse.Namespace, bits: int, seed: int) -> dict[str, Any]:
    """Train once; measure codes at the evaluated epochs, float search and flips at the last."""
    import numpy as np

    from phpq.data import open_dataset
    from phpq.evaluation import LabelledEmbeddings, evaluate_codes, evaluate_float

    config = run_config(options, bits, seed)
    dataset = open_dataset(f"cub200:{options.data}")
    trainer = build_trainer(options, dataset, config)
    started = time.perf_counter()
    history = {}
    training = config.training
    for epoch in range(training.epochs):
        trainer.prepare_epoch(epoch)
        trainer.train_epoch(epoch)
        if (epoch + 1) % training.evaluate_every == 0 or epoch + 1 == training.epochs:
            history[epoch + 1] = trainer.evaluate()
    seconds = time.perf_counter() - started
    network = trainer.evaluated_network
    codebooks = network.quantizer.export()
    pixels = trainer.pixels
    queries = LabelledEmbeddings(pixels.embed_test(network), pixels.test.labels)
    gallery = LabelledEmbeddings(pixels.embed_train(network), trainer.labels)
    codes = codebooks.encode(gallery.embeddings)
    scores = evaluate_codes(queries, codes, gallery_labels=gallery.labels, codebooks=codebooks)
    exact = evaluate_float(queries, gallery, sub_vectors=codebooks.num_codebooks)
    mirrored = dataclasses.replace(config.data, eval_flip=True)
    both = dataclasses.replace(pixels, config=mirrored)
    flipped = evaluate_codes(
        LabelledEmbeddings(both.embed_test(network), queries.labels),
        codebooks.encode(both.embed_train(network)),
        gallery_labels=gallery.labels,
        codebooks=codebooks,
    )
    if seed == options.seeds[0]:
        np.savez_compressed(
            options.out.with_name(f"codes-{bits}.npz"),
            gallery_codes=codes,
            gallery_labels=gallery.labels,
            query_codes=codebooks.encode(queries.embeddings),
            query_labels=queries.labels,
            codebooks=codebooks.codewords.astype(np.float16),
            queries=queries.embeddings[::8].astype(np.float16),
        )
    return {
        "bits": bits,
        "seed": seed,
        "map": scores.map_percent,
        "best_map": max(row["map"] for row in history.values()),
        "by_epoch": {str(epoch): row["map"] for epoch, row in history.items()},
        "precision_at": scores.to_dict()["precision_at"],
        "float_map": exact.map_percent,
        "flip_map": flipped.map_percent,
        "distinct_codes": scores.health.distinct_codes if scores.health else None,
        "dead_codewords": scores.health.dead_total if scores.health else None,
        "seconds": round(seconds, 1),
    }


def write_quality(options: argparse.Namespace, rows: list[dict[str, Any]], seconds: float) -> None:
    """Write what is known so far."""
    from phpq.reproduce.grid import identify_weights, recorded_config

    shared = run_config(options, options.bits[0], options.seeds[0])
    config = recorded_config(shared, identify_weights(options.weights))
    del config["quantizer"]["num_codebooks"], config["training"]["seed"]
    content = {
        "map": {str(b): summary([r for r in rows if r["bits"] == b]) for b in options.bits},
        "unit": "per cent; tie-aware, whole gallery, last epoch",
        "paper": {str(bits): paper(bits) for bits in options.bits},
        "protocol": (
            f"queries: {options.holdout} training images per class"
            if options.holdout
            else "queries: the 5,794 test images; gallery: the 5,994 training images"
        ),
        "config": config,
        "made": provenance(options, gpu=True),
        "processes_at_once": options.processes,
        "seconds_for_all": round(seconds, 1),
        "runs": rows,
    }
    write(options.out, content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write what is new into a file, beside what the other measurement wrote."""
    known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(known | content, indent=1) + "\n", "utf-8")


def paper(bits: int) -> float | None:
    """Return the paper's MAP at a code length; None where it has none."""
    from phpq.reproduce.paper import PAPER

    return PAPER["cub200"]["headline"].meant("phpq", bits)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample deviation over the seeds."""
    values = [row["map"] for row in sorted(rows, key=lambda row: int(row["seed"]))]
    if not values:
        return {"mean": None, "std": None, "seeds": []}
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": round(statistics.mean(values), 2),
        "std": round(deviation, 2),
        "seeds": [round(value, 2) for value in values],
    }


def print_quality(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print("\nbits   MAP (mean +- std)   paper   float   with mirror")
    for bits in sorted({row["bits"] for row in rows}):
        mine = [row for row in rows if row["bits"] == bits]
        result = summary(mine)
        exact = statistics.mean(row["float_map"] for row in mine)
        flipped = statistics.mean(row["flip_map"] for row in mine)
        print(
            f"{bits:>4}   {result['mean']:.2f} +- {result['std']:.2f}       "
            f"{paper(bits) or float('nan'):.2f}   {exact:.2f}   {flipped:.2f}"
        )


def measure_speed(options: argparse.Namespace) -> None:
    """Time the whole run with CUDA graphs, steady epochs when compiled too, and the plain loop."""
    import torch
    from plain_loop import time_plain_loop

    from phpq.data import open_dataset

    dataset = open_dataset(f"cub200:{options.data}")
    config = run_config(options, 32, 0)
    workers = os.cpu_count() or 1
    rows = {"cuda graph (default)": time_run(options, dataset, config, config.training.epochs)}
    compiled = dataclasses.replace(
        config, training=dataclasses.replace(config.training, accelerate="full")
    )
    rows["cuda graph, compiled"] = time_run(options, dataset, compiled, 12)
    torch.cuda.empty_cache()
    rows["plain loop"] = time_plain_loop(dataset.train, config, epochs=4, workers=workers)
    content = {
        "rows": rows,
        "epochs": config.training.epochs,
        "made": provenance(options, gpu=True),
        "workers": workers,
    }
    write(options.out, {"speed": content})
    plain = rows["plain loop"]["images_per_second"]
    for name, row in rows.items():
        rate = row["images_per_second"]
        print(f"{name:<24} {rate:>8.0f} images/s   {rate / plain:.2f} x the plain loop   {row}")


def time_run(
    options: argparse.Namespace, dataset: Any, config: Any, epochs: int
) -> dict[str, float]:
    """Train `epochs` epochs from nothing; returns images/s (steady) and seconds with all starts."""
    begun = time.perf_counter()
    trainer = build_trainer(options, dataset, config)
    loaded = time.perf_counter()
    seconds = []
    for epoch in range(epochs):
        trainer.prepare_epoch(epoch)
        seconds.append(trainer.train_epoch(epoch).seconds)
    trained = time.perf_counter()
    result = trainer.evaluate()
    evaluated = time.perf_counter()
    images = trainer.steps * config.training.batch_size
    return {
        "images_per_second": images / statistics.median(seconds[2:]),
        "epochs": epochs,
        "seconds_loading": loaded - begun,
        "seconds_training": trained - loaded,
        "seconds_evaluating": evaluated - trained,
        "map": result["map"],
    }


if __name__ == "__main__":
    main()
