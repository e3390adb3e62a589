from __future__ import annotations

import gc
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import distance_transform_edt
from torch import Tensor, nn

from phpq.codes import CodeArray, Codebooks, FloatArray, score_codes, sign_codebooks
from phpq.config import DataConfig
from phpq.data import Dataset, LabelledImages, decode_square, mark_mask
from phpq.data.batches import Views
from phpq.data.synthetic.plumage import PlumageReader
from phpq.data.synthetic.species import draw_species
from phpq.errors import ShapeError
from phpq.explain import codebook_shares, heat_map, heat_note, overlay_png
from phpq.explain.heatmap import (
    _MEASURED,
    cell_offsets,
    fit_within,
    fuse_levels,
    lay_out,
    match_evidence,
    view_box,
)
from phpq.model import Method, Network, TorchModel
from phpq.model.backbone import Backbone
from phpq.model.checkpoint import ModelCard
from phpq.training import train_run
from tiny_runs import SIDE, tiny_birds, tiny_config, tiny_network

Mask = NDArray[np.bool_]
CODE = np.array([3, 0, 7, 5], np.uint8)
TOKENS = ("model.backbone=test_vit", "model.blocks=2,5", "model.rho=1,1,1", "data.eval_size=64")


def tiny_model(*assignments: str, network: Method | None = None) -> TorchModel:
    """Return a model with random weights and running statistics that are not trivial."""
    config = tiny_config(*assignments)
    network = network or tiny_network(*assignments)
    if isinstance(network, Network):
        nn.init.normal_(network.norm.get_buffer("running_mean"), std=0.1)
    card = ModelCard(config=config, class_names=tuple("abcd"), dataset="birds")
    return TorchModel(network, card, device=torch.device("cpu"), epochs=0)


def bird(row: int = 0) -> Image.Image:
    return tiny_birds().test.read(row)


def square(model: TorchModel, row: int = 0) -> NDArray[np.uint8]:
    return decode_square(bird(row), model.card.config.data)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("quantizer.query_norm=raw",),
        ("data.eval_flip=true",),
        ("data.eval_flip=true", "quantizer.query_norm=raw"),
        ("model.pooling=paper", "model.rho=inf,2,1"),
        ("model.levels=1", "model.rho=3"),
        TOKENS,
    ],
    ids=" ".join,
)
def test_the_evidence_adds_up_to_the_score(settings: tuple[str, ...]) -> None:
    model = tiny_model(*settings)
    evidence = match_evidence(model, square(model), code=CODE)
    assert len(evidence.levels) == model.card.config.model.levels
    total = evidence.constant + sum(float(level.sum()) for level in evidence.levels)
    shares = codebook_shares(
        model.codebooks, model.embed(bird())[0], CODE, query_norm=model.query_norm
    )
    assert total == pytest.approx(shares.sum(), rel=1e-4, abs=1e-4)
    for book, share in enumerate(shares):
        one = match_evidence(model, square(model), code=CODE, codebook=book)
        part = one.constant + sum(float(level.sum()) for level in one.levels)
        assert part == pytest.approx(share, rel=1e-4, abs=1e-4)


def test_the_constant_is_what_the_biases_add() -> None:
    model = tiny_model()
    network = model.network
    assert isinstance(network, Network)
    with torch.no_grad():
        # What the head makes of pooled zeros: rho-pooling cannot give them, so they are put in.
        carried = torch.zeros(1, network.backbone.channels[0])
        for step in network.pooling.steps:
            carried = step(carried)
        bias = network.norm(network.transform(carried)).numpy().reshape(4, -1)
    parts = model.embed(bird()).reshape(4, -1)
    words = model.codebooks.decode(CODE[None]).reshape(4, -1)
    expected = sum(
        float(bias[m] @ words[m]) / float(np.linalg.norm(parts[m])) for m in range(len(words))
    )
    evidence = match_evidence(model, square(model), code=CODE)
    assert evidence.constant == pytest.approx(expected, abs=1e-4)


def test_a_channel_is_spread_as_the_pooling_takes_it() -> None:
    model = tiny_model()
    network = model.network
    assert isinstance(network, Network)
    with torch.no_grad():
        view = torch.tensor(square(model)[None]).float() / 255
        maps = network.backbone(view)
    evidence = match_evidence(model, square(model), code=CODE)
    for level, features, rho in zip(evidence.levels, maps, network.pooling.rho, strict=True):
        for channel in range(0, len(level), 7):
            powers = features[0, channel].double().clamp(min=1e-6).numpy() ** rho
            if powers.max() < 1e-3:  # a dead channel: its share is rounding
                continue
            shares = level[channel] / level[channel].sum()
            assert shares == pytest.approx(powers / powers.sum(), abs=1e-4)


def test_support_is_what_speaks_for_the_match() -> None:
    model = tiny_model()
    evidence = match_evidence(model, square(model), code=CODE)
    for level, support in zip(evidence.levels, evidence.support(), strict=True):
        assert support == pytest.approx(np.where(level > 0, level, 0).sum(axis=0))


def test_levels_are_fused_by_what_they_add() -> None:
    maps = [np.full((4, 4), 0.5, np.float32), np.full((2, 2), 2.0, np.float32)]  # 8 and 8
    fused = fuse_levels(maps, (8, 8), offsets=(0.5, 0.5))
    assert fused == pytest.approx(np.full((8, 8), 16.0))


def test_without_a_code_an_image_is_matched_with_itself() -> None:
    model = tiny_model()
    own = heat_map(model, bird(), code=model.encode(bird())[0])
    assert (heat_map(model, bird()) == own).all()
    assert (heat_map(model, bird(), code=CODE) != own).any()
    assert (heat_map(model, bird(), codebook=1) != own).any()


def test_a_map_covers_the_image(tmp_path: Path) -> None:
    model = tiny_model("data.fit=crop")
    wide = bird().resize((90, 30))
    heat = heat_map(model, wide)
    assert heat.shape == (30, 90)
    assert heat.dtype == np.float32
    assert (heat.min(), heat.max()) == (0, 1)
    assert not heat[:, :30].any()  # cut off, so that it was not seen
    assert not heat[:, 60:].any()
    assert heat[:, 30:60].any()
    wide.save(tmp_path / "wide.png")
    assert (heat_map(model, tmp_path / "wide.png") == heat).all()
    assert (heat_map(model, str(tmp_path / "wide.png")) == heat).all()
    whole = heat_map(tiny_model("data.fit=squash"), wide)
    assert whole[:, :20].any()
    assert whole[:, 70:].any()
    assert heat_map(model, bird().resize((1200, 600))).shape == (256, 512)
    assert heat_map(model, bird().resize((3, 900))).shape == (512, 2)


def test_a_mirrored_image_has_a_mirrored_map_where_both_views_are_embedded() -> None:
    model = tiny_model("data.eval_flip=true")
    image = bird()
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    evidence = match_evidence(model, decode_square(image, model.card.config.data), code=CODE)
    other = match_evidence(model, decode_square(mirrored, model.card.config.data), code=CODE)
    for here, there in zip(evidence.levels, other.levels, strict=True):
        assert there[:, :, ::-1] == pytest.approx(here, abs=1e-5)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("crop", [1.0, 0.7])
@pytest.mark.parametrize("size", [(200, 100), (90, 130)])
def test_the_view_is_what_encoding_sees(fit: str, crop: float, size: tuple[int, int]) -> None:
    config = tiny_config(f"data.fit={fit}", f"data.eval_crop={crop}").data
    left, top, right, bottom = view_box(size, config)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    inner = (slice(round(top), round(bottom)), slice(round(left), round(right)))
    pixels[inner] = 255
    assert seen(pixels, config)[:, 2:-2, 2:-2].min() > 0.95
    assert seen(255 - pixels, config)[:, 2:-2, 2:-2].max() < 0.05
    pixels[inner][2:-2, 2:-2] = 0  # but a rim
    assert seen(pixels, config)[:, 3:-3, 3:-3].max() < 0.3
    assert seen(pixels, config).max() > 0.3


def seen(pixels: NDArray[np.uint8], config: DataConfig) -> FloatArray:
    stored = decode_square(Image.fromarray(pixels), config)
    return np.asarray(Views(config).encode(torch.tensor(stored[None]))[0].numpy())


def test_sizes_shrink_but_never_vanish() -> None:
    assert fit_within((100, 50), 512) == (100, 50)
    assert fit_within((1024, 300), 512) == (512, 150)
    assert fit_within((1, 9000), 512) == (1, 512)


def test_an_image_without_anything_has_a_map_too() -> None:
    heat = heat_map(tiny_model(), Image.new("RGB", (40, 40)))
    assert np.isfinite(heat).all()
    assert 0 <= heat.min() <= heat.max() <= 1


def test_explaining_leaves_no_trace() -> None:
    model = tiny_model()
    expected = heat_map(model, bird())
    with torch.inference_mode():
        assert (heat_map(model, bird()) == expected).all()
    with torch.no_grad():
        assert (heat_map(model, bird()) == expected).all()
    assert all(weight.grad is None for weight in model.network.parameters())
    assert not model.network.training


def test_codes_and_codebooks_that_do_not_fit_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(ShapeError, match="same model"):
        heat_map(model, bird(), code=np.full(4, 8, np.uint8))
    with pytest.raises(ShapeError, match="expected 0 to 3"):
        heat_map(model, bird(), codebook=4)


class Hashing(Method):
    """A method without pyramid pooling."""

    query_norm = "raw"
    embedding_dim = 16

    def __init__(self) -> None:
        setup = tiny_network().setup
        super().__init__(setup)
        self.backbone = setup.build_backbone()

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        deepest: Tensor = self.backbone(images)[-1]
        return torch.where(deepest.mean((2, 3))[:, :16] >= 0, 1.0, -1.0)

    def export(self) -> Codebooks:
        return sign_codebooks(16)


def test_other_methods_show_activity_and_say_so() -> None:
    torch.manual_seed(0)
    model = tiny_model("data.eval_size=128", network=Hashing())  # more than one cell
    heat = heat_map(model, bird(), code=np.array([1, 2], np.uint8))
    assert heat.shape == (SIDE, SIDE)
    assert (heat.min() >= 0, heat.max()) == (True, 1)
    assert (heat_map(model, bird()) == heat).all()
    assert (heat_map(model, bird(3)) != heat).any()
    assert "Hashing has no pyramid pooling" in heat_note(model)
    assert heat_note(tiny_model()) == ""
    with pytest.raises(TypeError, match="Hashing"):
        match_evidence(model, square(model))


# What follows looks at a network that has learned, on birds whose marks are known.

SPECIES, SIZE, SEED = 3, 64, 2


def distinct_birds() -> Dataset:
    """Return species of three families, so that little learning tells them apart."""
    species = draw_species(4 * SPECIES, seed=SEED)[::4]
    names, marks = tuple(one.name for one in species), tuple(one.marks for one in species)

    def split(name: str, reader: PlumageReader) -> LabelledImages:
        labels = np.repeat(np.arange(SPECIES), reader.per_species)
        ids = tuple(f"{name}/{row}" for row in range(len(labels)))
        return LabelledImages(name, ids, labels, names, reader)

    train = PlumageReader(SEED, "train", marks, 24, SIZE)
    test = PlumageReader(SEED, "test", marks, 10, SIZE)
    return Dataset("birds", split("train", train), split("test", test))


class Explained:
    """A trained model, its queries, their hits and heat maps."""

    def __init__(self, folder: Path) -> None:
        birds = distinct_birds()
        config = tiny_config(
            *(f"data.{name}={SIZE}" for name in ("store_size", "crop_size", "eval_size")),
            *(
                "data.crop_scale=1",
                "data.crop_ratio=1",
                "loss.embedding_weight=1",
                "loss.gamma=0.2",
            ),
            *("training.epochs=10", "training.evaluate_every=10", "training.optimizer=adamw"),
            *(
                "training.learning_rate=2e-3",
                "training.head_rate_factor=2",
                f"training.seed={SEED}",
            ),
        )
        self.model = train_run(birds, config, folder / "run", device="cpu")
        self.images = [birds.test.read(row) for row in range(len(birds.test))]
        self.marks = [mark_mask(birds.test, row) for row in range(len(birds.test))]
        gallery = self.model.encode(birds.train)
        tables = self.model.codebooks.lookup_tables(self.model.embed(birds.test))
        self.hits: CodeArray = gallery[score_codes(tables, gallery).argmax(axis=1)]
        self.heat = self.heat_of(self.images)

    def heat_of(self, images: list[Image.Image]) -> list[FloatArray]:
        pairs = zip(images, self.hits, strict=True)
        return [heat_map(self.model, image, code=hit) for image, hit in pairs]

    def scores(self, images: list[Image.Image]) -> FloatArray:
        """Return the score of each image with its hit, as the index has it."""
        tables = self.model.codebooks.lookup_tables(self.model.embed(images))
        return score_codes(tables, self.hits).diagonal()


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Explained(tmp_path_factory.mktemp("explained"))
    finally:
        torch.set_num_threads(threads)


def area_under_curve(heat: FloatArray, mask: Mask) -> float:
    """Count the pairs of a pixel on and a pixel off the mask of which the first is hotter."""
    inside, outside = np.sort(heat[mask]), np.sort(heat[~mask])
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    return float(below.sum() / 2 / (len(inside) * len(outside)))


def paint_over(image: Image.Image, mask: Mask) -> Image.Image:
    """Give the pixels of a mask the colours next to it."""
    near = distance_transform_edt(mask, return_distances=False, return_indices=True)
    return Image.fromarray(np.asarray(image)[near[0], near[1]])


def test_the_map_finds_the_marks(explained: Explained) -> None:
    pairs = list(zip(explained.heat, explained.marks, strict=True))
    area = np.mean([area_under_curve(heat, mask) for heat, mask in pairs])
    assert area > 0.65  # chance: 0.5; measured: 0.85
    hottest = np.mean([mask.flat[heat.argmax()] for heat, mask in pairs])
    assert np.mean(explained.marks) < 0.12  # chance
    assert hottest > 0.25  # three standard deviations above it


def test_the_map_is_that_of_its_own_image(explained: Explained) -> None:
    """Birds stand in the middle: maps of other birds find marks too, but not as well."""
    others = explained.heat[7:] + explained.heat[:7]
    pairs = zip(explained.heat, others, explained.marks, strict=True)
    gains = [area_under_curve(h, mask) - area_under_curve(o, mask) for h, o, mask in pairs]
    assert np.mean(gains) > 0.02
    turned = zip(explained.heat, explained.marks, strict=True)
    lost = [area_under_curve(h, m) - area_under_curve(h[:, ::-1], m) for h, m in turned]
    assert np.mean(lost) > 0.02


def test_the_map_changes_where_the_marks_are_masked(explained: Explained) -> None:
    masked = [paint_over(i, m) for i, m in zip(explained.images, explained.marks, strict=True)]
    # The same shapes where they cover no mark: any change of the image changes the map a little.
    elsewhere = [np.roll(m, (32, 32), (0, 1)) & ~m for m in explained.marks]
    control = [paint_over(i, m) for i, m in zip(explained.images, elsewhere, strict=True)]

    def shares(maps: list[FloatArray]) -> list[FloatArray]:
        return [heat / heat.sum() for heat in maps]

    before, after, beside = map(
        shares, (explained.heat, explained.heat_of(masked), explained.heat_of(control))
    )
    on_marks, left, kept = (
        np.array([heat[m].sum() for heat, m in zip(maps, explained.marks, strict=True)])
        for maps in (before, after, beside)
    )
    assert (left < on_marks).mean() > 0.7
    assert left.mean() < 0.9 * on_marks.mean()
    assert abs(kept.mean() - on_marks.mean()) < on_marks.mean() - left.mean()
    moved, noise = (
        np.mean([np.abs(a - b).sum() for a, b in zip(maps, before, strict=True)])
        for maps in (after, beside)
    )
    assert moved > 2 * noise


def test_the_score_comes_from_the_hot_places(explained: Explained) -> None:
    def without(maps: list[FloatArray]) -> float:
        pairs = zip(explained.images, maps, strict=True)
        hidden = [paint_over(image, h >= np.quantile(h, 0.9)) for image, h in pairs]
        return float(explained.scores(hidden).mean())

    whole = float(explained.scores(explained.images).mean())
    others = explained.heat[7:] + explained.heat[:7]
    assert whole - without(explained.heat) > 1.5 * (whole - without(others))


def read_png(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image


@pytest.mark.parametrize(
    ("size", "drawn"),
    [((800, 400), (384, 192)), ((40, 60), (256, 384)), ((1, 3000), (1, 384))],
)
def test_the_image_keeps_its_shape(size: tuple[int, int], drawn: tuple[int, int]) -> None:
    image = read_png(overlay_png(Image.new("RGB", size), np.zeros((7, 5), np.float32)))
    assert image.size == drawn


def test_hot_places_shine_and_cold_ones_show_the_image() -> None:
    heat = np.zeros((8, 8), np.float32)
    heat[:, 4:] = 1
    shown = np.asarray(
        read_png(overlay_png(Image.new("RGB", (64, 64), (0, 120, 255)), heat)), float
    )
    cold, hot = shown[192, 30], shown[192, 350]
    assert cold[2] > cold[0] + 100  # still blue
    assert hot[0] > 150  # yellow over it
    assert hot.sum() > cold.sum()


def test_more_heat_is_brighter() -> None:
    ramp = np.linspace(0, 1, 64, dtype=np.float32)[None].repeat(64, axis=0)
    shown = np.asarray(read_png(overlay_png(Image.new("RGB", (64, 64), (90, 90, 90)), ramp)), float)
    assert (np.diff(shown[200, 20:-20:24].sum(axis=1)) > 0).all()


def test_other_modes_are_converted() -> None:
    for mode in ("L", "RGBA", "P"):
        assert read_png(overlay_png(Image.new(mode, (20, 20)), np.ones((4, 4), np.float32)))


def test_a_map_of_another_shape_is_refused() -> None:
    for shape in ((4,), (1, 4, 4), (0, 4)):
        with pytest.raises(ShapeError, match="heat_map"):
            overlay_png(Image.new("RGB", (8, 8)), np.zeros(shape, np.float32))


class Strides(nn.Module):
    """Three levels of box filters with stride 2."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.feature_info = SimpleNamespace(channels=lambda: [3, 3, 3])
        self.filter = nn.Conv2d(3, 3, kernel, stride=2, padding=padding, groups=3)
        nn.init.constant_(self.filter.weight, 1 / kernel**2)

    def forward(self, images: Tensor) -> list[Tensor]:
        first = self.filter(images)
        second = self.filter(first)
        return [first, second, self.filter(second)]


def test_padded_strides_look_at_the_first_pixel_and_patches_at_their_middle() -> None:
    padded = cell_offsets(Backbone(Strides(3, 1), 3))
    assert padded == pytest.approx((1 / 4, 1 / 8, 1 / 16), abs=1e-3)  # the first of 2, 4, 8 pixels
    patches = cell_offsets(Backbone(Strides(2, 0), 3))
    assert patches == pytest.approx((0.5, 0.5, 0.5), abs=1e-3)


def test_the_answer_is_kept_with_the_backbone_and_no_longer() -> None:
    one = Backbone(Strides(3, 1), 3)
    before = torch.random.get_rng_state()
    offsets = cell_offsets(one)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert cell_offsets(one) is offsets
    kept = len(_MEASURED)
    del one
    gc.collect()
    assert len(_MEASURED) < kept


def test_an_offset_of_a_half_is_what_resizing_does() -> None:
    values = np.random.default_rng(0).random((4, 6)).astype(np.float32)
    drawn = lay_out(values, (32, 96), offset=0.5)
    resized = Image.fromarray(values).resize((96, 32), Image.Resampling.BILINEAR)
    assert drawn.dtype == np.float32
    assert drawn == pytest.approx(np.asarray(resized), abs=1e-5)


def test_cells_are_drawn_where_they_look() -> None:
    values = np.zeros((8, 8), np.float32)
    values[2, 5] = 1
    for offset in (0.0, 0.25, 0.5):
        drawn = lay_out(values, (64, 64), offset=offset)
        y, x = (np.average(np.arange(64) + 0.5, weights=drawn.sum(axis=a)) for a in (1, 0))
        assert y == pytest.approx(8 * 2 + 8 * offset, abs=0.1)
        assert x == pytest.approx(8 * 5 + 8 * offset, abs=0.1)


def test_a_constant_stays_constant_at_any_size() -> None:
    for cells, pixels in ((1, 7), (3, 5), (6, 4), (2, 1)):
        drawn = lay_out(np.full((cells, cells), 2.0, np.float32), (pixels, 9), offset=0.3)
        assert drawn == pytest.approx(np.full((pixels, 9), 2.0))


def test_a_class_token_speaks_for_no_place() -> None:
    model = tiny_model(*TOKENS)
    evidence = match_evidence(model, square(model), code=CODE)
    assert [level.shape for level in evidence.levels] == [(64, 4, 4), (64, 4, 4), (64, 1, 1)]
    *maps, token = evidence.support()
    offsets = cell_offsets(model.network.backbone)
    drawn = fuse_levels([*maps, token], (SIDE, SIDE), offsets=offsets)
    without = fuse_levels(maps, (SIDE, SIDE), offsets=offsets[:2])
    np.testing.assert_allclose(drawn - without, token[0, 0], rtol=1e-3)
    assert heat_map(model, bird(), code=CODE).max() == 1


def test_patches_that_do_not_divide_the_probe_are_measured() -> None:
    # Patches of 14 pixels, as DINOv2 has them, do not divide 256.
    class Patches(Strides):
        patch_embed = SimpleNamespace(patch_size=(14, 14))

        def forward(self, images: Tensor) -> list[Tensor]:
            assert images.shape[-1] % 14 == 0
            return super().forward(images)

    assert cell_offsets(Backbone(Patches(2, 0), 3))[:2] == pytest.approx((0.5, 0.5), abs=1e-3)
