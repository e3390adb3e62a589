"""All settings as frozen dataclasses, one per stage, which refuse invalid values; no torch."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from phpq.config.methods import RECIPES
from phpq.errors import ConfigError, nearest_hint

# Comparisons with NaN are false, so that no range accepts it.
_RANGES: dict[str, Callable[[float], bool]] = {
    "above 0": lambda value: value > 0,
    "0 or more": lambda value: value >= 0,
    "at least 1": lambda value: value >= 1,
    "in (0, 1)": lambda value: 0 < value < 1,
    "in [0, 1)": lambda value: 0 <= value < 1,
    "in (0, 1]": lambda value: 0 < value <= 1,
    "in [0, 1]": lambda value: 0 <= value <= 1,
    "in [0, 2)": lambda value: 0 <= value < 2,
    "a whole number from 1": lambda value: value >= 1 and float(value).is_integer(),
    "a power of two from 2 to 256": lambda value: value in (2, 4, 8, 16, 32, 64, 128, 256),
}


def option(default: float, allowed: str, *, name: str = "") -> Any:
    """Declare a number of a stage or of a method, with its default and its range in `_RANGES`.

    `name` is the option's, if a method needs the attribute's name for something else.
    """
    return field(default=default, metadata={"allowed": allowed, "name": name})


def in_range(declared: dataclasses.Field[Any], value: float) -> bool:
    """Tell whether a value lies in the range that `option` declared, if any."""
    allowed = declared.metadata.get("allowed")
    return not allowed or _RANGES[allowed](value)


class _Stage:
    """Validates all fields of a stage when it is made, and names every fault at once."""

    __slots__ = ()

    def __post_init__(self) -> None:
        faults = list(self._contradictions())
        for item in dataclasses.fields(cast(Any, self)):
            value = getattr(self, item.name)
            if not in_range(item, value):
                faults.append(_refusal(f"{item.name}={value}", item.metadata["allowed"]))
        if faults:
            stage = type(self).__name__.removesuffix("Config").lower()
            raise ConfigError("\n".join(f"{stage}.{fault}" for fault in faults))

    def _contradictions(self) -> Iterator[str]:
        """Yield faults of fields that contradict each other, or that have no range."""
        yield from ()


def _refusal(seen: str, allowed: str) -> str:
    return f"{seen} is not allowed: it must be {allowed}."


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodConfig(_Stage):
    """Which method learns the codes; `RECIPES` has the settings that suit each."""

    name: str = "phpq"  # one of `RECIPES`
    # Of lsh, sh, pq, itq, opq: pooled features of the ImageNet weights, of a backbone that was
    # fine-tuned as a classifier, or the discriminant axes of the latter.
    features: Literal["discriminant", "finetuned", "imagenet"] = "finetuned"
    # Share of the epochs, the first ones, in which the backbone is fine-tuned as a classifier:
    # losses over pairs and triplets need far more epochs from ImageNet than from there.
    classifier_share: float = option(0.0, "in [0, 1)")
    rate_share: float = option(1.0, "above 0")  # of the learning rate, after that fine-tuning
    options: dict[str, float] = field(default_factory=dict)  # those that the method declares

    def _contradictions(self) -> Iterator[str]:
        if self.name not in RECIPES:
            yield f"name={self.name!r} is not allowed. {nearest_hint(self.name, RECIPES)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(_Stage):
    """From an image file to the pixels that the network sees."""

    store_size: int = option(256, "at least 1")  # side of the square of a decoded image, pixels
    fit: Literal["squash", "crop"] = "crop"  # how a rectangle becomes that square
    crop_size: int = option(224, "at least 1")  # side of a training crop, pixels
    crop_scale: float = option(0.5, "in (0, 1]")  # smallest share of the area that a crop keeps
    crop_ratio: float = option(4 / 3, "at least 1")  # largest aspect ratio (or inverse) of a crop
    flip: bool = True  # mirror half of the training crops
    jitter: float = option(0.0, "in [0, 1)")  # largest change of brightness, contrast, saturation
    eval_size: int = option(288, "at least 1")  # side of the image that encoding sees, pixels
    eval_crop: float = option(1.0, "in (0, 1]")  # share of the side in its centre crop
    eval_flip: bool = False  # encode the mean embedding of the image and of its mirror
    on_bad_image: Literal["skip", "refuse"] = "skip"  # an unreadable image: leave it out, or stop
    max_pixels: int = option(100_000_000, "at least 1")  # images with more are not decoded (bombs)
    # Above 0: queries are this many images per class of the training split, not the test split.
    holdout_per_class: int = option(0, "0 or more")
    # Above 0: this share of the classes, the last ones, is not learned but evaluated as unseen.
    holdout_classes: float = option(0.0, "in [0, 1)")
    # all: learn the test images of learned classes too, but for one each, as in metric learning
    learned_images: Literal["train", "all"] = "train"

    def _contradictions(self) -> Iterator[str]:
        if self.learned_images == "all" and not self.holdout_classes:
            seen = "learned_images='all' with holdout_classes=0"
            yield _refusal(seen, "'train', unless a share of the classes is held out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(_Stage):
    """Backbone, pyramid pooling and transformation: image to embedding."""

    backbone: str = "resnet18"  # any timm model that yields a feature pyramid
    weights: str = "none"  # "none", "hub" (timm's pretrained weights), or the path of a file
    # Which convolution of a ResNet bottleneck has the stride: the middle one in the weights of timm
    # and torchvision, the first in those of the original paper (Caffe, Keras).
    bottleneck_stride: Literal["middle", "first"] = "middle"
    # Of a transformer: blocks, from 0, whose patch tokens are the maps of the pyramid. Its class
    # token (or pooled output) is one more level, the last. Empty: timm's own pyramid.
    blocks: tuple[int, ...] = ()
    image_size: int = option(0, "0 or more")  # pixels that a transformer is built for; 0: timm's
    pixel_mean: tuple[float, ...] = ()  # that the weights expect, per channel; empty: timm's
    pixel_std: tuple[float, ...] = ()
    levels: int = option(3, "at least 1")  # deepest pyramid levels, which are pooled and fused
    pooling: Literal["gem", "paper"] = "gem"  # mean inside the root, or outside it as printed
    rho: tuple[float, ...] = (3.0, 2.0, 1.0)  # focus of each level, shallow first; 1 avg, inf max
    rho_mode: Literal["fixed", "input"] = "fixed"  # input: rho is predicted, starting from `rho`
    embedding_dim: int = option(1536, "at least 1")  # D
    embedding_norm: Literal["batch", "none"] = "batch"  # centre and scale z before it is split
    # Share of the pretrained weights in the trunk of the general embedding, for unseen classes.
    general_share: float = option(0.5, "in [0, 1]")
    # Length of the learned embedding beside the whitened features (1) of the general one; 0: none.
    general_learned: float = option(0.3, "in [0, 1]")

    def _contradictions(self) -> Iterator[str]:
        rho, blocks = list(self.rho), list(self.blocks)
        if blocks != sorted({block for block in blocks if block >= 0}):
            yield _refusal(f"blocks={blocks}", "numbers from 0, rising")
        if blocks and self.levels > len(blocks) + 1:
            seen = f"levels={self.levels} with blocks={blocks}"
            yield _refusal(
                seen, f"at most {len(blocks) + 1}: a level per block, and the class token"
            )
        if {len(self.pixel_mean), len(self.pixel_std)} not in ({0}, {3}):
            seen = f"pixel_mean={list(self.pixel_mean)} with pixel_std={list(self.pixel_std)}"
            yield _refusal(seen, "three numbers each, or none")
        if not all(deviation > 0 for deviation in self.pixel_std):
            yield _refusal(f"pixel_std={list(self.pixel_std)}", "above 0 each")
        if len(rho) != self.levels:
            yield _refusal(f"rho={rho} with levels={self.levels}", "one focus factor per level")
        if not all(focus >= 1 for focus in rho):
            yield _refusal(f"rho={rho}", "at least 1 each (inf is max pooling)")
        if self.rho_mode == "input" and math.inf in rho:
            finite = "finite: a prediction cannot start from max pooling"
            yield _refusal(f"rho={rho} with rho_mode={self.rho_mode!r}", finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerConfig(_Stage):
    """Product quantization with partial codebook attention: embedding to code."""

    num_codebooks: int = option(4, "at least 1")  # M; the code takes M * log2(K) bits
    codebook_size: int = option(256, "a power of two from 2 to 256")  # K; one byte holds an index
    alpha: float = option(4.0, "above 0")  # attention logits are 2 * alpha * cosine
    kappa: int = 5  # codewords that take part for each sub-vector; K is full attention
    # anneal: kappa falls from K while training; nucleus: as few as hold the mass, up to kappa
    kappa_mode: Literal["fixed", "anneal", "nucleus"] = "fixed"
    anneal_share: float = option(0.5, "in (0, 1]")  # anneal: share of epochs with falling kappa
    nucleus_mass: float = option(0.8, "in (0, 1]")  # nucleus: softmax mass that codewords must hold
    init: Literal["kmeans", "xavier"] = "kmeans"  # where the codebooks start
    query_norm: Literal["unit", "raw"] = "unit"  # query sub-vectors as trained, or unnormalised

    def _contradictions(self) -> Iterator[str]:
        size = self.codebook_size
        if not 1 <= self.kappa <= size:
            seen = f"kappa={self.kappa} with codebook_size={size}"
            yield _refusal(seen, f"from 1 to {size} (={size} is full attention)")

    @property
    def bits(self) -> int:
        """Bits of one code: M log2 K."""
        return self.num_codebooks * int(math.log2(self.codebook_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig(_Stage):
    """SR-CEL on soft reconstructions plus the contrastive term."""

    tau: float = option(0.5, "above 0")  # temperature of the classifier
    label_smoothing: float = option(0.1, "in [0, 1)")  # share of the target spread over all classes
    embedding_weight: float = option(1.0, "0 or more")  # weight of classifying z, unquantized
    gamma: float = option(1.0, "0 or more")  # weight of the contrastive term
    positive_margin: float = option(0.2, "0 or more")  # m+ in units of sqrt(M)
    negative_margin: float = option(1.0, "0 or more")  # m- in units of sqrt(M)
    positive_mean: Literal["true", "paper"] = "true"  # divide by the pairs summed, or by |B_c|^2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig(_Stage):
    """The optimisation, and how the machine is used for it."""

    # head: all but the backbone, from cached features; last: also its last stage, from cached maps
    # of the stage before; all: everything, from pixels.
    trainable: Literal["head", "last", "all"] = "all"
    feature_noise: float = option(0.0, "0 or more")  # head, last: in deviations of each feature
    epochs: int = option(70, "at least 1")
    batch_size: int = option(128, "at least 1")
    sampler: Literal["shuffle", "classes"] = "shuffle"  # plain shuffle, or P classes x K images
    images_per_class: int = option(4, "at least 1")  # K of "classes"; P = batch_size / K
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = option(2e-4, "above 0")  # of the backbone
    head_rate_factor: float = option(10.0, "above 0")  # rate of the head over the backbone's
    weight_decay: float = option(0.0, "0 or more")
    warmup_epochs: float = option(1.0, "0 or more")  # linear, from 0
    final_rate: float = option(0.01, "in [0, 1]")  # cosine ends at this share of the learning rate
    codebook_epoch: int = option(0, "0 or more")  # first epoch with codebooks
    ema_decay: float = option(0.998, "in [0, 1)")  # of the saved, averaged weights; 0 is off
    seed: int = option(0, "0 or more")
    precision: Literal["auto", "bf16", "float32"] = "auto"  # auto: bf16 on CUDA, else float32
    accelerate: Literal["auto", "full", "graph", "off"] = "auto"  # CUDA graph, full: and compiled
    images_on_device: Literal["auto", "on", "off"] = "auto"  # keep decoded images in its memory
    workers: int = option(0, "0 or more")  # processes that decode; 0: one per core
    evaluate_every: int = option(10, "at least 1")  # epochs; the last one is always evaluated
    checkpoint_seconds: float = option(60.0, "0 or more")  # between two; 0: after every epoch
    onnx: bool = True  # also write ONNX files, for machines without torch

    def _contradictions(self) -> Iterator[str]:
        size, share = self.batch_size, self.images_per_class
        if self.sampler == "classes" and share > 0 and size % share:
            seen = f"images_per_class={share} with batch_size={size}"
            yield _refusal(seen, "a divisor of the batch size")


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


def with_bits(config: RunConfig, bits: int) -> RunConfig:
    """Return the config with as many codebooks as codes of `bits` need.

    The embedding dimension stays; a `ConfigError` if the codebooks do not divide it.
    """
    per_book = int(math.log2(config.quantizer.codebook_size))
    if bits < per_book or bits % per_book:
        *others, last = (str(per_book * books) for books in (2, 4, 6, 8))
        raise ConfigError(
            f"bits={bits} is not a multiple of {per_book} (quantizer.codebook_size="
            f"{config.quantizer.codebook_size}). Use {', '.join(others)} or {last}."
        )
    quantizer = dataclasses.replace(config.quantizer, num_codebooks=bits // per_book)
    return dataclasses.replace(config, quantizer=quantizer)
