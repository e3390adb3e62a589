"""The tables of README and docs/results: JSON that benchmarks wrote in, Markdown out.

A renderer takes `load`, which returns the content of docs/results/NAME.json. Tables of measurements
that no code wrote down stand in carried.json as they were printed, each with its source.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from phpq.compare.page import build_page
from phpq.report.blocks import render_markdown

Load = Callable[[str], Any]
BITS = ("16", "32", "48", "64")
CARRIED = "carried"
HEADLINE = "headline-cub200"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> str:
    """Return a table; with `right`, all columns but the first are set to the right."""
    line = ["---", *(["---:" if right else "---"] * (len(heads) - 1))]
    lines = [heads, line, *rows]
    if any(len(cells) != len(heads) for cells in lines):
        raise ValueError(f"A row of the table {heads[0]!r} has not {len(heads)} cells.")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def measured(load: Load, name: str) -> Any:
    """Return the content of a JSON file that may not be there yet; None then."""
    try:
        return load(name)
    except FileNotFoundError:
        return None


def carried_table(entry: Mapping[str, Any]) -> str:
    """Return a table of carried.json."""
    return markdown(entry["columns"], entry["rows"], right=entry.get("right", False))


def means(load: Load, value: str) -> list[float]:
    """Return the mean over the seeds of cub200.json at each code length: "float_map", "P@1"."""
    runs = load("cub200")["runs"]

    def of(run: Mapping[str, Any]) -> float:
        return float(run["precision_at"]["1"] if value == "P@1" else run[value])

    return [statistics.mean(of(run) for run in runs if str(run["bits"]) == b) for b in BITS]


def readme_headline(load: Load) -> str:
    """Return MAP by code length, ours beside the paper's: of `phpq reproduce headline` if run."""
    table = measured(load, HEADLINE)
    if table is None:
        return _headline(load("cub200")["map"], _of_runs(load), load("cub200")["paper"])
    (ours,) = (row for row in table["rows"] if row["name"] == "phpq")
    cells = [ours["cells"][bits] for bits in BITS]
    beside = {title: [f"{cell[name]:.2f}" for cell in cells] for name, title in _BESIDE.items()}
    paper = {bits: cell["paper"] for bits, cell in zip(BITS, cells, strict=True)}
    others = {
        row["title"]: [_score(row["cells"][bits]) for bits in BITS]
        for row in table["rows"]
        if row is not ours
    }
    return _headline(ours["cells"], beside | others, paper)


# A figure of the headline's JSON -> how README calls it.
_BESIDE = {
    "p1": "P@1",
    "float": "float search over the same embeddings, MAP",
    "p1_float": "float search, P@1",
}


def _of_runs(load: Load) -> dict[str, list[str]]:
    known = {"p1": "P@1", "float": "float_map"}
    return {
        _BESIDE[name]: [f"{mean:.2f}" for mean in means(load, value)]
        for name, value in known.items()
    }


def _headline(
    ours: Mapping[str, Any], beside: Mapping[str, list[str]], paper: Mapping[str, float]
) -> str:
    rows = [
        ["bytes per image", *(str(int(bits) // 8) for bits in BITS)],
        ["**phpq, MAP**", *(f"**{ours[b]['mean']:.2f}** ± {ours[b]['std']:.2f}" for b in BITS)],
        *([title, *cells] for title, cells in beside.items()),
        ["the paper's article, MAP", *(f"{paper[bits]:.2f}" for bits in BITS)],
    ]
    return markdown(("bits", *BITS), rows)


def _score(cell: Mapping[str, Any]) -> str:
    if cell["mean"] is None:
        return "\N{EN DASH}"
    deviation = "" if cell["std"] is None else f" ± {cell['std']:.2f}"
    return f"{cell['mean']:.2f}{deviation}"


def cub200_quality(load: Load) -> str:
    """Return MAP of three seeds, the paper's, with mirrored images, and of float search."""
    data = load("cub200")
    heads = ["bits", "MAP, mean ± deviation of 3 seeds", "the seeds", "paper", "gain"]
    heads += ["P@1", "with `data.eval_flip`", "float search, same embeddings"]
    columns = [means(load, value) for value in ("P@1", "flip_map", "float_map")]
    rows = []
    for bits, *others in zip(BITS, *columns, strict=True):
        ours, paper = data["map"][bits], data["paper"][bits]
        rows.append(
            (
                bits,
                f"**{ours['mean']:.2f}** ± {ours['std']:.2f}",
                " ".join(f"{value:.2f}" for value in ours["seeds"]),
                f"{paper:.2f}",
                f"{ours['mean'] - paper:+.2f}",
                *(f"{value:.2f}" for value in others),
            )
        )
    return markdown(heads, rows)


def cub200_speed(load: Load) -> str:
    """Return images/s of our loop, compiled too, beside the plain one."""
    workers, rows = (load("cub200")["speed"][name] for name in ("workers", "rows"))
    default, compiled = rows["cuda graph (default)"], rows["cuda graph, compiled"]
    plain = rows["plain loop"]
    times = {
        id(row): row["images_per_second"] / plain["images_per_second"]
        for row in (default, compiled)
    }
    whole = sum(default[f"seconds_{part}"] for part in ("loading", "training", "evaluating"))
    return markdown(
        ("loop", "images/s (median epoch)", "to the plain loop", f"{default['epochs']} epochs"),
        [
            (
                "phpq, default: resident images, bf16, the step as one CUDA graph",
                f"{default['images_per_second']:,.0f}",
                f"**{times[id(default)]:.2f} x**",
                f"**{default['seconds_training']:.1f} s**, {whole:.1f} s with loading and the last "
                f"evaluation (MAP {default['map']:.2f})",
            ),
            (
                "phpq, `training.accelerate=full`: compiled too",
                f"{compiled['images_per_second']:,.0f}",
                f"{times[id(compiled)]:.2f} x",
                f"{compiled['epochs']} epochs timed: {compiled['seconds_training']:.1f} s, most of "
                "it compiling",
            ),
            (
                f"plain PyTorch: DataLoader with {workers} workers, torchvision transforms, "
                "float32",
                f"{plain['images_per_second']:,.0f}",
                "1",
                f"{default['epochs'] * plain['seconds_per_epoch']:.0f} s ({plain['epochs']} epochs "
                f"timed, {plain['seconds_per_epoch']:.2f} s each)",
            ),
        ],
    )


def other_sets(load: Load) -> str:
    """Return MAP and P@1 of codes and of float search on other data sets."""
    heads = ["data set (classes)", "backbone", "bits", "gallery", "queries", "**MAP**", "P@1"]
    heads += ["float MAP", "float P@1", "distinct codes"]
    rows = []
    for run in load("other-sets")["runs"]:
        counts = (run["bits"], run["gallery"], run["queries"])
        scores = (run["p1"], run["float_map"], run["float_p1"])
        rows.append(
            (
                run["data"],
                run["trunk"],
                *(f"{count:,}" for count in counts),
                f"**{run['map']:.2f}**",
                *(f"{score:.2f}" for score in scores),
                f"{run['distinct_codes']:,}",
            )
        )
    return markdown(heads, rows, right=True)


def seed_mean(found: Mapping[str, Any]) -> str:
    """Write the mean over the seeds, rounded once."""
    return f"{statistics.mean(found['seeds']):.1f}"


# What learned -> file of its runs on unseen classes.
UNSEEN = {"everything": "unseen", "last stage": "unseen-last"}
BACKBONES = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}


def unseen_half(load: Load) -> str:
    """Return new species among each other, by floats and codes, without and with labels."""

    def pair(place: Mapping[str, Any], first: str, second: str) -> str:
        return f"{seed_mean(place[first])}, {seed_mean(place[second])}"

    heads, lines = [""], dict[str, list[str]]()
    titles = {"32": "4 bytes: R@1, MAP@R", "64": "8 bytes", "128": "16 bytes"}
    for learned, file in UNSEEN.items():
        found = load(file)["by_seed"]
        for name, half in found["half"].items():
            labelled = found["labelled"][name]["64"]
            heads.append(f"{BACKBONES[name]}, {learned}")
            shown = {"float, without labels: R@1, MAP@R": pair(half["float"], "r1", "map_r")}
            shown |= {title: pair(half["codes"][b], "r1", "map_r") for b, title in titles.items()}
            shown |= {
                "8 bytes, with labels: MAP, P@1": pair(labelled, "map", "p1"),
                "the same, gallery of all 200 species: MAP": seed_mean(labelled["all_map"]),
                "named by five labelled images of each of 100 kinds, five draws": seed_mean(
                    labelled["five_shot"]
                ),
                "seeds": str(len(half["float"]["r1"]["seeds"])),
            }
            for title, cell in shown.items():
                lines.setdefault(title, []).append(cell)
    return markdown(heads, [(title, *cells) for title, cells in lines.items()], right=True)


def readme_unseen(load: Load) -> str:
    """Return what 8 bytes find of species that nothing has learned."""
    rows = []
    for learned, file in UNSEEN.items():
        found = load(file)["by_seed"]
        for name, half in found["half"].items():
            known = found["labelled"][name]["64"]
            cells = (
                half["codes"]["64"]["r1"],
                *(known[k] for k in ("map", "all_map", "five_shot")),
            )
            rows.append((f"{BACKBONES[name]}, {learned}", *map(seed_mean, cells)))
    heads = ("what learned", "R@1, no labels", "MAP, labels", "among all 200", "five-shot")
    return markdown(heads, rows, right=True)


def unseen_open(load: Load) -> str:
    """Return ten new species beside 190 learned ones."""
    names = {
        "new@new": "unseen_unseen",
        "new@all": "unseen_all",
        "learned@learned": "seen_seen",
    }
    rows = []
    for learned, file in UNSEEN.items():
        found = load(file)["by_seed"].get("open", {}).get("64")
        if found:
            for title, name in names.items():
                cells = (seed_mean(found[one]) for one in (name, f"{name}_labelled"))
                rows.append((learned, title, *cells))
    heads = ("what learned", "gallery, queries", "without labels", "with labels")
    return markdown(heads, rows, right=True)


def unseen_in_use(load: Load) -> str:
    """Return what happens to a gallery of new kinds as it is used."""
    rows = []
    for name, found in load(UNSEEN["last stage"])["by_seed"]["in_use"].items():
        by_trust = found["trust"]
        for title, values in found.items():
            if values is not by_trust:
                pair = (values.get(used) for used in ("without", "with"))
                rows.append((BACKBONES[name], title, *(seed_mean(v) if v else "" for v in pair)))
        for trust, values in by_trust.items():
            for title, value in values.items():
                rows.append((BACKBONES[name], f"trust {trust}: {title}", "", seed_mean(value)))
    return markdown(("network", "measured", "without labels", "with labels"), rows, right=True)


KNOWS = ("knows", "knows-resnet50")  # networks that learned on species 1-100


def knows_scores(*names: str) -> Callable[[Load], str]:
    """Return how well scores tell known from unknown photos, and what probabilities keep."""

    def render(load: Load) -> str:
        heads = ("score", "AUROC", "named in hindsight", "calibration error", "named", "wrong")
        rows = []
        for content in map(load, names):
            for each in content["scores"]:
                cuts = (c for c in each.get("cut_offs", ()) if c["wrong_at_most"] == 0.05)
                cut = next(cuts, None)
                error = f"{each['calibration_error']:.3f}" if cut else ""
                kept = [f"{100 * cut[name]:.1f}" if cut else "" for name in ("named", "wrong")]
                hindsight = f"{100 * each['named_in_hindsight']:.1f}"
                row = (each["score"], f"{each['auroc']:.3f}", hindsight, error, *kept)
                rows.append((content["trained"]["backbone"], *row))
        if len(names) == 1:
            return markdown(heads, [row[1:] for row in rows], right=True)
        return markdown(("backbone", *heads), rows, right=True)

    return render


def knows_parents(load: Load) -> str:
    """Return what is answered by species alone, and with families behind them."""
    heads = ("backbone", "fitted to", "answers", "of known", "of unknown", "of all", "right")
    rows = []
    for content in map(load, KNOWS):
        for each in content["parents"]:
            told = {
                "species alone": each["alone"]["all"],
                "species or family": each["backed_off"]["all"],
            }
            told |= {f"... by {name}": each["backed_off"][name] for name in ("species", "family")}
            for title, one in told.items():
                shown = [one[name] for name in ("of_known", "of_unknown", "answered", "right")]
                shares = ("" if share is None else f"{100 * share:.1f}" for share in shown)
                backbone = content["trained"]["backbone"]
                rows.append((backbone, each["fitted_to"], title, *shares))
    return markdown(heads, rows, right=True)


def compare_page(load: Load) -> str:
    """Return the page of a comparison, without its title."""
    page = render_markdown(build_page(load("compare"), pictures="figures/"))
    return page.split("\n", 1)[1].strip()


def compare_section(name: str, title: str) -> Callable[[Load], str]:
    """Return one section of the page of a comparison, without its title."""

    def render(load: Load) -> str:
        page = render_markdown(build_page(load(name)))
        return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].strip()

    return render


def pointing_several(load: Load) -> str:
    """Return what several photos of a species give."""
    content = load("pointing")
    heads = ("photos", "R@1", *(f"fitted to {by}" for by in ("gallery", "photos")))
    rows = []
    for each in content["several"]:
        told = [one for one in content["verdicts"] if one["photos"] == each["photos"]]
        words = (
            f"{100 * one['named']:.1f} named, {100 * one['wrong']:.1f} wrong, calibration error "
            f"{one['calibration_error']:.3f}"
            for one in told
        )
        rows.append((str(each["photos"]), f"{100 * each['recall']:.1f}", *words))
    return markdown(heads, rows, right=True)


def pointing_clutter(load: Load) -> str:
    """Return what asks best where a photo lies in clutter."""
    content = load("pointing")
    heads = ("what asks", "training scenes", "test scenes")
    chosen, test = content["chosen_on_training_images"], content["clutter"]
    rows = [
        (f"{name}", f"{100 * chosen[name]:.1f}", f"{100 * test[name]:.1f}")
        for name in ("whole", "boxed")
    ]
    for each in chosen["rules"]:
        used = each["hotter"] == test["hotter"]
        mark = f"**suggested**, {each['hotter']:g}" if used else f"suggested, {each['hotter']:g}"
        shown = f"**{100 * test['suggested']:.1f}**" if used else ""
        rows.append((mark, f"{100 * each['suggested']:.1f}", shown))
    return markdown(heads, rows, right=True)


def pointing_marks(load: Load) -> str:
    """Return what marking hits gives."""
    content = load("pointing")
    heads = ("queries", "step", "neither", "more", "less", "both")
    found = [("training", one) for one in content["chosen_on_training_images"]["away"]]
    found.append(("**test**", content["marked"]))
    rows = [
        (
            f"{name}, {one['queries']}",
            f"{one['away']:g}",
            *(f"{100 * one[way]:.1f}" for way in ("neither", "more", "less", "both")),
        )
        for name, one in found
    ]
    return markdown(heads, rows, right=True)


def knows_audit(load: Load) -> str:
    """Return how many flipped labels an audit names, and how many of those named are flipped."""
    heads = ("backbone", "flips", "flipped", "named", "precision", "recall", "suggestion right")
    rows = []
    for each in load("audit")["rows"]:
        shares = (each[name] for name in ("precision", "recall", "suggestion_right"))
        counts = (f"{each['flipped']:,}", f"{each['named']:,}")
        told = (f"{100 * share:.1f}" for share in shares)
        rows.append((each["backbone"], each["flips"], *counts, *told))
    return markdown(heads, rows, right=True)


def knows_copies(load: Load) -> str:
    """Return how many planted copies were found, by what was done to them."""
    each = load("audit")["rows"][0]["copies"]
    kinds = each["by_kind"]
    share = each["planted"] // len(kinds)
    heads = ("copies", *kinds, "all", "pairs called copies, not planted")
    found = (f"{number} of {share}" for number in kinds.values())
    others = str(len(each["called_copies_and_not_planted"]))
    row = ("found", *found, f"{each['found']} of {each['planted']}", others)
    return markdown(heads, [row], right=True)
