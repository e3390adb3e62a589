"""Feature pyramids of several families, and weights from files, good and bad."""

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
from phpq.model.backbone import Backbone, build_backbone

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
    with pytest.raises(ConfigError, match=r"could not be fetched from the hub \(OSError\)"):
        build(weights="hub")


def test_one_infinite_statistic_is_refused(tmp_path: Path) -> None:
    state = timm.create_model(NAME, num_classes=0).state_dict()
    state["bn1.running_var"][3] = torch.inf
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FormatError, match=r"w.safetensors' .*'bn1.running_var' has 1 values of"):
        build(weights=tmp_path / "w.safetensors")
