"""The table of pretrained trunks: which timm model, under which licence, how large. No torch.

Adding one is a line here. Licence, sizes and pixel statistics are those that timm has for the
weights; a test compares them. Why these settings: docs/decisions/0017-trunks.md.
"""

from dataclasses import dataclass

# Mean and deviation of the pixels by colour, of families that do not have ImageNet's.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_STATISTICS = {"clip": _CLIP, "eva02": _CLIP, "siglip2": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))}
_APACHE, _MIT, _DINOV3, _NON_COMMERCIAL = "apache-2.0", "mit", "dinov3-license", "cc-by-nc-4.0"

# What a licence asks for, where it is more than naming the authors.
TERMS = {
    _DINOV3: "Meta's own terms, to be accepted before use",
    _NON_COMMERCIAL: "no commercial use",
}


@dataclass(frozen=True, slots=True)
class Trunk:
    """A pretrained network whose features are good without fine-tuning."""

    name: str  # family-size
    backbone: str  # timm's name of model and weights
    licence: str
    parameters: float  # millions
    dim: int  # channels of its last level
    depth: int = 0  # blocks of a transformer; 0: convolutions
    side: int = 224  # of the images that it sees, pixels

    @property
    def megabytes(self) -> int:
        """Size of its weights in float32."""
        return round(4 * self.parameters)

    @property
    def settings(self) -> tuple[str, ...]:
        """Texts such as "model.weights=hub", for `phpq.config.override`."""
        statistics = _STATISTICS.get(self.name.split("-")[0], _IMAGENET)
        mean, deviation = (",".join(map(str, values)) for values in statistics)
        texts = (
            f"model.backbone={self.backbone}",
            "model.weights=hub",
            f"model.pixel_mean={mean}",
            f"model.pixel_std={deviation}",
            f"data.store_size={self.side * 8 // 7}",  # larger than the crops
            f"data.crop_size={self.side}",
            f"data.eval_size={self.side}",
            "training.trainable=head",
            # If it is fine-tuned: a low rate, since features as good as these are easily spoilt,
            # and the usual rate for the head.
            "training.learning_rate=2e-5",
            "training.head_rate_factor=100",
        )
        if not self.depth:
            return texts
        # Tokens have either sign, which only average pooling (rho = 1) keeps.
        blocks = f"model.blocks={self.depth * 3 // 4 - 1},{self.depth - 1}"
        return (*texts, blocks, "model.levels=3", "model.rho=1,1,1")


# DINOv2 is at home at 518 pixels, too: five times the tokens of 224 (--set data.eval_size=518). Of
# its two variants these have registers. OpenAI's CLIP is what timm calls quickgelu.
_TABLE = (
    Trunk("dinov2-small", "vit_small_patch14_reg4_dinov2.lvd142m", _APACHE, 22.1, 384, 12),
    Trunk("dinov2-base", "vit_base_patch14_reg4_dinov2.lvd142m", _APACHE, 86.6, 768, 12),
    Trunk("dinov2-large", "vit_large_patch14_reg4_dinov2.lvd142m", _APACHE, 304.4, 1024, 24),
    Trunk("dinov3-small", "vit_small_patch16_dinov3.lvd1689m", _DINOV3, 21.6, 384, 12, 256),
    Trunk("dinov3-base", "vit_base_patch16_dinov3.lvd1689m", _DINOV3, 85.6, 768, 12, 256),
    Trunk("dinov3-large", "vit_large_patch16_dinov3.lvd1689m", _DINOV3, 303.1, 1024, 24, 256),
    Trunk("dinov3-convnext-tiny", "convnext_tiny.dinov3_lvd1689m", _DINOV3, 27.8, 768),
    Trunk("siglip2-base", "vit_base_patch16_siglip_224.v2_webli", _APACHE, 92.9, 768, 12),
    Trunk("siglip2-so400m", "vit_so400m_patch14_siglip_224.v2_webli", _APACHE, 427.7, 1152, 27),
    Trunk("clip-base", "vit_base_patch16_clip_quickgelu_224.openai", _APACHE, 85.8, 768, 12),
    Trunk("clip-large", "vit_large_patch14_clip_quickgelu_224.openai", _APACHE, 303.2, 1024, 24),
    Trunk("eva02-base", "eva02_base_patch16_clip_224.merged2b", _MIT, 85.9, 768, 12),
    Trunk("eva02-large", "eva02_large_patch14_clip_224.merged2b", _MIT, 303.3, 1024, 24),
    Trunk("convnext-tiny", "convnext_tiny.fb_in22k", _APACHE, 27.8, 768),
    Trunk("convnext-base", "convnext_base.fb_in22k", _APACHE, 87.6, 1024),
    Trunk("convnextv2-nano", "convnextv2_nano.fcmae_ft_in22k_in1k", _NON_COMMERCIAL, 15.0, 640),
    Trunk("convnextv2-tiny", "convnextv2_tiny.fcmae_ft_in22k_in1k", _NON_COMMERCIAL, 27.9, 768),
)

TRUNKS: dict[str, Trunk] = {trunk.name: trunk for trunk in _TABLE}
