"""Where in an image a match comes from: an image and the code it was matched with in, a map out.

Between the feature maps and the score, PHPQ is linear but for the pooling, and the pooling adds up
over places: rho-pooling of channel c takes the share x^rho / sum x^rho of its value from each. So
the score is a sum over places, channels and levels, which `match_evidence` returns. The heat map
shows what speaks for the match. benchmarks/heatmap.py measures it beside other maps.

Padded strides move the cells of a feature map: cell i of a ResNet with stride 32 looks at pixel 32
i, not at the middle of the 32 pixels from there on. Drawn as if it did, a map is half a cell off.
Paths through a network may differ in this, so it is measured (`cell_offsets`).
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phpq.codes import CodeArray, Codebooks, FloatArray
from phpq.config import DataConfig
from phpq.errors import ShapeError
from phpq.explain.codebooks import check_code

if TYPE_CHECKING:
    from torch import Tensor

    from phpq.model import Model, Network, TorchModel
    from phpq.model.backbone import Backbone

LONGEST_SIDE = 512  # of a heat map, pixels: feature maps are far coarser
DRAWN_SIDE = 384  # longest side of an image with its heat map, pixels
# From cold to hot: ever brighter, so that it can be read without telling colours apart.
_RAMP = ((12, 8, 38), (92, 24, 110), (190, 58, 84), (248, 142, 20), (252, 250, 160))
_COLD, _HOT = 0.25, 0.7  # how much of the ramp covers the image
_PROBE_SIDE = 256  # pixels: a cell in the middle must be far from the borders
_PROBES = 4
_MEASURED: weakref.WeakKeyDictionary[Backbone, tuple[float, ...]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A score as a sum: `constant` and all values of `levels`.

    Levels are (C_i, h_i, w_i), shallow first: what each place of each channel adds, with the
    lengths by which sub-vectors are divided held fixed.
    """

    levels: tuple[FloatArray, ...]
    constant: float  # what the biases add, whatever the image

    def support(self) -> tuple[FloatArray, ...]:
        """Return what speaks for the match at each place: (h_i, w_i) float32 each, 0 or more.

        Not the sum over channels: where one speaks for and another against, something is seen.
        """
        return tuple(np.maximum(level, 0).sum(axis=0) for level in self.levels)


def fuse_levels(
    maps: Sequence[FloatArray], size: tuple[int, int], *, offsets: Sequence[float]
) -> FloatArray:
    """Lay maps (h_i, w_i) of several levels over each other, as densities: each counts by its sum.

    `size` is (height, width) of the result; `offsets` of each level are those of `cell_offsets`.
    """
    total = np.zeros(size, np.float32)
    for values, offset in zip(maps, offsets, strict=True):
        total += lay_out(values, size, offset=offset) * np.float32(values.size)
    return total


def heat_map(
    model: Model,
    image: str | Path | Image.Image,
    *,
    code: CodeArray | None = None,
    codebook: int | None = None,
) -> FloatArray:
    """Show where in a file or an upright image its match with a code comes from.

    For the query of a search give the code (M,) of the hit, for the hit that of the query; without
    one it is the image's own, which shows what its code rests upon. A codebook, from 0, shows its
    share alone. Models are of PHPQ; for other methods see `heat_note`.

    Returns:
        (h, w) float32 in [0, 1] over the whole image, with its aspect ratio; the hottest place is
        1, and what encoding does not see (see `view_box`) is 0.
    """
    from phpq.data import decode_square, read_image
    from phpq.model import Network

    model = _on_torch(model)
    import torch

    config = model.card.config.data
    source = Path(image) if isinstance(image, str) else image
    square = decode_square(source, config)
    if isinstance(source, Path):
        source = read_image(source, max_pixels=config.max_pixels, draft=LONGEST_SIDE)
    width, height = fit_within(source.size, LONGEST_SIDE)
    box = [round(edge) for edge in view_box((width, height), config)]
    left, top = min(box[0], width - 1), min(box[1], height - 1)
    right, bottom = max(box[2], left + 1), max(box[3], top + 1)
    heat = np.zeros((height, width), np.float32)
    offsets = cell_offsets(model.network.backbone)
    if isinstance(model.network, Network):
        maps = match_evidence(model, square, code=code, codebook=codebook).support()
    else:
        with torch.no_grad():
            pyramid = model.network.backbone(_view(model, square))
        # Of several levels, the last may be a class token, which has no places.
        last = -2 if model.network.backbone.has_token and len(pyramid) > 1 else -1
        maps = (pyramid[last][0].float().square().sum(dim=0).cpu().numpy(),)
        offsets = (offsets[last],)
    inside = (bottom - top, right - left)
    heat[top:bottom, left:right] = fuse_levels(maps, inside, offsets=offsets)
    return heat / np.float32(heat.max() or 1)  # nothing speaks for it: all cold


def overlay_png(image: Image.Image, heat: FloatArray) -> bytes:
    """Draw what `heat_map` gave over its upright image; returns a PNG.

    It has the aspect ratio of the image and a longest side of 384 pixels; a smaller image is
    enlarged, or a phone would show the map in blocks.
    """
    if not isinstance(heat, np.ndarray) or heat.ndim != 2 or not heat.size:
        raise ShapeError(f"heat has shape {np.shape(heat)}; expected (h, w), from `heat_map`.")
    factor = DRAWN_SIDE / max(image.size)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    smooth = Image.fromarray(np.ascontiguousarray(heat, np.float32))
    values = np.asarray(smooth.resize(size, Image.Resampling.BILINEAR)).clip(0, 1)  # (h, w)
    stops = np.linspace(0, 1, len(_RAMP))
    colour = np.stack([np.interp(values, stops, channel) for channel in zip(*_RAMP, strict=True)])
    cover = _COLD + (_HOT - _COLD) * values[..., None]
    mixed = np.asarray(small) * (1 - cover) + colour.transpose(1, 2, 0) * cover
    stream = io.BytesIO()
    Image.fromarray(mixed.round().astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def heat_missing(model: Model) -> str:
    """Say why a model has no heat maps; empty if it has."""
    from phpq.model.checkpoint import WEIGHTS
    from phpq.model.onnx_model import OnnxModel

    if not isinstance(model, OnnxModel):
        return ""
    if find_spec("torch") is not None and (model.home / WEIGHTS).is_file():
        return ""
    return (
        f"Heat maps need slopes, and so torch and {WEIGHTS} beside the model: pip install "
        "'phpq[train]'."
    )


def _on_torch(model: Model) -> TorchModel:
    from phpq.model.onnx_model import OnnxModel

    return model.with_torch if isinstance(model, OnnxModel) else cast("TorchModel", model)


def heat_note(model: Model) -> str:
    """Say what the heat maps of a model do not show; empty for PHPQ, whose maps show the match."""
    from phpq.model import Network

    network = _on_torch(model).network
    if isinstance(network, Network):
        return ""
    name = type(network).__name__
    return (
        f"{name} has no pyramid pooling to trace a match through: the heat map shows where its "
        "last feature map is active, and is the same for every match."
    )


def match_evidence(
    model: Model,
    square: NDArray[np.uint8],
    *,
    code: CodeArray | None = None,
    codebook: int | None = None,
) -> Evidence:
    """Take the score of an image, a square (3, S, S) of `decode_square`, and a code apart.

    For code and codebook see `heat_map`.
    """
    from phpq.model import Network

    model = _on_torch(model)
    import torch

    network = model.network
    if not isinstance(network, Network):
        raise TypeError(f"match_evidence needs a PHPQ network, not {type(network).__name__}")
    # Slopes are wanted even where a caller has switched them off.
    with torch.inference_mode(False), torch.enable_grad():
        leaves = _pyramids(model, square)
        query = _fixed_length_query(network, leaves, raw=model.query_norm == "raw")
        if code is None:
            code = model.codebooks.encode(query.detach().flatten()[None].cpu().numpy())[0]
        words = torch.tensor(_codewords(model.codebooks, code, codebook)).to(query)
        score = (query * words).sum()
        flat = [level for pyramid in leaves for level in pyramid]
        slopes = torch.autograd.grad(score, flat)
    parts = [(slope * level.detach())[0] for slope, level in zip(slopes, flat, strict=True)]
    levels, mirrored = parts[: len(leaves[0])], parts[len(leaves[0]) :]
    if mirrored:
        levels = [here + there.flip(-1) for here, there in zip(levels, mirrored, strict=True)]
    arrays = tuple(level.cpu().numpy() for level in levels)
    explained = sum(float(level.sum(dtype=np.float64)) for level in arrays)
    return Evidence(arrays, float(score.detach()) - explained)


def _view(model: TorchModel, square: NDArray[np.uint8]) -> Tensor:
    import torch

    from phpq.data.batches import Views

    return Views(model.card.config.data).encode(torch.tensor(square[None]).to(model.device))


def _pyramids(model: TorchModel, square: NDArray[np.uint8]) -> list[list[Tensor]]:
    """Return the maps (1, C_i, h_i, w_i) of each view that is embedded, as leaves for slopes."""
    import torch

    with torch.no_grad():
        view = _view(model, square)
        views = [view, view.flip(-1)] if model.card.config.data.eval_flip else [view]
        pyramids = [model.network.backbone(one) for one in views]
    return [[level.float().requires_grad_() for level in pyramid] for pyramid in pyramids]


def _fixed_length_query(network: Network, leaves: list[list[Tensor]], *, raw: bool) -> Tensor:
    """Return the query (M, d) that is scored, linear in the pooled maps of its views.

    The true slope of a unit vector is blind to what makes it point where it does: it vanishes the
    closer the image is to its codeword. With the lengths held fixed, parts add up to the score.
    """
    books = network.quantizer.codebooks.shape[0]
    query, *mirrored = (
        network.norm(network.transform(network.pooling(pyramid))).reshape(books, -1)
        for pyramid in leaves
    )
    for view in mirrored:  # at most one: `Network.embed` averages it with the image
        query = (_over_length(query) + _over_length(view)) / 2
    return query if raw else _over_length(query)


def _over_length(vectors: Tensor) -> Tensor:
    lengths = vectors.detach().norm(dim=-1, keepdim=True)
    unit: Tensor = vectors / lengths.clamp(min=1e-12)
    return unit


def _codewords(codebooks: Codebooks, code: CodeArray, codebook: int | None) -> FloatArray:
    """Return (M, d) float32: the codewords of a code, or of one codebook among zeros."""
    chosen = check_code(codebooks, code)
    books = np.arange(codebooks.num_codebooks)
    words: FloatArray = codebooks.codewords[books, chosen]
    if codebook is not None and codebook not in books:
        raise ShapeError(f"codebook={codebook!r} is not there; expected 0 to {books[-1]}.")
    return words if codebook is None else words * (books == codebook)[:, None]


def view_box(size: tuple[int, int], config: DataConfig) -> tuple[float, float, float, float]:
    """Return what encoding sees of an image (width, height): (left, top, right, bottom)."""
    width, height = map(float, size)
    left = top = 0.0
    if config.fit == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        width = height = side
    # In whole pixels of the stored square, as `Views.encode` cuts it.
    kept = max(1, round(config.store_size * config.eval_crop))
    start, share = (config.store_size - kept) // 2 / config.store_size, kept / config.store_size
    left, top = left + start * width, top + start * height
    return left, top, left + share * width, top + share * height


def fit_within(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Shrink (width, height) to a longest side, if it is larger; no side becomes less than 1."""
    factor = min(1.0, longest / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def cell_offsets(backbone: Backbone) -> tuple[float, ...]:
    """Measure where a cell looks, as a share of its stride: 0.5 is the middle, 0 the near edge.

    From the slopes of the cell in the middle by the pixels of noise: an offset in [0, 1] for each
    level, shallow first. The backbone is in evaluation mode. The answer is kept as long as it
    lives; the first call takes as long as embedding some ten images.
    """
    import torch

    if backbone not in _MEASURED:
        some = next(backbone.parameters())
        generator = torch.Generator().manual_seed(0)  # the global one stays as it is
        with torch.inference_mode(False), torch.enable_grad():
            side = _PROBE_SIDE - _PROBE_SIDE % backbone.patch
            noise = torch.rand(_PROBES, 3, side, side, generator=generator)
            pixels = noise.to(some.device).requires_grad_()
            _MEASURED[backbone] = tuple(_offset(pixels, level) for level in backbone(pixels))
    return _MEASURED[backbone]


def lay_out(values: FloatArray, size: tuple[int, int], *, offset: float) -> FloatArray:
    """Draw the cells of a map (h, w) over the image that it was made from, linear in between.

    `size` is (height, width) of the result; an offset of 0.5 is what resizing an image does.
    """
    rows = _weights(values.shape[0], size[0], offset)
    columns = _weights(values.shape[1], size[1], offset)
    drawn: FloatArray = (rows @ values.astype(np.float64) @ columns.T).astype(np.float32)
    return drawn


def _weights(cells: int, pixels: int, offset: float) -> NDArray[np.float64]:
    """Return (pixels, cells) float64 whose rows add up to 1."""
    # In units of cells; cell i is drawn at i + offset, and beyond the outer ones it is flat.
    places = (np.arange(pixels) + 0.5) * cells / pixels - offset
    places = places.clip(0, cells - 1)
    low = np.minimum(places.astype(np.int64), max(cells - 2, 0))
    weights = np.zeros((pixels, cells))
    weights[np.arange(pixels), low] = 1 - (places - low)
    weights[np.arange(pixels), np.minimum(low + 1, cells - 1)] += places - low
    return weights


def _offset(pixels: Tensor, level: Tensor) -> float:
    import torch

    cell = level.shape[-1] // 2
    stride = pixels.shape[-1] / level.shape[-1]
    target = level[:, :, level.shape[-2] // 2, cell].abs().sum()
    (slopes,) = torch.autograd.grad(target, pixels, retain_graph=True)
    # Squared: the middle of what it looks at most, not of the wide rim that it hardly sees.
    weights = slopes.double().square().sum(dim=1)  # (B, H, W)
    places = torch.arange(pixels.shape[-1], device=pixels.device, dtype=torch.float64)
    total = weights.sum(dim=(1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
    # Backbones treat rows and columns alike: both measure the same.
    seen = (weights.sum(dim=2) @ places + weights.sum(dim=1) @ places) / (2 * total)
    return float(np.clip((float(seen.mean()) + 0.5) / stride - cell, 0.0, 1.0))
