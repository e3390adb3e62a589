"""Embeddings of random crops of real images, from which the tables of real codes are fitted.

    python benchmarks/crops.py cub200:DIR OUT --learned RUN --general RUN2 --crops 3

Two runs over one frozen backbone (`phpq train --trainable head`) go in: RUN learned all classes of
the data set, RUN2 some of them (`--hold-out-classes 0.5`). Each image of a class that RUN2 never
saw is cut as training cuts it (the share of the area, the aspect and the mirror of the settings),
and each cut passes the backbone once, as an image of a gallery does, and once mirrored. Out come

    OUT/learned.npz   what RUN makes of each cut and of its mirror image, for learned_codes.py
    OUT/general.npz   the general embedding of RUN2, of classes new to it, for additive_codes.py

both with `embeddings` (images, crops, D) float16 and `labels` (images,), the first with the run's
`codebooks`. What has passed the backbone is kept in OUT: a call that was stopped goes on. With
--most fewer images are taken, spread over all classes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import phpq
from phpq.config import DataConfig
from phpq.data import LabelledImages, decode_square, open_dataset
from phpq.data.batches import Views, draw_augmentations
from phpq.data.decode import read_ahead
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.retrieval import TorchModel

Sources = list[tuple[LabelledImages, int]]
_BLOCK = 8  # images whose crops pass the backbone at once
_STRIDE = 12  # images are taken in steps, so that the first ones are of all classes


def cut_out(square: NDArray[np.uint8], parameters: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Cut a square (3, S, S) uint8 by one row of `draw_augmentations`, enlarged to (3, S, S).

    Colours stay as they are.
    """
    side = square.shape[1]
    x, y, width, height = (parameters[:4] * side).tolist()
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    inside = tuple(min(max(edge, 0.0), float(side)) for edge in box)
    image = Image.fromarray(square.transpose(1, 2, 0))
    image = image.resize((side, side), Image.Resampling.BICUBIC, box=inside)
    if parameters[4] < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def backbone_rows(
    frozen: FrozenPart, sources: Sources, config: DataConfig, *, crops: int, kept: Path
) -> NDArray[np.float16]:
    """Pass crops and their mirror images through a frozen backbone: (images, crops, 2, F).

    It goes on where a call before it stopped.
    """
    shape = (len(sources), crops, 2, frozen.feature_dims[0])
    if kept.is_file():
        rows = np.lib.format.open_memmap(kept, mode="r+")
        if rows.shape[1:] != shape[1:] or len(rows) < len(sources):
            raise SystemExit(f"{kept} has the shape {rows.shape}, not {shape}: remove it.")
    else:
        rows = np.lib.format.open_memmap(kept, mode="w+", dtype=np.float16, shape=shape)

    def read(number: int) -> NDArray[np.uint8]:
        images, row = sources[number]
        square = decode_square(images.path(row) or images.read(row), config)
        drawn = draw_augmentations(np.random.default_rng(number), crops, config)
        return np.stack([cut_out(square, each) for each in drawn])

    starts = range(0, len(sources), _BLOCK)
    blocks = [range(first, min(first + _BLOCK, len(sources))) for first in starts]
    left = [numbers for numbers in blocks if not rows[numbers[-1]].any()]
    squares = read_ahead((number for numbers in left for number in numbers), read, ahead=2 * _BLOCK)
    start = time.monotonic()
    for place, numbers in enumerate(left, 1):
        pixels = np.concatenate([next(squares) for _ in numbers])
        images = Views(config).encode(torch.from_numpy(pixels))
        both = torch.stack([frozen.features(images), frozen.features(images.flip(-1))], 1).numpy()
        rows[numbers.start : numbers.stop] = both.reshape(-1, *shape[1:])
        if place % 10 == 0 or place == len(left):
            rows.flush()
            speed = place * _BLOCK * crops / (time.monotonic() - start)
            print(f"{place} of {len(left)} blocks, {speed:.1f} crops a second", flush=True)
    return rows[: len(sources)]


@torch.no_grad()
def learned_embeddings(model: TorchModel, rows: NDArray[np.float16]) -> NDArray[np.float16]:
    """Turn rows (images, n, F) of the backbone into what a run embeds: (images, n, D)."""
    parts = [
        model.network.embed(torch.from_numpy(part.copy()).float().flatten(0, 1)).half().numpy()
        for part in np.array_split(rows, max(1, len(rows) // 256))
    ]
    return np.concatenate(parts).reshape(*rows.shape[:2], -1)


@torch.no_grad()
def general_embeddings(model: TorchModel, rows: NDArray[np.float16]) -> NDArray[np.float16]:
    """Turn rows (images, crops, 2, F), of crops and mirror images, into (images, crops, E)."""
    general = model.general
    parts = []
    for part in np.array_split(rows, max(1, len(rows) // 256)):
        features = torch.from_numpy(part.copy()).float()[..., -len(general.mean) :]
        white = torch.nn.functional.normalize((features - general.mean) @ general.projection, dim=3)
        parts.append(torch.nn.functional.normalize(white.sum(2), dim=2).half().numpy())
    return np.concatenate(parts)


def same_backbones(one: TorchModel, other: TorchModel) -> bool:
    """Say whether two runs froze the same weights."""
    state, wanted = (model.network.backbone.state_dict() for model in (one, other))
    return state.keys() == wanted.keys() and all(torch.equal(state[k], wanted[k]) for k in state)


def main() -> None:
    """Embed crops and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="as of phpq train")
    parser.add_argument("out", type=Path)
    parser.add_argument("--learned", type=Path, help="run that learned all classes")
    parser.add_argument("--general", type=Path, required=True, help="run that learned some")
    parser.add_argument("--crops", type=int, default=3)
    parser.add_argument("--most", type=int, help="images; all if it is not given")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    half = phpq.load(options.general, device="cpu", runtime="torch")
    assert isinstance(half, TorchModel)
    # Always bfloat16, not only where it happens to be faster: a call may go on elsewhere.
    frozen = replace(freeze_network(half.network, half.card.config), half=True)
    dataset = open_dataset(options.source)
    sources = [
        (images, row)
        for images in (dataset.train, dataset.test)
        for row, label in enumerate(images.labels.tolist())
        if dataset.class_names[label] not in half.class_names
    ]
    sources = [each for start in range(_STRIDE) for each in sources[start::_STRIDE]][: options.most]
    config, kept = half.card.config.data, options.out / "rows.npy"
    rows = backbone_rows(frozen, sources, config, crops=options.crops, kept=kept)
    labels = np.array([images.labels[row] for images, row in sources])
    found: dict[str, dict[str, Any]] = {"general": {"embeddings": general_embeddings(half, rows)}}
    if options.learned is not None:
        whole = phpq.load(options.learned, device="cpu", runtime="torch")
        if not same_backbones(whole, half):
            raise SystemExit(f"{options.learned} and {options.general} froze different backbones.")
        whole.network.backbone.feature_layouts = half.network.backbone.feature_layouts
        embeddings = learned_embeddings(whole, rows.reshape(len(labels), -1, rows.shape[3]))
        books = whole.codebooks.codewords
        found["learned"] = {"embeddings": embeddings, "codebooks": books}
    for name, content in found.items():
        np.savez(options.out / f"{name}.npz", labels=labels, **content)
        print(f"{options.out / name}.npz: {content['embeddings'].shape}")


if __name__ == "__main__":
    main()
