"""Images to a feature pyramid: any timm model that offers `features_only`, or the tokens of a ViT.

In: pixels (B, 3, H, W) in [0, 1]. Out: the deepest maps of the pyramid, shallow first, each
(B, C, h, w); a class token is a map of one cell, the last. Weights come from timm's hub, from a
local file, or from nowhere.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import timm
import torch
from timm.models import FeatureInfo
from timm.models.resnet import Bottleneck
from torch import Tensor, nn

from phpq.config import TERMS, ModelConfig
from phpq.errors import ConfigError, FormatError
from phpq.model.weights import read_tensors

logger = logging.getLogger(__name__)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Training crops and encoded images differ in size. Transformers accept that by one of two options,
# depending on their kind; convolutions know neither.
SIZE_OPTIONS = ({"strict_img_size": False}, {"dynamic_img_size": True}, dict[str, bool]())


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """How maps are laid out in the features (F,) of a frozen part (`phpq.model.frozen`)."""

    maps: tuple[tuple[int, ...], ...]  # (C, h, w) of each level, shallow first, concatenated
    has_deepest: bool  # False: the last stage is still to be computed


class Backbone(nn.Module):
    """A timm feature pyramid with the pixel statistics that its weights expect."""

    def __init__(
        self, pyramid: nn.Module, levels: int, mean: Sequence[float] = (), std: Sequence[float] = ()
    ) -> None:
        super().__init__()
        self.pyramid = pyramid
        info = cast(Any, pyramid).feature_info
        self.channels: tuple[int, ...] = tuple(info.channels())
        self.levels = levels
        self.feature_layouts: dict[int, FeatureLayout] = {}  # that `forward` accepts, by F
        # timm's enum of strings equals its value, but its `str` does not.
        self._channels_last = getattr(pyramid, "output_fmt", "NCHW") == "NHWC"
        pretrained, default = (
            getattr(pyramid, name, None) for name in ("pretrained_cfg", "default_cfg")
        )
        settings = pretrained or default or {}
        for name, given, usual in (("mean", mean, IMAGENET_MEAN), ("std", std, IMAGENET_STD)):
            values = torch.tensor(tuple(given or settings.get(name, usual))).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)
        self.has_token = isinstance(pyramid, TokenPyramid)  # the last level is (B, C, 1, 1)
        # The sides of images must be multiples of it.
        self.patch = _patch(getattr(pyramid, "model", pyramid))

    def normalise(self, images: Tensor) -> Tensor:
        """Bring (B, 3, H, W) pixels in [0, 1] to the statistics of the weights."""
        return (images - cast(Tensor, self.mean)) / cast(Tensor, self.std)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return `levels` maps (B, C, h, w) of pixels (B, 3, H, W) in [0, 1], shallow first.

        Features (B, F) of a frozen part are accepted in place of pixels.
        """
        if images.ndim == 2:
            return self._from_features(images)
        maps: list[Tensor] = self.pyramid(self.normalise(images))
        return [m.permute(0, 3, 1, 2) for m in maps] if self._channels_last else list(maps)

    @property
    def last_stage(self) -> tuple[str, ...]:
        """Names in the pyramid of what follows the second deepest level; empty if unknown."""
        info = cast(Any, self.pyramid).feature_info.info
        if not isinstance(self.pyramid, nn.ModuleDict) or self._channels_last or len(info) < 2:
            return ()
        names, before = list(self.pyramid), info[-2]["module"].replace(".", "_")
        return tuple(names[names.index(before) + 1 :]) if before in names else ()

    def in_last_stage(self, name: str) -> bool:
        """Tell whether a parameter or buffer, by its name here, belongs to the last stage."""
        return name.split(".")[1] in self.last_stage

    def _from_features(self, features: Tensor) -> list[Tensor]:
        layout = self.feature_layouts[features.shape[1]]
        sizes = [math.prod(shape) for shape in layout.maps]
        parts = features[:, : sum(sizes)].split(sizes, 1)  # type: ignore[no-untyped-call]
        maps = [part.unflatten(1, shape) for part, shape in zip(parts, layout.maps, strict=True)]
        if not layout.has_deepest:
            deepest = maps[-1].contiguous(memory_format=torch.channels_last)
            for name in self.last_stage:
                deepest = cast(nn.ModuleDict, self.pyramid)[name](deepest)
            maps.append(deepest)
        return maps[-self.levels :]


def build_backbone(config: ModelConfig, *, load_weights: bool = True) -> Backbone:
    """Create the backbone that the config names.

    Without `load_weights` they stay as initialised, for a checkpoint to fill.
    """
    name = config.backbone
    _check_known(name)
    source = config.weights if load_weights else "none"
    overlay: dict[str, Any] | None = None
    if source not in ("none", "hub"):
        overlay = {"state_dict": _matching_state(name, Path(source))}
    options = _token_options(config) if config.blocks else _map_options(config)
    try:
        pyramid = timm.create_model(
            name, pretrained=source != "none", pretrained_cfg_overlay=overlay, **options
        )
    except (OSError, RuntimeError) as error:  # unreachable, or there are none
        raise _not_fetched(name, error) from error
    if config.blocks:
        pyramid = TokenPyramid(pyramid, config.blocks[len(config.blocks) + 1 - config.levels :])
    if config.bottleneck_stride == "first":
        _stride_first(pyramid, name)
    return Backbone(pyramid, config.levels, config.pixel_mean, config.pixel_std)


def _map_options(config: ModelConfig) -> dict[str, Any]:
    """Return the options by which timm builds the deepest levels of its own pyramid."""
    levels = config.levels
    option, info = _probe(config.backbone)
    count = len(info.channels())
    if levels > count:
        raise ConfigError(
            f"model.levels={levels}, but {config.backbone!r} has {count} pyramid levels. "
            f"Use {count} or fewer."
        )
    indices = tuple(int(index) for index in info.out_indices[count - levels :])
    return {"features_only": True, "out_indices": indices, **option}


def _token_options(config: ModelConfig) -> dict[str, Any]:
    """Return the options by which timm builds a transformer for `TokenPyramid`."""
    name, blocks, side = config.backbone, list(config.blocks), config.image_size
    with torch.device("meta"):  # neither memory nor random numbers
        model = timm.create_model(name, num_classes=0)
    if not all(hasattr(model, part) for part in ("forward_intermediates", "cls_token", "fc_norm")):
        raise ConfigError(
            f"model.blocks={blocks}, but {name!r} has no blocks of tokens. Leave it empty, or use "
            "a transformer, as vit_small_patch14_dinov2."
        )
    depth, patch = len(model.blocks), _patch(model)
    if blocks[-1] >= depth:
        raise ConfigError(
            f"model.blocks={blocks}, but {name!r} has {depth} blocks. Use 0 to {depth - 1}."
        )
    if side % patch:
        raise ConfigError(
            f"model.image_size={side} is not a multiple of the {patch} pixels of a patch of "
            f"{name!r}. Use {side - side % patch or patch}, and the same for data.eval_size."
        )
    # Built for the size of encoded images, the position embedding is resampled once, when weights
    # are loaded, and not in every pass. Images of other sizes still work.
    return {"num_classes": 0, "dynamic_img_size": True} | ({"img_size": side} if side else {})


def _patch(model: nn.Module) -> int:
    """Return the side of the patches that a transformer cuts images into; 1 for convolutions."""
    return int(max(getattr(getattr(model, "patch_embed", None), "patch_size", (1,))))


def _not_fetched(name: str, error: Exception) -> ConfigError:
    """Return an error that names the file, its address, and the option that takes it."""
    known = timm.models.get_pretrained_cfg(name)
    place = f", as model.safetensors of https://huggingface.co/{known.hf_hub_id}" if known else ""
    text = (
        f"The weights of {name!r} could not be fetched from the hub ({type(error).__name__}). "
        f"Give a file of weights from any folder (--weights FILE, or model.weights in the config)"
        f"{place}; or learn from nothing (--weights none)."
    )
    if known and known.license in TERMS:
        text += (
            f" Their licence is {known.license} ({TERMS[known.license]}): where the page asks for "
            "it, accept it there and log in with: hf auth login"
        )
    return ConfigError(text)


def _stride_first(pyramid: nn.Module, name: str) -> None:
    """Move the stride of every bottleneck from its middle convolution to the first."""
    halving = [
        block
        for block in pyramid.modules()
        if isinstance(block, Bottleneck) and block.conv2.stride == (2, 2)
    ]
    if not halving:
        raise ConfigError(
            f"model.bottleneck_stride='first', but {name!r} has no bottlenecks of a ResNet that "
            "halve the map. Leave it at 'middle'."
        )
    for block in halving:
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)


class TokenPyramid(nn.Module):
    """Maps of a transformer's patch tokens after some of its blocks, then its class token.

    All of them after the final norm. A transformer without a class token yields its pooled output
    instead: attention pooling as in SigLIP, or the average.
    """

    def __init__(self, model: Any, blocks: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.blocks = tuple(blocks)
        self.pool_type = "token" if model.cls_token is not None else "avg"
        self.pretrained_cfg = model.pretrained_cfg
        names = (*(f"blocks.{block}" for block in self.blocks), "pool")
        levels = [
            {"num_chs": model.num_features, "reduction": _patch(model), "module": name}
            for name in names
        ]
        self.feature_info = FeatureInfo(levels, out_indices=tuple(range(len(levels))))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return maps (B, C, h, w) of normalised pixels, a level per block, and (B, C, 1, 1)."""
        if self.blocks:
            tokens, maps = self.model.forward_intermediates(images, self.blocks, norm=True)
        else:
            tokens, maps = self.model.forward_features(images), []
        pooled = self.model.fc_norm(self.model.pool(tokens, pool_type=self.pool_type))
        return [*maps, pooled[:, :, None, None]]


def _check_known(name: str) -> None:
    known, base = timm.list_models(), name.split(".")[0]  # what follows the dot names the weights
    if base in known:
        return
    close = difflib.get_close_matches(base, known, n=1)
    raise ConfigError(
        f"Unknown backbone {name!r}. Any of timm's {len(known)} models with a feature pyramid will "
        "do, as resnet18, resnet50, convnext_tiny or efficientnet_lite0."
        + (f" Did you mean {close[0]!r}?" if close else "")
    )


def _probe(name: str) -> tuple[dict[str, bool], Any]:
    """Return the option by which a model accepts any image size, and timm's `feature_info`."""
    failure: Exception | None = None
    for option in SIZE_OPTIONS:
        try:
            with torch.device("meta"):  # neither memory nor random numbers
                return option, timm.create_model(name, features_only=True, **option).feature_info
        except (RuntimeError, AttributeError, TypeError, AssertionError, ValueError) as error:
            failure = error
    raise ConfigError(
        f"Backbone {name!r} yields no feature pyramid in timm ({failure}). "
        "Use one that does, as resnet18, convnext_tiny or swin_tiny_patch4_window7_224."
    ) from failure


def _matching_state(name: str, path: Path) -> dict[str, Tensor]:
    """Read a weights file, and check that it fits this backbone.

    timm and torchvision share key names for the ResNet family. A classifier in the file is
    ignored; float16 is converted to float32.
    """
    state = {key.removeprefix("module."): value for key, value in read_tensors(path).items()}
    with torch.device("meta"):  # names and shapes are enough
        expected: dict[str, Tensor] = timm.create_model(name, num_classes=0).state_dict()
    counters = {key for key in expected if key.endswith("num_batches_tracked")}
    missing = [key for key in expected if key not in state and key not in counters]
    wrong = [
        f"{key} is {tuple(state[key].shape)}, not {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    ]
    if missing or wrong:
        seen = f"{len(missing)} of {len(expected) - len(counters)} tensors are missing"
        examples = [f"first missing: {key}" for key in missing[:1]] + wrong[:2]
        raise FormatError(
            f"{str(path)!r} does not hold the weights of {name!r}: {seen} ({'; '.join(examples)}). "
            "Give a file with timm's or torchvision's key names, or set model.backbone to fit it."
        )
    kept = {key: state[key] for key in expected if key in state}
    logger.info("loaded %d tensors of %s from %s", len(kept), name, path)
    return {k: v.float() if v.is_floating_point() else v for k, v in kept.items()}
