"""Where a network is cut: a frozen stem, and what learns from the rows that the stem makes.

    cut = cut_network(network, config)    freezes the stem's share of the network
    rows = cut.stem(images)               (B, F) float16, computed once and kept
    network.extract(rows.float())         goes on from there, as if the images came all the way

"head" keeps the pyramid, pooled where the method only pools it, and the features of the general
embedding; "last" keeps the map before the last stage, and what is pooled of those before it.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from phpq.config import RunConfig
from phpq.errors import ConfigError
from phpq.model.backbone import Backbone, Layout
from phpq.model.general import build_trunk, describe_pyramid, stored
from phpq.model.method import Method

HALF_GAIN = 1.25  # bfloat16 on a processor must be that much faster: many only imitate it


@dataclass(frozen=True)
class Cut:
    """A frozen stem, on the device of the network that it was cut from."""

    trunk: Backbone  # a copy of the network's, made fast
    network: Method
    part: Literal["head", "last"]  # that learns
    described: int  # levels that the general embedding looks at
    sizes: tuple[int, int]  # sides of an image as it is encoded, and as it is learned from
    half: bool = False  # compute in bfloat16

    @property
    def device(self) -> torch.device:
        """Where the stem computes."""
        return next(self.network.parameters()).device

    @torch.no_grad()
    def stem(self, images: Tensor) -> Tensor:
        """Return the rows (B, F) float16 of pixels (B, 3, H, W) in [0, 1], or of other rows."""
        return torch.cat([one.flatten(1) for one in self._kept(images)], 1).half()

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """F of an image as it is encoded, and as it is learned from; the network then knows them.

        Pooled features are learned from as they are encoded.
        """
        encoded = self._measure(self.sizes[0])
        return encoded, encoded if self.part == "head" else self._measure(self.sizes[1])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that a row depends on, but for the image."""
        backbone, model = self.network.backbone, self.network.setup.model
        settings = (
            *(self.part, self.half, self.sizes[0], model.rho, model.rho_mode, model.pooling),
            *(model.blocks, model.image_size, model.pixel_mean, model.pixel_std),
        )
        digest = hashlib.sha256(repr(settings).encode())
        for name, value in sorted(backbone.state_dict().items()):
            if self.part == "head" or not backbone.in_last_stage(name):
                digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _measure(self, size: int) -> int:
        with torch.no_grad():
            kept = self._kept(torch.zeros(1, 3, size, size, device=self.device))
        length = sum(one.numel() for one in kept)
        maps = tuple(tuple(one.shape[1:]) for one in kept if one.ndim == 4)
        self.network.backbone.layouts[length] = Layout(maps, ends=self.part == "head")
        return length

    def _kept(self, images: Tensor) -> list[Tensor]:
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            pyramid = [level.float() for level in self.trunk(images)]
        levels = self.network.backbone.levels
        if self.part == "head":
            kept = self.network.compress(pyramid[-levels:])
            return [*kept, describe_pyramid(pyramid[-self.described :], token=self.trunk.has_token)]
        # The deepest level is not known yet; anything may stand for it, since it is not kept.
        kept = self.network.compress([*pyramid, pyramid[-1]][-levels:])
        return [*kept[:-2], pyramid[-1]]


@torch.no_grad()
def cut_network(network: Method, config: RunConfig) -> Cut:
    """Freeze what does not learn by `training.trainable`, "head" or "last"; return the stem.

    Frozen matrices and kernels are rounded as the file of the general embedding has them: its trunk
    is then the same, and rows of the one are those of the other.
    """
    part, backbone = config.training.trainable, network.backbone
    assert part != "all"
    _check(network, config)
    learns = {
        name: part == "last" and backbone.in_last_stage(name) for name in backbone.state_dict()
    }
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(learns[name])
    state = backbone.state_dict()
    backbone.load_state_dict({k: v if learns[k] else stored(v) for k, v in state.items()})
    described = min(2, config.model.levels)
    levels = max(backbone.levels, 2 if part == "last" else described)
    trunk = build_trunk(config.model, levels=levels, load_weights=False)
    trunk.load_state_dict(backbone.state_dict())
    if part == "last":
        for name in trunk.last_stage:
            del cast(nn.ModuleDict, trunk.pyramid)[name]
    device = next(network.parameters()).device
    trunk = trunk.to(device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
    with suppress(Exception):  # what cannot be traced stays as it is, and is only slower
        trunk.pyramid = fuse(trunk.pyramid)
    sizes = (config.data.eval_size, config.data.crop_size)
    cut = Cut(trunk, network, part, described, sizes)
    if config.training.precision == "auto":
        cut = replace(cut, half=device.type == "cuda" or _half_is_faster(cut))
    else:
        cut = replace(cut, half=config.training.precision == "bf16")
    _ = cut.lengths
    return cut


def _check(network: Method, config: RunConfig) -> None:
    part, name = config.training.trainable, config.method.name
    if network.needs_pixels:
        raise ConfigError(
            f"training.trainable={part!r} does not suit the method {name!r}, which looks at parts "
            "of the images again. Use 'all'."
        )
    if config.data.eval_flip:
        raise ConfigError(
            f"data.eval_flip=true is not allowed with training.trainable={part!r}, which keeps no "
            "mirror images. Use 'all', or leave data.eval_flip=false."
        )
    if part == "last" and not network.backbone.last_stage:
        raise ConfigError(
            "training.trainable='last' needs a backbone whose stages follow each other, as those "
            f"of resnet18 or convnext_tiny, not {config.model.backbone!r}. Use 'head' or 'all'."
        )


def _half_is_faster(cut: Cut) -> bool:
    images = torch.rand(4, 3, cut.sizes[0], cut.sizes[0])
    seconds = []
    for half in (False, True):
        way = replace(cut, half=half)
        way.stem(images)  # the first time, memory and kernels are found
        times = []
        for _ in range(3):
            started = time.perf_counter()
            way.stem(images)
            times.append(time.perf_counter() - started)
        seconds.append(min(times))
    return seconds[0] > HALF_GAIN * seconds[1]
