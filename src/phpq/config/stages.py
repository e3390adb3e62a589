"""Every knob of every stage as frozen dataclasses that refuse what cannot work; no torch.

`RunConfig` composes one dataclass per stage.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from phpq.config.methods import RECIPES
from phpq.errors import ConfigError, nearest_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodConfig:
    """Which method learns the codes; `RECIPES` has the settings that suit each."""

    name: str = "phpq"  # one of `RECIPES`
    features: Literal["finetuned", "imagenet"] = "finetuned"  # what lsh, sh, pq, itq, opq code
    # Share of the epochs, the first, in which the backbone learns to classify and nothing else:
    # losses over pairs and triplets need far more epochs from ImageNet than from there.
    classifier_share: float = 0.0
    rate_share: float = 1.0  # of the learning rate, in the epochs that are the method's own
    options: dict[str, float] = field(default_factory=dict)  # numbers of the method's own

    def __post_init__(self) -> None:
        faults = _Faults("method")
        if self.name not in RECIPES:
            hint = nearest_hint(self.name, RECIPES)
            faults.messages.append(f"method.name={self.name!r} is not allowed. {hint}")
        faults.check(
            0 <= self.classifier_share < 1, f"classifier_share={self.classifier_share}", "in [0, 1)"
        )
        faults.check(self.rate_share > 0, f"rate_share={self.rate_share}", "above 0")
        faults.raise_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How an image becomes the pixels that the network sees."""

    store_size: int = 256  # side in pixels of the square in which decoded images are kept
    fit: Literal["squash", "crop"] = "crop"  # how a rectangle becomes that square
    crop_size: int = 224  # side of a training crop, pixels
    crop_scale: float = 0.5  # smallest share of the image's area that a training crop keeps
    crop_ratio: float = 4 / 3  # largest aspect ratio (and its inverse) of a training crop
    flip: bool = True  # mirror half of the training crops
    jitter: float = 0.0  # largest relative change of brightness, contrast and saturation
    eval_size: int = 288  # side of the image that encoding sees, pixels
    eval_crop: float = 1.0  # share of the stored side that encoding keeps, from the centre
    eval_flip: bool = False  # encode the mean embedding of the image and of its mirror
    on_bad_image: Literal["skip", "refuse"] = "skip"  # an unreadable image: leave it out, or stop
    max_pixels: int = 100_000_000  # an image with more is not decoded (decompression bombs)
    holdout_per_class: int = 0  # > 0: queries are this many images per class of the training split

    def __post_init__(self) -> None:
        faults = _Faults("data")
        for name in ("store_size", "crop_size", "eval_size", "max_pixels"):
            faults.check(getattr(self, name) >= 1, f"{name}={getattr(self, name)}", "at least 1")
        faults.check(0 < self.crop_scale <= 1, f"crop_scale={self.crop_scale}", "in (0, 1]")
        faults.check(self.crop_ratio >= 1, f"crop_ratio={self.crop_ratio}", "at least 1")
        faults.check(0 <= self.jitter < 1, f"jitter={self.jitter}", "in [0, 1)")
        faults.check(0 < self.eval_crop <= 1, f"eval_crop={self.eval_crop}", "in (0, 1]")
        faults.check(
            self.holdout_per_class >= 0, f"holdout_per_class={self.holdout_per_class}", "0 or more"
        )
        faults.raise_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Backbone, pyramid pooling and transformation: image to embedding."""

    backbone: str = "resnet18"  # any timm model that yields a feature pyramid
    weights: str = "none"  # "none", "hub" (timm's pretrained weights), or the path of a file
    levels: int = 3  # how many of the deepest pyramid levels are pooled and fused
    pooling: Literal["gem", "paper"] = "gem"  # mean inside the root, or outside it as printed
    rho: tuple[float, ...] = (3.0, 2.0, 1.0)  # focus of each level, shallow first; 1 avg, inf max
    rho_mode: Literal["fixed", "input"] = "fixed"  # input: rho is predicted, starting from `rho`
    embedding_dim: int = 1536  # D
    embedding_norm: Literal["batch", "none"] = "batch"  # centre and scale z before it is cut

    def __post_init__(self) -> None:
        faults = _Faults("model")
        faults.check(self.levels >= 1, f"levels={self.levels}", "at least 1")
        faults.check(
            len(self.rho) == self.levels,
            f"rho={list(self.rho)} with levels={self.levels}",
            "one focus factor per level",
        )
        faults.check(
            all(r >= 1 for r in self.rho),
            f"rho={list(self.rho)}",
            "at least 1 each (inf is max pooling)",
        )
        faults.check(
            self.rho_mode == "fixed" or not any(math.isinf(r) for r in self.rho),
            f"rho={list(self.rho)} with rho_mode={self.rho_mode!r}",
            "finite: a prediction cannot start from max pooling",
        )
        faults.check(self.embedding_dim >= 1, f"embedding_dim={self.embedding_dim}", "at least 1")
        faults.raise_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerConfig:
    """Product quantization with partial codebook attention: embedding to code."""

    num_codebooks: int = 4  # M; the code takes M * log2(K) bits
    codebook_size: int = 256  # K, a power of two up to 256: one byte holds an index
    alpha: float = 4.0  # attention logits are 2 * alpha * cosine
    kappa: int = 5  # codewords that take part for each sub-vector; K is full attention
    # anneal: kappa falls from K while training; nucleus: as many as the mass asks for, up to kappa
    kappa_mode: Literal["fixed", "anneal", "nucleus"] = "fixed"
    anneal_share: float = 0.5  # anneal: share of the epochs with codebooks in which kappa falls
    nucleus_mass: float = 0.8  # nucleus: share of the full softmax that the codewords must hold
    init: Literal["kmeans", "xavier"] = "kmeans"  # where the codebooks start
    query_norm: Literal["unit", "raw"] = "unit"  # query sub-vectors as trained, or unnormalised

    def __post_init__(self) -> None:
        faults = _Faults("quantizer")
        size = self.codebook_size
        faults.check(self.num_codebooks >= 1, f"num_codebooks={self.num_codebooks}", "at least 1")
        faults.check(
            2 <= size <= 256 and size & (size - 1) == 0,
            f"codebook_size={size}",
            "a power of two from 2 to 256",
        )
        faults.check(self.alpha > 0, f"alpha={self.alpha}", "above 0")
        faults.check(
            1 <= self.kappa <= size,
            f"kappa={self.kappa} with codebook_size={size}",
            f"from 1 to {size} (={size} is full attention)",
        )
        faults.check(0 < self.anneal_share <= 1, f"anneal_share={self.anneal_share}", "in (0, 1]")
        faults.check(0 < self.nucleus_mass <= 1, f"nucleus_mass={self.nucleus_mass}", "in (0, 1]")
        faults.raise_all()

    @property
    def bits(self) -> int:
        """Bits of one code: M log2 K."""
        return self.num_codebooks * int(math.log2(self.codebook_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """SR-CEL on soft reconstructions plus the contrastive term."""

    tau: float = 0.5  # temperature of the classifier
    label_smoothing: float = 0.1  # share of the target spread over all classes
    embedding_weight: float = 1.0  # weight of the same classification of z before quantization
    gamma: float = 1.0  # weight of the contrastive term
    positive_margin: float = 0.2  # m+ in units of sqrt(M)
    negative_margin: float = 1.0  # m- in units of sqrt(M)
    positive_mean: Literal["true", "paper"] = "true"  # divide by the pairs summed, or by |B_c|^2

    def __post_init__(self) -> None:
        faults = _Faults("loss")
        faults.check(self.tau > 0, f"tau={self.tau}", "above 0")
        faults.check(
            0 <= self.label_smoothing < 1, f"label_smoothing={self.label_smoothing}", "in [0, 1)"
        )
        for name in ("embedding_weight", "gamma", "positive_margin", "negative_margin"):
            faults.check(getattr(self, name) >= 0, f"{name}={getattr(self, name)}", "0 or more")
        faults.raise_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The optimisation, and how the machine is used for it."""

    epochs: int = 70
    batch_size: int = 128
    sampler: Literal["shuffle", "classes"] = "shuffle"  # plain shuffle, or P classes x K images
    images_per_class: int = 4  # K of the "classes" sampler; P = batch_size / K
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 2e-4  # of the backbone
    head_rate_factor: float = 10.0  # the head (fusion, g, codebooks, classifier) learns faster
    weight_decay: float = 0.0
    warmup_epochs: float = 1.0  # linear, from 0
    final_rate: float = 0.01  # cosine ends at this share of the learning rate
    codebook_epoch: int = 0  # epochs that learn on unquantized embeddings before codebooks start
    ema_decay: float = 0.998  # of the averaged weights that are evaluated and saved; 0 is off
    seed: int = 0
    precision: Literal["auto", "bf16", "float32"] = "auto"  # auto: bf16 on CUDA, else float32
    accelerate: Literal["auto", "full", "graph", "off"] = "auto"  # CUDA graph, full: and compiled
    images_on_device: Literal["auto", "on", "off"] = "auto"  # keep decoded images beside the model
    workers: int = 0  # processes that decode; 0: one per core
    evaluate_every: int = 10  # epochs between evaluations; the last epoch is always evaluated
    checkpoint_seconds: float = 60.0  # least time between two resumable states; 0: every epoch

    def __post_init__(self) -> None:
        faults = _Faults("training")
        for name in ("epochs", "batch_size", "images_per_class", "evaluate_every"):
            faults.check(getattr(self, name) >= 1, f"{name}={getattr(self, name)}", "at least 1")
        for name in ("learning_rate", "head_rate_factor"):
            faults.check(getattr(self, name) > 0, f"{name}={getattr(self, name)}", "above 0")
        for name in (
            "weight_decay",
            "warmup_epochs",
            "workers",
            "checkpoint_seconds",
            "seed",
            "codebook_epoch",
        ):
            faults.check(getattr(self, name) >= 0, f"{name}={getattr(self, name)}", "0 or more")
        faults.check(0 <= self.final_rate <= 1, f"final_rate={self.final_rate}", "in [0, 1]")
        faults.check(0 <= self.ema_decay < 1, f"ema_decay={self.ema_decay}", "in [0, 1)")
        faults.check(
            self.sampler != "classes" or self.batch_size % self.images_per_class == 0,
            f"images_per_class={self.images_per_class} with batch_size={self.batch_size}",
            "a divisor of the batch size",
        )
        faults.raise_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All stages of one run."""

    method: MethodConfig = field(default_factory=MethodConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        dim, books = self.model.embedding_dim, self.quantizer.num_codebooks
        if dim % books:
            near = [m for m in range(1, min(dim, 65)) if dim % m == 0]
            fitting = dim - dim % books or books
            raise ConfigError(
                f"model.embedding_dim={dim} is not divisible by quantizer.num_codebooks={books}. "
                f"Use one of {near} codebooks, or set model.embedding_dim={fitting}."
            )

    @property
    def sub_dim(self) -> int:
        """Length d = D / M of a sub-vector."""
        return self.model.embedding_dim // self.quantizer.num_codebooks


def with_bits(config: RunConfig, bits: int) -> RunConfig:
    """Return the config with as many codebooks as `bits` asks for.

    The embedding dimension stays, unless the codebooks no longer divide it: then the error says so.
    """
    per_book = int(math.log2(config.quantizer.codebook_size))
    if bits < per_book or bits % per_book:
        few, some, more, many = (per_book * books for books in (2, 4, 6, 8))
        raise ConfigError(
            f"bits={bits} is not a multiple of {per_book} (quantizer.codebook_size="
            f"{config.quantizer.codebook_size}). Use {few}, {some}, {more} or {many}."
        )
    quantizer = dataclasses.replace(config.quantizer, num_codebooks=bits // per_book)
    return dataclasses.replace(config, quantizer=quantizer)


class _Faults:
    """Collects what is wrong with one stage, to report it all at once."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.messages: list[str] = []

    def check(self, good: bool, seen: str, allowed: str) -> None:
        if not good:
            self.messages.append(f"{self.stage}.{seen} is not allowed: it must be {allowed}.")

    def raise_all(self) -> None:
        if self.messages:
            raise ConfigError("\n".join(self.messages))
