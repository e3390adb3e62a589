"""What the table says of each trunk is what timm knows of it, and its settings are allowed."""

from __future__ import annotations

import pytest
import timm
import torch

from phpq.config import TERMS, TRUNKS, RunConfig, override


@pytest.mark.parametrize("name", TRUNKS)
def test_a_trunk_is_as_timm_has_it(name: str) -> None:
    trunk = TRUNKS[name]
    with torch.device("meta"):
        model = timm.create_model(trunk.backbone, num_classes=0)
    known = timm.data.resolve_model_data_config(model)
    config = override(RunConfig(), trunk.settings)
    assert config.model.backbone == trunk.backbone
    assert config.model.weights == "hub"
    assert config.model.pixel_mean == known["mean"]
    assert config.model.pixel_std == known["std"]
    # DINOv2 learned at 518 pixels last; 224 is a choice.
    assert {"dinov2": 518}.get(name.split("-")[0], trunk.side) == known["input_size"][-1]
    assert config.data.crop_size == config.data.eval_size == trunk.side
    assert model.pretrained_cfg["hf_hub_id"]
    assert model.pretrained_cfg["license"] == trunk.licence
    assert trunk.licence in {"apache-2.0", "mit", *TERMS}
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(
        trunk.parameters, abs=0.06
    )
    assert model.num_features == trunk.dim
    if hasattr(model, "cls_token"):
        assert len(model.blocks) == trunk.depth == config.model.blocks[-1] + 1
        assert trunk.side % max(model.patch_embed.patch_size) == 0
        assert config.model.levels == len(config.model.blocks) + 1
    else:
        assert not config.model.blocks


def test_every_family_is_there() -> None:
    families = {name.split("-")[0] for name in TRUNKS}
    assert families >= {"dinov2", "dinov3", "siglip2", "clip", "convnext", "convnextv2", "eva02"}
