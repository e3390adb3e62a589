"""Features of a frozen part embed as their images do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from phpq.errors import ConfigError
from phpq.model import TorchModel, build_method
from phpq.model.checkpoint import ModelCard
from phpq.model.frozen import FrozenPart, freeze_network
from phpq.model.general import GeneralEmbedding, LearnedHead, build_trunk
from phpq.model.method import Method
from tiny_runs import CLASSES, SIDE, tiny_config


def frozen_part(part: str, *assignments: str) -> tuple[Method, FrozenPart, Tensor]:
    config = tiny_config(f"training.trainable={part}", *assignments)
    torch.manual_seed(0)
    network = build_method(config, CLASSES)
    frozen = freeze_network(network, config)
    return network.eval(), frozen, torch.rand(5, 3, SIDE, SIDE)


@pytest.mark.parametrize("part", ["head", "last"])
@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("model.rho_mode=input",),
        ("model.pooling=paper", "model.rho=inf,2,1"),
        ("model.levels=1", "model.rho=1"),
        ("model.levels=2", "model.rho=2,1"),
        ("method.name=hashnet", "quantizer.codebook_size=256"),
        ("method.name=exchnet", "quantizer.codebook_size=256"),
        ("method.name=adsh", "quantizer.codebook_size=256"),
        ("method.name=pqn",),
    ],
    ids=[
        "phpq",
        "learned focus",
        "paper",
        "one level",
        "two levels",
        "hashnet",
        "exchnet",
        "adsh",
        "pqn",
    ],
)
def test_features_embed_as_their_images(part: str, assignments: tuple[str, ...]) -> None:
    network, frozen, images = frozen_part(part, *assignments)
    features = frozen.features(images)
    assert features.dtype == torch.float16
    assert features.shape == (5, frozen.feature_dims[0])
    with torch.no_grad():
        from_features, from_images = network.extract(features.float()), network.extract(images)
    torch.testing.assert_close(from_features, from_images, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("part", ["head", "last"])
def test_the_general_embedding_describes_features_as_their_images(part: str) -> None:
    network, frozen, images = frozen_part(part)
    general = GeneralEmbedding(build_trunk(network.setup.model, load_weights=False)).eval()
    general.backbone.load_state_dict(network.backbone.state_dict())
    general.backbone.feature_layouts = network.backbone.feature_layouts
    with torch.no_grad():
        from_features = general.describe(frozen.features(images).float())
        from_images = general.describe(images)
    torch.testing.assert_close(from_features, from_images, rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("part", ["head", "last"])
def test_features_of_both_views_make_the_general_embedding(part: str) -> None:
    network, frozen, images = frozen_part(part)
    model = network.setup.model
    head, trunk = LearnedHead(network.backbone.channels, model), network.backbone
    general = GeneralEmbedding(trunk, head=head, weight=model.general_learned).eval()
    for matrix in (general.projection, head.axes):
        matrix.copy_(torch.randn(matrix.shape))
    mirrored = replace(frozen, mirrored=True)
    assert mirrored.fingerprint != frozen.fingerprint
    with torch.no_grad():
        views = [general.one_view(one.features(images).float()) for one in (frozen, mirrored)]
        expected = general(images)
    torch.testing.assert_close(
        functional.normalize(views[0] + views[1]), expected, rtol=0, atol=5e-3
    )
    with pytest.raises(AssertionError, match="no mirror image"):
        general(frozen.features(images).float())


@pytest.mark.parametrize("part", ["head", "last"])
def test_a_model_with_its_frozen_part_embeds_as_without(part: str) -> None:
    network, frozen, _ = frozen_part(part)
    config = tiny_config(f"training.trainable={part}")
    names = tuple(f"class {number}" for number in range(CLASSES))
    card, cpu = ModelCard(config=config, class_names=names, dataset=""), torch.device("cpu")
    models = [TorchModel(network, card, device=cpu, epochs=1, frozen=one) for one in (None, frozen)]
    squares = np.random.default_rng(0).integers(0, 256, (5, 3, SIDE, SIDE)).astype(np.uint8)
    expected, found = (model.embed_pixels(squares) for model in models)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


def test_what_learns_gets_gradients_and_nothing_else() -> None:
    for part in ("head", "last"):
        network, frozen, images = frozen_part(part)
        network.train().extract(frozen.features(images).float()).sum().backward()
        for name, parameter in network.backbone.named_parameters():
            learns = part == "last" and network.backbone.in_last_stage(name)
            assert (parameter.grad is not None) == parameter.requires_grad == learns, name
        groups = network.parameter_groups(1.0, 10.0)
        assert bool(groups[0]["params"]) == (part == "last")


def test_the_fingerprint_changes_only_with_what_features_depend_on() -> None:
    def fingerprint(part: str, changed: str = "", *assignments: str) -> str:
        config = tiny_config(f"training.trainable={part}", *assignments)
        torch.manual_seed(0)
        network = build_method(config, CLASSES)
        for name, parameter in network.named_parameters():
            if changed and name.startswith(changed):
                parameter.data += 0.5
        return freeze_network(network, config).fingerprint

    head, last = fingerprint("head"), fingerprint("last")
    assert head != last
    assert fingerprint("head") == head == fingerprint("head", "transform")
    assert fingerprint("head", "backbone.pyramid.layer4") != head
    assert fingerprint("last", "backbone.pyramid.layer4") == last
    assert fingerprint("last", "backbone.pyramid.layer3") != last
    assert fingerprint("head", "", "model.rho=2,2,1") != head
    assert fingerprint("head", "", "training.precision=bf16") != head
    # Methods that keep the same of the maps share features, others do not.
    others = {
        name: fingerprint("head", "", f"method.name={name}", "quantizer.codebook_size=256")
        for name in ("csq", "adsh", "pqn", "lsh", "cfh")
    }
    assert len({others[name] for name in ("csq", "adsh", "pqn", "lsh")}) == 1
    assert len({head, others["csq"], others["cfh"]}) == 3


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("data.eval_flip=true",), "mirror images"),
        (("model.backbone=efficientnet_lite0",), "stages follow each other"),
        (("method.name=srlh", "quantizer.codebook_size=256"), "looks at parts of the images"),
    ],
)
def test_what_cannot_be_frozen_is_refused(assignments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        frozen_part("last", *assignments)
