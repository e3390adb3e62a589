"""Sentences with numbers, and where the numbers come from.

A claim is a piece of a page with `{}` for each number. Whatever stands there is compared with, or
replaced by, what the data say. README may have no number outside of claims, tables and examples but
those of `NO_MEASUREMENT`: names, settings and references.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from render_tables import BITS, CARRIED, Load, means

from phpq.config import RECIPES, RunConfig
from phpq.reproduce.paper import PAPER

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


@dataclass(frozen=True)
class Claim:
    """A piece of text, and what returns its numbers as they are printed."""

    text: str
    numbers: Callable[[Load], Sequence[str]]

    def renew(self, page: str, load: Load) -> str:
        """Write the numbers that the data give; the words must stand in the page once."""
        found, numbers = self._find(page), self.numbers(load)
        if len(numbers) != self.text.count("{}"):
            raise ValueError(f"The claim {self.text!r} has other than {len(numbers)} numbers.")
        return _replace(page, found, numbers)

    def blanked(self, page: str) -> str:
        """Take the numbers of this claim out of a page; a page without it stays as it is."""
        try:
            return _replace(page, self._find(page), [""] * self.text.count("{}"))
        except ValueError:
            return page

    def _find(self, page: str) -> re.Match[str]:
        words = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.text.split("{}")]
        found = list(re.finditer(f"({NUMBER})".join(words), page))
        if len(found) != 1:
            raise ValueError(f"The claim {self.text!r} stands here {len(found)} times, not once.")
        return found[0]


def _replace(page: str, found: re.Match[str], numbers: Sequence[str]) -> str:
    for group in reversed(range(len(numbers))):
        start, end = found.span(group + 1)
        page = page[:start] + numbers[group] + page[end:]
    return page


def _installed(load: Load) -> list[str]:
    (megabytes,) = (row["MB"] for row in load("laptop")["install"] if row["package"] == "all")
    return [f"{megabytes / 1000:.1f}"]


def _recipe(load: Load) -> list[str]:
    """Return what README says of the default recipe; that each part is on is checked too."""
    config = RunConfig()
    parts = {
        "second cross-entropy": config.loss.embedding_weight > 0,
        "batch norm": config.model.embedding_norm == "batch",
        "k-means": config.quantizer.init == "kmeans",
        "averaged weights": config.training.ema_decay > 0,
        "label smoothing": config.loss.label_smoothing > 0,
    }
    if not all(parts.values()):
        raise ValueError(f"The default recipe has no longer: {[p for p in parts if not parts[p]]}.")
    own = (config.training.head_rate_factor, config.data.eval_size, config.quantizer.alpha)
    alphas = PAPER["cub200"]["alpha"]
    (paper,) = (
        name.split("-")[1]
        for name in alphas.rows
        if alphas.meant(name, 16) == PAPER["cub200"]["table1"].meant("phpq", 16)
    )
    return [*(f"{value:g}" for value in own), paper]


def _literally(load: Load) -> list[str]:
    found = load(CARRIED)["values"]["paper_read_literally"]
    epochs = found["epochs"]
    return [
        *(f"{value:.1f}" for value in found["map"].values()),
        str(epochs["16"]),
        str(epochs["32"]),
    ]


def _training(load: Load) -> list[str]:
    rows = load("cub200")["speed"]["rows"]
    ours, plain = rows["cuda graph (default)"], rows["plain loop"]
    return [
        f"{ours['epochs']}",
        f"{ours['seconds_training']:.0f}",
        f"{ours['images_per_second']:,.0f}",
        f"{ours['images_per_second'] / plain['images_per_second']:.2f}",
    ]


def _embedding(load: Load) -> list[str]:
    return [f"{4 * load('cub200')['config']['model']['embedding_dim']:,}"]


def _other_sets(load: Load) -> list[str]:
    """Return MAP at 32 bits of the sets in the order of README, and how far P@1 lies apart."""
    runs = load("other-sets")["runs"]
    names = (
        "Grocery Store",
        "Oxford Flowers",
        "Oxford-IIIT Pets",
        "Stanford Cars",
        "Stanford Dogs",
    )
    maps = []
    for name in names:
        (run,) = (r for r in runs if r["data"].startswith(name) and r["bits"] == 32)
        maps.append(f"{run['map']:.1f}")
    return [*maps, f"{max(abs(run['p1'] - run['float_p1']) for run in runs):.1f}"]


def _table1(load: Load) -> list[str]:
    """Return PHPQ and the next best rows of Table 1, which must be those that README names."""
    table = load("table1-cub200")
    rows = {row["name"]: row for row in table["rows"]}

    def mean(name: str, bits: str) -> float:
        return float(statistics.mean(rows[name]["cells"][bits]["seeds"].values()))

    def next_best(bits: str, name: str) -> str:
        encoded = [n for n, r in rows.items() if r["database"] == "encoded" and n != "phpq"]
        best = max(encoded, key=lambda one: mean(one, bits))
        if best != name:
            raise ValueError(f"Next to PHPQ at {bits} bits is {best}, and not {name}.")
        return f"{mean(name, bits):.1f}"

    ours = [f"{mean('phpq', bits):.1f}" for bits in BITS]
    pqn = [next_best(bits, "pqn") for bits in ("16", "32")]
    adsh = [next_best(bits, "adsh-encoded") for bits in ("48", "64")]
    (epochs,) = table["epochs"]
    return [str(epochs), *ours, *pqn, *adsh, f"{mean('adsh', '64'):.1f}"]


def _no_gain(load: Load) -> list[str]:
    """Check that some plain pooling is as good as the pyramid's, at every code length."""
    table = load("variants-cub200")
    plain = [row["cells"] for row in table["rows"] if row["name"] in ("last-fc", "gap", "gmp")]
    for bits in map(str, table["bits"]):
        if max(cells[bits]["delta"] for cells in plain) < 0:
            raise ValueError(f"At {bits} bits the pyramid of poolings does gain.")
    if len(table["seeds"]) != 1:
        raise ValueError("The variants have several seeds now.")
    return []


def _later_epoch(load: Load) -> list[str]:
    runs = load("cub200")["runs"]
    return [f"{max(run['best_map'] - run['map'] for run in runs):.2f}"]


def _flips(load: Load) -> list[str]:
    pairs = zip(means(load, "flip_map"), means(load, "map"), strict=True)
    gains = [flipped - plain for flipped, plain in pairs]
    return [f"{min(gains):.1f}", f"{max(gains):.1f}"]


def _unused(load: Load) -> list[str]:
    """Return the codewords that no image of the gallery has, of all there are."""
    numbers = []
    words = load("cub200")["config"]["quantizer"]["codebook_size"]
    for run in [run for run in load("cub200")["runs"] if run["seed"] == 0]:
        numbers += [str(run["dead_codewords"]), f"{words * run['bits'] // 8:,}"]
    return numbers


def _above_float(load: Load) -> list[str]:
    gains = [run["map"] - run["float_map"] for run in load("other-sets")["runs"]]
    return [f"{min(gains):.1f}", f"{max(gains):.1f}"]


def _methods(load: Load) -> list[str]:
    if len(RECIPES) - 1 != 17:
        raise ValueError(f"There are {len(RECIPES) - 1} other methods.")
    return []


def _grouping(load: Load) -> list[str]:
    """Return what grouping equal codes alone leaves to gain, 10 million rows, 4 and 8 bytes."""
    rows = load("search")["beside_distinct_codes_and_rabitq"]["results"]
    ratios = {
        row["m"]: row["distinct_ratio"]
        for row in rows
        if (row["codes"], row["classes"], row["rows"]) == ("learned", 10_000, 10**7)
    }
    return [f"{ratios[m]:.0f}" for m in (4, 8)]


def _own_codebooks(load: Load) -> list[str]:
    """Return the least and most times IndexPQ at 10 million rows, with labels and without."""
    rows = load("search")["beside_distinct_codes_and_rabitq"]["results"]
    found = []
    for codes in ("labelled", "new kinds"):
        ratios = [r["ratio"] for r in rows if (r["codes"], r["rows"]) == (codes, 10**7)]
        found += [f"{min(ratios):.0f}", f"{max(ratios):.0f}"]
    return found


def _tuned(load: Load) -> list[str]:
    """Return what codes and floats of a tuned network find, and floats of the frozen one."""
    rows = {row["name"]: row for row in load("compare-tuned")["rows"]}
    found = []
    for name, keys in (
        ("phpq 8 bytes, model's codebooks", ("r1", "map")),
        ("phpq 8 bytes, gallery's codebooks", ("unseen_r1", "unseen_map")),
        ("float search, frozen trunk", ("r1", "map", "unseen_r1", "unseen_map")),
        ("phpq 8 bytes, gallery's codebooks, with its labels", ("map", "unseen_map")),
        ("class means, then list, general embedding", ("map", "unseen_map")),
    ):
        found += [f"{rows[name][key]:.1f}" for key in keys]
    return found


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "README.md": (
        Claim("on onnxruntime and in {} GB", _installed),
        Claim(
            "head that learns {} times as fast, encoding at {} px, and alpha {} (the paper: {})",
            _recipe,
        ),
        Claim(
            "gave MAP {} / {} / {} at 16 / 32 / 64 bits (a plain implementation, one seed, {} "
            "epochs, {} at 32 bits)",
            _literally,
        ),
        Claim("pyramid of poolings shows no gain over plain pooling", _no_gain),
        Claim("Embeddings take {} bytes per image.", _embedding),
        Claim(
            "The {} epochs take {} s on one H200, {} images/s, {} times a plain PyTorch loop",
            _training,
        ),
        Claim(
            "groceries {}, flowers {}, pets {}, cars {} and dogs {} in 32 bits, P@1 within {} "
            "points of float search",
            _other_sets,
        ),
        Claim("`IndexPQ` over each code once is {} and {} times slower than ours", _grouping),
        Claim(
            "codes of eight bytes by codebooks of the gallery's own are found {} to {} times as "
            "fast as by `IndexPQ` with labels, {} to {} times without",
            _own_codebooks,
        ),
        Claim(
            "In the same {} epochs, mean of three seeds, PHPQ reaches {} / {} / {} / {} at 16 / 32 "
            "/ 48 / 64 bits; the next best that encodes its gallery from pixels is PQN at 16 and "
            "32 bits ({} / {}) and ADSH at 48 and 64 ({} / {}). ADSH with gallery codes learned "
            "from labels is level with it at 64 bits ({}).",
            _table1,
        ),
        Claim("Seventeen other methods", _methods),
    ),
    "docs/results/cub200.md": (
        Claim("the two exceeds the last by {} at most", _later_epoch),
        Claim("on both sides of the search. It adds {} to {} points", _flips),
        Claim("seed 0: {} of {}, {} of {}, {} of {} and {} of {} codewords unused", _unused),
    ),
    "docs/results/compare.md": (
        Claim(
            "codes of 8 bytes have R@1 {} and MAP {} for learned species (the model's codebooks), "
            "R@1 {} and MAP {} for unseen ones (the gallery's own); float search over the frozen "
            "trunk {} and {}, {} and {}. With the gallery's labels they have MAP {} and {}; class "
            "means over the same embedding, and a list of the class, {} and {}",
            _tuned,
        ),
    ),
    "docs/results/other-sets.md": (Claim("on every set, by {} to {} points", _above_float),),
}

# Numbers of README that nobody measured.
NO_MEASUREMENT = (
    "at 32 and 64 bits",
    "codes of 16 to 64 bits",
    "CUB-200-2011",
    "ResNet-18",
    "one H200",
    "P@1",
    "top-100 of 10 million learned-like codes of 10,000 classes",
    "at 16 / 32 / 64 bits",
    "at 32 bits",
    "in 32 bits",
    "at 16 / 32 / 48 / 64 bits",
    "at 16 and 32 bits",
    "at 48 and 64",
    "at 64 bits",
    "Pattern Recognition Letters 178 (2024)",
    "arXiv 2109.05206",
    "Apache 2.0",
)


def unused_exceptions(readme: str) -> list[str]:
    """Return exceptions that README does not need any more."""
    plain = " ".join(readme.split())
    return [phrase for phrase in NO_MEASUREMENT if phrase not in plain]
