"""Feature pyramids and tokens of several families, and weights from files, good and bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from phpq.config import ModelConfig
from phpq.errors import ConfigError, FormatError
from phpq.model.backbone import Backbone, TokenPyramid, build_backbone

NAME = "test_resnet"


def build(name: str = NAME, weights: str | Path = "none", levels: int = 3) -> Backbone:
    rho = (1.0,) * levels
    return build_backbone(ModelConfig(backbone=name, weights=str(weights), levels=levels, rho=rho))


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "resnet10t",
        "test_convnext",
        "test_efficientnet",
        "test_byobnet",
        "test_vit",
        "mobilenetv3_small_050",
    ],
)
def test_channels_come_from_timm_and_fit_the_maps(name: str) -> None:
    backbone = build(name).eval()
    with torch.no_grad():
        maps = backbone(torch.rand(2, 3, 64, 64))
    assert len(maps) == 3
    assert [m.shape[1] for m in maps] == list(backbone.channels)
    sides = [m.shape[2] for m in maps]
    assert sides == sorted(sides, reverse=True)


def test_resnet18_yields_the_papers_stages() -> None:
    backbone = build("resnet18").eval()
    assert backbone.channels == (128, 256, 512)
    with torch.no_grad():
        maps = backbone(torch.zeros(1, 3, 224, 224))
    assert [m.shape[2] for m in maps] == [28, 14, 7]


def test_the_first_convolution_of_a_bottleneck_halves_the_map_where_weights_expect_it() -> None:
    config = ModelConfig(backbone="resnet26", bottleneck_stride="first")
    first, middle = build_backbone(config).eval(), build("resnet26").eval()
    first.load_state_dict(middle.state_dict())
    seen: list[Tensor] = []
    block = cast(Any, first.pyramid).layer3[0]
    block.conv1.register_forward_hook(lambda _module, _given, made: seen.append(made))
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        maps, others = first(images), middle(images)
    assert seen[0].shape[-1] == 4  # of 8: halved before the middle convolution
    assert [m.shape for m in maps] == [m.shape for m in others]
    with pytest.raises(ConfigError, match="no bottlenecks"):
        build_backbone(ModelConfig(backbone="resnet18", bottleneck_stride="first"))


def test_maps_with_channels_last_are_turned() -> None:
    # Swin yields (B, h, w, C); its size is cut down here, the layout is the same.
    pyramid = timm.create_model(
        "swin_tiny_patch4_window7_224",
        features_only=True,
        out_indices=(1, 2, 3),
        embed_dim=16,
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 2, 2),
        strict_img_size=False,
    ).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        backbone = Backbone(pyramid, 3)
        raw, maps = pyramid(backbone.normalise(images)), backbone(images)
    assert [tuple(m.shape) for m in maps] == [(1, 32, 8, 8), (1, 64, 4, 4), (1, 128, 2, 2)]
    assert torch.equal(maps[0][0, :, 2, 5], raw[0][0, 2, 5])


@pytest.mark.parametrize(
    ("name", "side"), [("vit_tiny_patch16_224", 4), ("swin_tiny_patch4_window7_224", 8)]
)
def test_transformers_take_crops_of_another_size(name: str, side: int) -> None:
    backbone = build(name).eval()
    with torch.no_grad():
        assert backbone(torch.rand(1, 3, 64, 64))[0].shape == (1, 192, side, side)


def test_pixels_get_the_statistics_of_the_weights() -> None:
    images = torch.rand(2, 3, 8, 8)
    imagenet = build("test_efficientnet").normalise(images)
    halves = build(NAME).normalise(images)  # this one was trained on pixels in [-1, 1]
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    torch.testing.assert_close(imagenet, (images - mean) / std)
    torch.testing.assert_close(halves, 2 * images - 1)


def test_the_pyramid_is_that_of_normalised_pixels() -> None:
    images = torch.rand(2, 3, 32, 32)
    backbone = build("test_efficientnet").eval()
    with torch.no_grad():
        maps, expected = backbone(images), backbone.pyramid(backbone.normalise(images))
    for level, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(level, other)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_the_deepest_levels_are_kept(levels: int) -> None:
    every = timm.create_model(NAME, features_only=True).feature_info.channels()
    assert build(levels=levels).channels == tuple(every[-levels:])


def test_without_weights_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert build().channels


def random_state(name: str = NAME, seed: int = 5) -> dict[str, Tensor]:
    """Return the weights of a whole classifier, as a weights file holds them."""
    torch.manual_seed(seed)
    state: dict[str, Tensor] = timm.create_model(name, num_classes=10).state_dict()
    return {
        key: torch.rand_like(value) + 0.5 if value.is_floating_point() else value
        for key, value in state.items()
    }


def assert_loaded(backbone: Backbone, state: dict[str, Tensor]) -> None:
    loaded = {
        key: value
        for key, value in backbone.pyramid.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    assert loaded
    for key, value in loaded.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, state[key].float()), key


def test_half_precision_safetensors_are_loaded(tmp_path: Path) -> None:
    state = {key: value.half() for key, value in random_state().items()}
    state["fc.weight"] = torch.zeros(3, 3, dtype=torch.float16)  # a classifier of any size
    save_file(state, tmp_path / "w.safetensors")
    assert_loaded(build(weights=tmp_path / "w.safetensors"), state)


def test_torchvision_key_names_without_counters_are_loaded(tmp_path: Path) -> None:
    state = {k: v.half() for k, v in random_state("resnet18").items() if "num_batches" not in k}
    assert {"conv1.weight", "layer4.1.bn2.running_var", "fc.bias"} <= state.keys()
    torch.save(state, tmp_path / "w.pth")
    assert_loaded(build("resnet18", tmp_path / "w.pth"), state)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_wrapped_and_prefixed_files_are_loaded(
    tmp_path: Path, prefix: str, wrapper: str | None
) -> None:
    state = random_state()
    content: dict[str, object] = {prefix + key: value for key, value in state.items()}
    torch.save({wrapper: content} if wrapper else content, tmp_path / "w.pth")
    assert_loaded(build(weights=tmp_path / "w.pth"), state)


def test_different_weights_give_different_maps(tmp_path: Path) -> None:
    save_file(random_state(), tmp_path / "w.safetensors")
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        loaded = build(weights=tmp_path / "w.safetensors").eval()(images)[-1]
        bare = build().eval()(images)[-1]
    assert not torch.allclose(loaded, bare)


def test_a_checkpoint_fills_the_weights_itself(tmp_path: Path) -> None:
    config = ModelConfig(backbone=NAME, weights=str(tmp_path / "long-gone.pth"))
    assert build_backbone(config, load_weights=False).channels


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no weights file .*gone\.pth.*Give the path"):
        build(weights=tmp_path / "gone.pth")


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    save_file(random_state("test_convnext"), tmp_path / "w.safetensors")
    message = r"does not hold the weights of 'test_resnet': \d+ of \d+ tensors are missing \(first"
    with pytest.raises(FormatError, match=message):
        build(weights=tmp_path / "w.safetensors")


def test_weights_of_a_wider_model_are_refused(tmp_path: Path) -> None:
    state = random_state()
    state["layer2.0.conv1.weight"] = torch.zeros(7, 7, 3, 3)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match=r"layer2\.0\.conv1\.weight is \(7, 7, 3, 3\), not"):
        build(weights=tmp_path / "w.safetensors")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    if suffix == ".pth":
        torch.save(random_state(), path)
    else:
        save_file(random_state(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FormatError, match=rf"w\{suffix}' (is damaged|cannot be read)"):
        build(weights=path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("resnet81", "Did you mean 'resnet"), ("resnet_18.a1_in1k", "Did you mean 'resnet"), ("", "")],
)
def test_an_unknown_backbone_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(
        ConfigError, match=f"Unknown backbone '{name}'.*will do, as resnet18.*{hint}"
    ):
        build(name)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError, match="Unknown backbone 'qqqqqqq'") as caught:
        build("qqqqqqq")
    assert "Did you mean" not in str(caught.value)


def test_a_model_without_a_pyramid_is_refused() -> None:
    with pytest.raises(ConfigError, match="'convmixer_768_32' yields no feature pyramid"):
        build("convmixer_768_32")


def test_more_levels_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.levels=9, but 'test_resnet' has 5 pyramid"):
        build(levels=9)


def test_a_model_without_pretrained_weights_says_so() -> None:
    with pytest.raises(ConfigError, match=r"weights of 'convnext_atto_rms'.*--weights"):
        build("convnext_atto_rms", "hub")


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = timm.create_model

    def offline(name: str, *, pretrained: bool = False, **options: object) -> object:
        if pretrained:
            raise OSError("offline")
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    page = r"--weights FILE.*huggingface\.co/timm/test_resnet\.r160_in1k;"
    with pytest.raises(ConfigError, match=rf"fetched from the hub \(OSError\).*{page}"):
        build(weights="hub")
    licence = r"licence is dinov3-license \(Meta's own terms.*hf auth login"
    with pytest.raises(ConfigError, match=licence):
        build("convnext_tiny.dinov3_lvd1689m", "hub")


def test_one_infinite_statistic_is_refused(tmp_path: Path) -> None:
    state = timm.create_model(NAME, num_classes=0).state_dict()
    state["bn1.running_var"][3] = torch.inf
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match=r"w.safetensors' .*'bn1.running_var' has 1 values of"):
        build(weights=tmp_path / "w.safetensors")


def build_tokens(name: str, blocks: tuple[int, ...], **fields: Any) -> Backbone:
    levels = fields.pop("levels", len(blocks) + 1)
    config = ModelConfig(backbone=name, blocks=blocks, levels=levels, rho=(1.0,) * levels, **fields)
    return build_backbone(config).eval()


# One of each family: DINOv2 and CLIP, SigLIP (which pools by attention), DINOv3 and EVA-02, and
# one that has no token of its own.
@pytest.mark.parametrize(
    "name", ["test_vit", "test_vit3", "vit_tiny_patch16_dinov3_qkvb", "test_vit2"]
)
def test_tokens_are_maps_and_the_pooled_one_a_level_of_its_own(name: str) -> None:
    backbone = build_tokens(name, (1, 4), image_size=48)
    model = cast(Any, backbone.pyramid).model
    images = torch.rand(2, 3, 32, 48)
    with torch.no_grad():
        *maps, pooled = backbone(images)
        tokens = model.patch_embed(backbone.normalise(images))
        position = model._pos_embed(tokens)
        hidden, rope = position if isinstance(position, tuple) else (position, None)
        hidden, after = model.norm_pre(hidden), []
        for block in model.blocks:
            hidden = block(hidden) if rope is None else block(hidden, rope=rope)
            after.append(model.norm(hidden))
        model.global_pool = "token" if model.cls_token is not None else model.global_pool
        expected = model.forward_head(after[-1], pre_logits=True)
    assert backbone.has_token
    assert backbone.patch == 16
    assert backbone.channels == (model.num_features,) * 3
    first = model.num_prefix_tokens
    for level, block in zip(maps, (1, 4), strict=True):
        assert level.shape == (2, model.num_features, 2, 3)
        for row in range(2):
            for column in range(3):
                token = after[block][:, first + 3 * row + column]
                torch.testing.assert_close(level[:, :, row, column], token, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pooled[:, :, 0, 0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("levels", "kept"), [(1, ()), (2, (4,)), (3, (1, 4))])
def test_the_class_token_is_the_deepest_level(levels: int, kept: tuple[int, ...]) -> None:
    backbone = build_tokens("test_vit", (1, 4), levels=levels)
    assert cast(TokenPyramid, backbone.pyramid).blocks == kept
    with torch.no_grad():
        shapes = [tuple(level.shape) for level in backbone(torch.rand(1, 3, 32, 32))]
    assert shapes == [(1, 64, 2, 2)] * len(kept) + [(1, 64, 1, 1)]


def test_a_file_of_a_transformer_is_resampled_once_to_the_size_of_the_images(
    tmp_path: Path,
) -> None:
    state = {k: v.half() for k, v in random_state("test_vit").items()}
    state |= {"norm.weight": torch.ones(64).half()}
    save_file(state, tmp_path / "w.safetensors")
    weights = str(tmp_path / "w.safetensors")
    fixed = build_tokens("test_vit", (2, 5), weights=weights, image_size=64)
    free = build_tokens("test_vit", (2, 5), weights=weights)  # built for timm's 160 pixels
    assert fixed.get_parameter("pyramid.model.pos_embed").shape[1] == 1 + 4 * 4
    assert free.get_parameter("pyramid.model.pos_embed").shape[1] == 1 + 10 * 10
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for one, other in zip(fixed(images), free(images), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_pixel_statistics_of_the_config_come_first() -> None:
    config = ModelConfig(backbone=NAME, pixel_mean=(0.1, 0.2, 0.3), pixel_std=(1.0, 2.0, 4.0))
    images = torch.rand(1, 3, 8, 8)
    normalised = build_backbone(config).normalise(images)
    for colour, (mean, deviation) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        torch.testing.assert_close(normalised[:, colour], (images[:, colour] - mean) / deviation)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (NAME, {}, r"model\.blocks=\[2, 6\], but 'test_resnet' has no blocks of tokens"),
        ("test_vit", {}, r"model\.blocks=\[2, 6\], but 'test_vit' has 6 blocks\. Use 0 to 5"),
        ("test_vit2", {"image_size": 60}, r"image_size=60 is not a multiple of the 16.*Use 48"),
    ],
)
def test_tokens_that_are_not_there_are_refused(
    name: str, fields: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_tokens(name, (2, 6), **fields)
