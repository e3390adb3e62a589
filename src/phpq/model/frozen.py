"""The frozen part of a network: its features are computed once, the rest learns from them.

    frozen = freeze_network(network, config)    by `training.trainable`: "head" or "last" learns
    features = frozen.features(images)          (B, F) float16, computed once and cached
    network.extract(features.float())           continues from there, as if it had seen the images

With "head" the features are the whole pyramid, pooled if the method does no more than pool it, and
those of the general embedding. With "last" they are the map before the last stage, and what the
method keeps of the levels before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from phpq.config import RunConfig
from phpq.errors import ConfigError
from phpq.model.backbone import Backbone, FeatureLayout
from phpq.model.general import CENTRED, as_stored, build_trunk, describe_pyramid
from phpq.model.method import Method

# Of x86 and of ARM, as `torch.cpu.get_capabilities` calls them.
_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


@dataclass(frozen=True)
class FrozenPart:
    """The frozen part of a network, on its device."""

    trunk: Backbone  # a copy of the network's frozen stages, fused for speed
    network: Method
    trainable: Literal["head", "last"]  # the part of the network that learns
    general_levels: int  # deepest levels that the general embedding is made of
    sizes: tuple[int, int]  # side of an encoded image, and of a training crop
    half: bool = False  # compute in bfloat16
    mirrored: bool = False  # of the mirror images of pixels

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return features (B, F) float16 of pixels (B, 3, H, W) in [0, 1].

        Features of a network that is frozen less far are accepted in place of pixels.
        """
        if self.mirrored:
            images = images.flip(-1)
        return torch.cat([part.flatten(1) for part in self._parts(images)], 1).half()

    @cached_property
    def feature_dims(self) -> tuple[int, int]:
        """F of an encoded image and of a training crop; the backbone then accepts both.

        Pooled features ("head") have no crops: both are the same.
        """
        encoded, cropped = self.sizes
        dim = self._register_layout(encoded)
        return dim, dim if self.trainable == "head" else self._register_layout(cropped)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that features depend on, except for the image."""
        backbone, model = self.network.backbone, self.network.setup.model
        settings = (
            *(self.trainable, self.half, self.sizes[0], *CENTRED),
            *(model.blocks, model.image_size, model.pixel_mean, model.pixel_std),
            *(("mirrored",) if self.mirrored else ()),
        )
        digest = hashlib.sha256(repr(settings).encode() + self._example())
        for name, value in sorted(backbone.state_dict().items()):
            if self.trainable == "head" or not backbone.in_last_stage(name):
                digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _example(self) -> bytes:
        """Return what the method keeps of some maps: those that keep the same share features."""
        generator, channels = torch.Generator().manual_seed(0), self.network.backbone.channels
        maps = [torch.rand(1, count, 2, 2, generator=generator) for count in channels]
        with torch.no_grad():
            kept = self.network.compress([one.to(self.device) for one in maps])
        return b"".join(one.cpu().contiguous().numpy().tobytes() for one in kept)

    def _register_layout(self, size: int) -> int:
        """Tell the backbone how features of images of this size are laid out; returns F."""
        with torch.no_grad():
            parts = self._parts(torch.zeros(1, 3, size, size, device=self.device))
        dim = sum(part.numel() for part in parts)
        maps = tuple(tuple(part.shape[1:]) for part in parts if part.ndim == 4)
        layout = FeatureLayout(maps, has_deepest=self.trainable == "head")
        self.network.backbone.feature_layouts[dim] = layout
        return dim

    def _parts(self, images: Tensor) -> list[Tensor]:
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            pyramid = [level.float() for level in self.trunk(images)]
        levels = self.network.backbone.levels
        if self.trainable == "head":
            general = pyramid[-self.general_levels :]
            kept = self.network.compress(pyramid[-levels:])
            return [*kept, describe_pyramid(general, token=self.trunk.has_token)]
        # The deepest level is still to be learned. Any map may stand in for it: it is dropped.
        kept = self.network.compress([*pyramid, pyramid[-1]][-levels:])
        return [*kept[:-2], pyramid[-1]]


@torch.no_grad()
def freeze_network(network: Method, config: RunConfig) -> FrozenPart:
    """Freeze what does not learn by `training.trainable`, "head" or "last", and return it.

    Frozen matrices and kernels are rounded as the file of the general embedding stores them, so
    that both have the same trunk, and hence the same features.
    """
    trainable, backbone = config.training.trainable, network.backbone
    assert trainable != "all"
    _check(network, config)
    learns = {
        name: trainable == "last" and backbone.in_last_stage(name) for name in backbone.state_dict()
    }
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(learns[name])
    state = backbone.state_dict()
    backbone.load_state_dict({k: v if learns[k] else as_stored(v) for k, v in state.items()})
    general_levels = min(2, config.model.levels)
    levels = max(backbone.levels, 2 if trainable == "last" else general_levels)
    trunk = build_trunk(config.model, levels=levels, load_weights=False)
    trunk.load_state_dict(backbone.state_dict())
    if trainable == "last":
        for name in trunk.last_stage:
            del cast(nn.ModuleDict, trunk.pyramid)[name]
    device = next(network.parameters()).device
    trunk = trunk.to(device).to(memory_format=torch.channels_last).eval().requires_grad_(False)
    with suppress(Exception):  # a network that cannot be traced is only slower
        trunk.pyramid = fuse(trunk.pyramid)
    sizes = (config.data.eval_size, config.data.crop_size)
    frozen = FrozenPart(trunk, network, trainable, general_levels, sizes)
    if config.training.precision == "auto":
        frozen = replace(frozen, half=device.type == "cuda" or _has_bfloat16())
    else:
        frozen = replace(frozen, half=config.training.precision == "bf16")
    _ = frozen.feature_dims  # registers the layouts
    return frozen


def _check(network: Method, config: RunConfig) -> None:
    trainable, name = config.training.trainable, config.method.name
    if network.needs_pixels:
        raise ConfigError(
            f"training.trainable={trainable!r} does not suit the method {name!r}, which looks at "
            "parts of the images again. Use 'all'."
        )
    if config.data.eval_flip:
        raise ConfigError(
            f"data.eval_flip=true is not allowed with training.trainable={trainable!r}, which "
            "keeps no mirror images. Use 'all', or leave data.eval_flip=false."
        )
    if trainable == "last" and not network.backbone.last_stage:
        raise ConfigError(
            "training.trainable='last' needs a backbone whose stages follow each other, as those "
            f"of resnet18 or convnext_tiny, not {config.model.backbone!r}. Use 'head' or 'all'."
        )


def _has_bfloat16() -> bool:
    """Tell whether this processor has instructions for bfloat16: others only imitate it, slowly.

    Asked, not timed: features are kept by their precision, and a busy machine must find them again.
    """
    # Older versions of torch cannot tell.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in _BFLOAT16)
