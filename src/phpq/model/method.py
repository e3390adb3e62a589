"""The base class of all methods: a network that learns, embeds, and owns its codebooks.

    method = build_method(config, num_classes)
    learned = method.objective(method.extract(images), labels, rows)    while training
    method.embed(images), method.export()                               for search

`embed` returns vectors, `export` the codebooks that encode and score them: a hashing method embeds
signs and exports sign patterns, a quantizer embeds floats. Index, gallery and evaluation do not
depend on the method.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from phpq.codes import CodeArray, Codebooks, QueryNorm
from phpq.config import RECIPES, LossConfig, ModelConfig, QuantizerConfig, RunConfig, in_range
from phpq.errors import ConfigError, nearest_hint
from phpq.model.backbone import Backbone, build_backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSetup:
    """The settings that a method is built from."""

    name: str
    options: dict[str, float]  # declared by the method; those that are not the default
    num_classes: int
    model: ModelConfig
    quantizer: QuantizerConfig
    loss: LossConfig
    features: Literal["discriminant", "finetuned", "imagenet"]  # what shallow methods code
    mirrored: bool  # images are encoded together with their mirror image
    codebook_epoch: int  # first epoch with codebooks
    load_weights: bool = True  # False: the backbone stays as initialised

    def build_backbone(self, levels: int | None = None) -> Backbone:
        """Return the backbone with its deepest `levels`; by default as many as the config has."""
        model = self.model
        if levels is not None:
            model = dataclasses.replace(model, levels=levels, rho=(1.0,) * levels)
        return build_backbone(model, load_weights=self.load_weights)


@dataclass(frozen=True, slots=True)
class Learned:
    """What one batch yields while training."""

    loss: Tensor  # scalar, to be minimised
    parts: tuple[Tensor, ...]  # a scalar for each of the method's `terms`
    codes: Tensor  # (B, M) uint8, the hard codes of the batch, to measure their use


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What a method may read between epochs."""

    labels: Tensor  # (N,) int64, on the device
    num_classes: int
    seed: int  # of the run
    epochs: int  # of the run
    embed: Callable[[], Tensor]  # (N, D), of the training images by the evaluated network
    # Applies a function of pixels (B, 3, H, W) in [0, 1] to all training images, without
    # augmentation, and returns its (N, ...) float32 results, on the device.
    apply: Callable[[Callable[[Tensor], Tensor]], Tensor]
    message: Callable[[str], None] = field(default=lambda text: None)  # shown to the user


@dataclass(frozen=True, slots=True)
class EpochChange:
    """What `prepare_epoch` changed."""

    adopt: tuple[str, ...] = ()  # sub-modules that were set: copied to the averaged weights
    new_step: bool = False  # steps compute something else from now on: graphs are captured again


class Method(nn.Module):
    """A network that learns codes; options are class attributes made by `phpq.config.option`."""

    terms: ClassVar[tuple[str, ...]] = ()  # names of the parts of the loss
    needs_pixels: ClassVar[bool] = False  # reads images, not only their pyramid
    fitted_last: ClassVar[bool] = False  # there are no codes to evaluate before `complete`
    backbone: Backbone
    query_norm: QueryNorm  # how queries are scored, see `Codebooks.lookup_tables`
    embedding_dim: int  # D of `embed`

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__()
        self.setup = setup
        for name, value in read_options(type(self), setup).items():
            setattr(self, name, value)

    @property
    def learns(self) -> bool:
        """Whether there is anything to learn by gradient."""
        return True

    def extract(self, images: Tensor) -> Any:
        """Return what `objective` needs of pixels (B, 3, H, W) in [0, 1]; may run in bfloat16."""
        raise NotImplementedError

    def compress(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Return smaller maps (B, C, h, w) by which `extract` gives the same as by the pyramid."""
        return pyramid

    def objective(self, extracted: Any, labels: Tensor, rows: Tensor) -> Learned:
        """Return the loss of a batch; shapes and control flow must not depend on values.

        `labels` and `rows`, the position of each image in the training set, are (B,) int64.
        """
        raise NotImplementedError

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return (B, D) float32 of pixels in [0, 1]; `mirrored` averages with the mirror image."""
        raise NotImplementedError

    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        raise NotImplementedError

    def start(self, training: TrainingSet) -> None:
        """Allocate buffers for a training set; called once, before a state is loaded."""

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Prepare an epoch (from 0); a resumed run starts with the first that is missing."""
        return EpochChange()

    def complete(self, training: TrainingSet) -> None:
        """Fit what is fitted after the last epoch."""

    def memory(self) -> dict[str, Tensor]:
        """Return tensors that only training needs; they are saved for resuming."""
        return {}

    def learned_codes(self) -> CodeArray | None:
        """Return (N, M) uint8 codes of the training set that were learned from its labels."""
        return None

    def compiled_parts(self) -> tuple[nn.Module, ...]:
        """Return the sub-modules that are worth compiling."""
        return (self.backbone,)

    def parameter_groups(self, rate: float, head_factor: float) -> list[dict[str, object]]:
        """Group the parameters: the backbone at `rate`, the head at `head_factor` times that."""
        trunk = [p for p in self.backbone.parameters() if p.requires_grad]
        known = {id(p) for p in self.backbone.parameters()}
        head = [p for p in self.parameters() if id(p) not in known]
        return [
            {"params": trunk, "base_rate": rate},
            {"params": head, "base_rate": rate * head_factor},
        ]


def build_method(config: RunConfig, num_classes: int, *, load_weights: bool = True) -> Method:
    """Create the method that the config names.

    Without `load_weights` the backbone stays as initialised, for a checkpoint to fill.
    """
    module, _, name = RECIPES[config.method.name].import_path.partition(":")
    kind: type[Method] = getattr(importlib.import_module(module), name)
    setup = MethodSetup(
        name=config.method.name,
        options=config.method.options,
        num_classes=num_classes,
        model=config.model,
        quantizer=config.quantizer,
        loss=config.loss,
        features=config.method.features,
        mirrored=config.data.eval_flip,
        codebook_epoch=config.training.codebook_epoch,
        load_weights=load_weights,
    )
    return kind(setup)


def read_options(kind: type[Method], setup: MethodSetup) -> dict[str, float]:
    """Return the value of every `option` of a method by its attribute; names all faults."""
    declared = {
        attribute: item
        for base in reversed(kind.__mro__)
        for attribute, item in vars(base).items()
        if isinstance(item, dataclasses.Field)
    }
    known = {item.metadata["name"] or attribute: attribute for attribute, item in declared.items()}
    values: dict[str, Any] = {attribute: item.default for attribute, item in declared.items()}
    faults = []
    for name, value in setup.options.items():
        if name not in known:
            hint = nearest_hint(name, known) if known else "It has none."
            faults.append(f"The method {setup.name!r} has no option {name!r}. {hint}")
            continue
        values[known[name]] = value
        if not in_range(item := declared[known[name]], value):
            allowed = item.metadata["allowed"]
            faults.append(f"method.options.{name}={value} of {setup.name!r} must be {allowed}.")
    if faults:
        raise ConfigError("\n".join(faults))
    return values


@torch.no_grad()
def pack_bits(values: Tensor) -> Tensor:
    """Pack the signs of (B, bits) into (B, bits / 8) uint8, as `codes.pack_signs` does."""
    bits = (values >= 0).view(len(values), -1, 8).to(torch.uint8)
    # Made on the device: a captured graph cannot copy from the host.
    places = torch.arange(8, dtype=torch.uint8, device=values.device)
    return (bits << places).sum(-1, dtype=torch.uint8)
