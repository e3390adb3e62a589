"""Which heat map finds the marks of drawn birds, and which explains the score?

    python benchmarks/heatmap.py                              # trains the demo's model, minutes
    python benchmarks/heatmap.py --run demo/runs/32 --seed 0  # a run of `phpq demo --seed 0`

Every query is explained with the code of its first hit. Measured against the places of the marks,
which are known: the area under the ROC curve over all pixels (AUC) and over the hull of the marks,
about the bird, only (on bird), and how often the hottest pixel is on a mark (pointing). Without
marks: which share of the score is lost when the hottest tenth of the pixels is painted over with
the colours around it (score lost). A map that is the same for every image can be good at the first
three, since birds stand in the middle; it cannot be at the last.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from provenance import provenance
from scipy.ndimage import distance_transform_edt
from scipy.spatial import ConvexHull
from scipy.stats import rankdata

from phpq.codes import CodeArray, FloatArray, score_codes
from phpq.data import Dataset, LabelledImages, decode_square, mark_mask
from phpq.data.batches import Views
from phpq.demo import FULL
from phpq.explain.heatmap import Evidence, cell_offsets, fuse_levels, match_evidence
from phpq.model import Network, TorchModel, build_method, load
from phpq.training import train_run

Mask = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
BITS = 32
HIDDEN = 0.1  # share of the pixels that is painted over


@dataclass(frozen=True)
class Query:
    """One image to explain.

    Attributes:
        pixels: (3, S, S) uint8.
        code: (M,) uint8 of the first hit.
        other_code: (M,) uint8 of the first hit of another query.
        marks: (S, S) bool.
    """

    pixels: Pixels
    code: CodeArray
    other_code: CodeArray
    marks: Mask


@dataclass(frozen=True)
class Row:
    """What one kind of map is worth, each a mean over the queries."""

    name: str
    auc: float
    auc_on_bird: float
    pointing: float
    score_lost: float


Heat = NDArray[np.floating[Any]]
Maker = Callable[[Query], Heat]


def area_under_curve(values: Heat, mask: Mask) -> float:
    """Return the chance that a pixel of the mask is hotter than one outside, ties halved."""
    ranks = rankdata(values.ravel())
    inside = int(mask.sum())
    wins = ranks[mask.ravel()].sum() - inside * (inside + 1) / 2
    return float(wins / (inside * (mask.size - inside)))


def paint_over(pixels: Pixels, mask: Mask) -> Pixels:
    """Give every pixel of the mask the colour of the nearest one outside."""
    nearest = distance_transform_edt(mask, return_distances=False, return_indices=True)
    return pixels[:, nearest[0], nearest[1]]


def hull_of(mask: Mask) -> Mask:
    """Return the convex hull of a mask."""
    points = np.argwhere(mask)[:, ::-1]
    corners = points[ConvexHull(points).vertices]
    image = Image.new("1", mask.shape[::-1])
    ImageDraw.Draw(image).polygon([(int(x), int(y)) for x, y in corners], fill=1)
    return np.asarray(image, np.bool_) | mask


def pooling_shares(model: TorchModel, query: Query) -> tuple[FloatArray, ...]:
    """Return x^rho / sum x^rho over places, added over channels: (h_i, w_i) a level; no code."""
    network = phpq_network(model)
    with torch.no_grad():
        view = Views(model.card.config.data).encode(torch.tensor(query.pixels[None]))
        levels = network.backbone(view)
        powers = [
            level[0].clamp(min=1e-6).pow(rho)
            for level, rho in zip(levels, network.pooling.rho, strict=True)
        ]
        return tuple((p / p.sum((1, 2), keepdim=True)).mean(0).numpy() for p in powers)


def true_slopes(model: TorchModel, query: Query) -> tuple[FloatArray, ...]:
    """Return the support by the slope of the unit query, whose lengths are not held fixed."""
    network = phpq_network(model)
    words = torch.tensor(model.codebooks.decode(query.code[None]))
    with torch.no_grad():
        view = Views(model.card.config.data).encode(torch.tensor(query.pixels[None]))
        levels = network.backbone(view)
    leaves = [level.clone().requires_grad_() for level in levels]
    embedding = network.norm(network.transform(network.pooling(leaves)))
    score = (network.quantizer.split(embedding).flatten(1) * words).sum()
    slopes = torch.autograd.grad(score, leaves)
    parts = [(slope * leaf.detach())[0] for slope, leaf in zip(slopes, leaves, strict=True)]
    return tuple(part.clamp(min=0).sum(0).numpy() for part in parts)


def phpq_network(model: TorchModel) -> Network:
    """Return the network of a model of PHPQ."""
    if not isinstance(model.network, Network):
        raise SystemExit(f"{type(model.network).__name__} has no pooling to explain.")
    return model.network


def makers(model: TorchModel, train: LabelledImages) -> dict[str, Maker]:
    """Return every kind of map, by name."""
    side = model.card.config.data.store_size
    offsets = cell_offsets(model.network.backbone)
    depth = len(offsets)
    torch.manual_seed(0)
    untrained = build_method(model.card.config, len(model.class_names))
    blank = TorchModel(untrained, model.card, device=torch.device("cpu"), epochs=0)
    rng = np.random.default_rng(0)
    middle = np.arange(side) - (side - 1) / 2
    centre = -np.add.outer(middle**2, middle**2)
    usual = np.mean([mark_mask(train, row) for row in range(0, len(train), 4)], axis=0)

    def evidence(query: Query) -> Evidence:
        return match_evidence(model, query.pixels, code=query.code)

    def fused(maps: tuple[FloatArray, ...], at: tuple[float, ...] = offsets) -> FloatArray:
        return fuse_levels(maps, (side, side), offsets=at)

    def level(number: int) -> Maker:
        return lambda q: fused((evidence(q).support()[number],), (offsets[number],))

    found: dict[str, Maker] = {
        "chance": lambda q: rng.random((side, side)),
        "middle of the image": lambda q: centre,
        "where marks usually are": lambda q: usual,
        "pooling shares, no code": lambda q: fused(pooling_shares(model, q)),
        "evidence, for less against": lambda q: fused(
            tuple(part.sum(0) for part in evidence(q).levels)
        ),
        "evidence, for plus against": lambda q: fused(
            tuple(np.abs(part).sum(0) for part in evidence(q).levels)
        ),
        "support, lengths not fixed": lambda q: fused(true_slopes(model, q)),
        "support, cells not aligned": lambda q: fused(evidence(q).support(), (0.5,) * depth),
        "support, another hit's code": lambda q: fused(
            match_evidence(model, q.pixels, code=q.other_code).support()
        ),
        "support, untrained network": lambda q: fused(
            match_evidence(blank, q.pixels, code=q.code).support()
        ),
    }
    found |= {f"support, level {number + 1} alone": level(number) for number in range(depth)}
    found["support (heat_map)"] = lambda q: fused(evidence(q).support())
    found["the marks themselves"] = lambda q: q.marks + 1e-3 * rng.random((side, side))
    return found


def read_queries(model: TorchModel, birds: Dataset, count: int) -> list[Query]:
    """Search with `count` test images, spread over the species."""
    config = model.card.config.data
    if config.store_size != birds.test.read(0).width or config.eval_crop != 1:
        raise SystemExit("The run must see whole images at the size of the drawn birds.")
    gallery = model.encode(birds.train)
    rows = np.linspace(0, len(birds.test) - 1, min(count, len(birds.test))).astype(int)
    pixels = [decode_square(birds.test.read(int(row)), config) for row in rows]
    tables = model.codebooks.lookup_tables(
        model.embed_pixels(np.stack(pixels)), norm=model.query_norm
    )
    hits = gallery[score_codes(tables, gallery).argmax(axis=1)]
    others = np.roll(hits, len(hits) // 2, axis=0)
    return [
        Query(one, hit, other, mark_mask(birds.test, int(row)))
        for one, hit, other, row in zip(pixels, hits, others, rows, strict=True)
    ]


def scores_of(model: TorchModel, queries: list[Query], pixels: list[Pixels]) -> FloatArray:
    """Score images, shown as they are in `pixels`, with the codes of the queries: (Q,)."""
    embeddings = model.embed_pixels(np.stack(pixels))
    tables = model.codebooks.lookup_tables(embeddings, norm=model.query_norm)
    pairs = zip(tables, queries, strict=True)
    return np.array([score_codes(t[None], q.code[None])[0, 0] for t, q in pairs])


def measure(name: str, maker: Maker, model: TorchModel, queries: list[Query]) -> Row:
    """Measure one kind of map."""
    maps = [maker(query) for query in queries]
    hulls = [hull_of(query.marks) for query in queries]
    hidden = [
        paint_over(query.pixels, heat >= np.quantile(heat, 1 - HIDDEN))
        for query, heat in zip(queries, maps, strict=True)
    ]
    before = scores_of(model, queries, [query.pixels for query in queries])
    after = scores_of(model, queries, hidden)
    pairs = list(zip(maps, queries, strict=True))
    on_bird = [
        area_under_curve(heat[hull], query.marks[hull])
        for (heat, query), hull in zip(pairs, hulls, strict=True)
    ]
    return Row(
        name=name,
        auc=float(np.mean([area_under_curve(heat, query.marks) for heat, query in pairs])),
        auc_on_bird=float(np.mean(on_bird)),
        pointing=float(np.mean([query.marks.flat[heat.argmax()] for heat, query in pairs])),
        score_lost=float((before - after).mean() / before.mean()),
    )


def main() -> None:
    """Measure every kind of map and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, help="of `phpq demo`; by default a new one is trained")
    parser.add_argument("--seed", type=int, default=5, help="of the birds and of the training")
    parser.add_argument("--images", type=int, default=150, help="how many queries to explain")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small to share
    birds = FULL.draw(options.seed)
    if options.run is None:
        with tempfile.TemporaryDirectory() as folder:
            config = FULL.config(BITS, seed=options.seed)
            model = train_run(birds, config, Path(folder) / "run", device="cpu")
    else:
        model = load(options.run, device="cpu", runtime="torch")
    queries = read_queries(model, birds, options.images)
    rows = [
        measure(name, maker, model, queries) for name, maker in makers(model, birds.train).items()
    ]
    if options.json:
        about = {"made": provenance(options), "queries": len(queries), "bits": model.bits}
        print(json.dumps(about | {"maps": [asdict(row) for row in rows]}, indent=2))
        return
    print(f"{len(queries)} queries, {model.bits} bits, birds of seed {options.seed}")
    print(f"{'map':<30}{'AUC':>7}{'on bird':>9}{'pointing':>10}{'score lost':>12}")
    for row in rows:
        numbers = (
            f"{row.auc:>7.3f}{row.auc_on_bird:>9.3f}{row.pointing:>10.1%}{row.score_lost:>12.1%}"
        )
        print(f"{row.name:<30}{numbers}")


if __name__ == "__main__":
    main()
