"""The model a user holds: all ways in give the same embeddings; loading says what is wrong."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from phpq.data import Dataset, decode_all, open_dataset, write_plumage
from phpq.data.batches import Views
from phpq.errors import BadImageError, ConfigError, FormatError, ShapeError
from phpq.evaluation import LabelledEmbeddings, evaluate_codes
from phpq.model import TorchModel, load, resolve_device
from phpq.model.checkpoint import ModelCard
from phpq.model.retrieval import apply_to_pixels
from tiny_runs import SIDE, tiny_birds, tiny_config, tiny_network


def make_model(*assignments: str, seed: int = 0) -> TorchModel:
    dataset = tiny_birds()
    card = ModelCard(
        config=tiny_config(*assignments), class_names=dataset.class_names, dataset="birds"
    )
    network = tiny_network(*assignments, seed=seed)
    return TorchModel(network, card, device=torch.device("cpu"), epochs=2)


@pytest.fixture(scope="module")
def model() -> TorchModel:
    return make_model()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = write_plumage(tmp_path_factory.mktemp("birds"), tiny_birds())
    return open_dataset(str(folder))


@pytest.fixture(scope="module")
def pixels(files: Dataset, model: TorchModel) -> NDArray[np.uint8]:
    return decode_all(files.train, model.card.config.data, workers=1).pixels


def test_every_way_in_gives_the_same_embeddings(
    model: TorchModel, files: Dataset, pixels: NDArray[np.uint8]
) -> None:
    expected = model.embed_pixels(pixels)
    assert expected.shape == (24, 32)
    assert expected.dtype == np.float32
    paths = [path for i in range(24) if (path := files.train.path(i))]
    for images in (
        files.train,
        paths,
        [str(path) for path in paths],
        [files.train.read(i) for i in range(24)],
    ):
        np.testing.assert_array_equal(model.embed(images), expected)
    np.testing.assert_array_equal(model.embed_pixels(pixels.copy()), expected)
    for single in (paths[3], str(paths[3]), Image.open(paths[3])):
        np.testing.assert_allclose(model.embed(single), expected[3:4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
def test_batch_size_never_changes_codes(
    model: TorchModel, files: Dataset, pixels: NDArray[np.uint8], batch_size: int
) -> None:
    codes = model.encode(files.train)
    assert codes.dtype == np.uint8
    assert codes.shape == (24, 4)
    assert len(np.unique(codes, axis=0)) > 1
    np.testing.assert_array_equal(model.encode(files.train, batch_size=batch_size), codes)
    embeddings = model.embed_pixels(pixels, batch_size=batch_size)
    np.testing.assert_array_equal(model.codebooks.encode(embeddings), codes)


def test_whole_batches_have_one_shape_and_change_no_row(
    model: TorchModel, pixels: NDArray[np.uint8]
) -> None:
    data, seen = model.card.config.data, list[int]()

    def means(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return images.mean(dim=(2, 3))

    def apply(count: int, *, whole: bool) -> torch.Tensor:
        return apply_to_pixels(
            means, pixels[:count], data, device=model.device, batch_size=10, whole_batches=whole
        )

    for count, batches in ((24, 3), (20, 2), (3, 1)):
        expected = apply(count, whole=False)
        seen.clear()
        got = apply(count, whole=True)
        assert seen == [10] * batches
        assert torch.equal(got, expected)
        assert len(got) == count


def test_gallery_order_never_changes_map(model: TorchModel, files: Dataset) -> None:
    queries = LabelledEmbeddings(model.embed(files.test), files.test.labels)
    rng = np.random.default_rng(0)
    scores = []
    for order in (np.arange(24), np.arange(24)[::-1], rng.permutation(24)):
        gallery = files.train.subset(order)
        scores.append(
            evaluate_codes(
                queries,
                model.encode(gallery),
                gallery_labels=gallery.labels,
                codebooks=model.codebooks,
            ).map
        )
    assert scores[0] == scores[1] == scores[2]


def test_embedding_twice_gives_the_same_whatever_mode_was_left_on(
    pixels: NDArray[np.uint8],
) -> None:
    model = make_model("data.crop_scale=0.3", "data.jitter=0.4")
    model.network.train()
    statistics = model.network.state_dict()["norm.running_mean"].clone()
    first = model.embed_pixels(pixels)
    model.network.train()
    np.testing.assert_array_equal(model.embed_pixels(pixels), first)
    # In training mode a batch would have moved the running statistics.
    assert torch.equal(model.network.state_dict()["norm.running_mean"], statistics)


def test_training_augmentation_is_never_asked_for(
    pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a gallery image must not be augmented")

    monkeypatch.setattr(Views, "train", refuse)
    assert make_model().embed_pixels(pixels).shape == (24, 32)


def test_settings_of_augmentation_do_not_touch_embeddings(pixels: NDArray[np.uint8]) -> None:
    plain = make_model("data.flip=false", "data.crop_scale=1.0")
    wild = make_model("data.flip=true", "data.crop_scale=0.1", "data.jitter=0.9")
    np.testing.assert_array_equal(plain.embed_pixels(pixels), wild.embed_pixels(pixels))


def test_mirrored_views_are_averaged(pixels: NDArray[np.uint8]) -> None:
    both = make_model("data.eval_flip=true")
    mirrored = np.ascontiguousarray(pixels[..., ::-1])
    embeddings = both.embed_pixels(pixels)
    # An image and its mirror become the same, up to rounding.
    np.testing.assert_allclose(embeddings, both.embed_pixels(mirrored), rtol=1e-3, atol=1e-4)
    one = make_model()
    parts = [one.embed_pixels(p).reshape(24, 4, 8) for p in (pixels, mirrored)]
    units = [part / np.linalg.norm(part, axis=2, keepdims=True) for part in parts]
    np.testing.assert_allclose(
        embeddings, ((units[0] + units[1]) / 2).reshape(24, 32), rtol=1e-3, atol=1e-4
    )


def test_no_images_give_no_rows(model: TorchModel) -> None:
    assert model.embed([]).shape == (0, 32)
    assert model.encode([]).shape == (0, 4)
    assert model.embed_pixels(np.empty((0, 3, SIDE, SIDE), np.uint8)).shape == (0, 32)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 3, 8, 8), np.float32),
        np.zeros((2, 8, 8, 3), np.uint8),
        np.zeros((3, 8, 8), np.uint8),
    ],
    ids=["float", "channels last", "one image"],
)
def test_pixels_of_the_wrong_kind_are_refused(model: TorchModel, wrong: NDArray[np.uint8]) -> None:
    with pytest.raises(ShapeError, match=r"give \(N, 3, S, S\) uint8"):
        model.embed_pixels(wrong)


def test_an_unreadable_image_is_named(model: TorchModel, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(BadImageError, match=r"bad\.jpg"):
        model.embed(tmp_path / "bad.jpg")
    with pytest.raises(BadImageError, match=r"gone\.jpg"):
        model.embed(["gone.jpg"])


def test_saving_and_loading_changes_no_bit(
    tmp_path: Path, model: TorchModel, pixels: NDArray[np.uint8]
) -> None:
    folder = model.save(tmp_path / "new" / "model")
    loaded = load(folder, device="cpu")
    np.testing.assert_array_equal(loaded.embed_pixels(pixels), model.embed_pixels(pixels))
    np.testing.assert_array_equal(loaded.codebooks.codewords, model.codebooks.codewords)
    assert loaded.fingerprint() == model.fingerprint()
    assert (loaded.card, loaded.epochs, loaded.bits) == (model.card, 2, 12)
    assert loaded.class_names == tiny_birds().class_names
    assert load(str(folder)).fingerprint() != make_model(seed=1).fingerprint()


@pytest.mark.parametrize("source", ["nowhere", "./runs/birds", "/tmp/no/such/run", "a/b/c"])
def test_a_folder_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(FormatError, match=rf"There is no folder '{source}'.*owner/name"):
        load(source)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not a model folder"):
        load(tmp_path)


def test_a_hub_id_offline_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FormatError, match="'owner/name' is neither a folder nor a model"):
        load("owner/name")


def test_a_hub_id_is_fetched(
    tmp_path: Path, model: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model.save(tmp_path / "snapshot")

    def fetch(name: str, allow_patterns: list[str], endpoint: str | None) -> str:
        assert name == "owner/name"
        assert "config.json" in allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert load("owner/name").fingerprint() == model.fingerprint()


def test_devices_are_resolved_or_refused() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("warp drive", "cuda:99"):
        with pytest.raises(ConfigError, match=f"Device '{name}' cannot be used: .*Use 'auto'"):
            resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_cuda_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Device 'cuda' cannot be used"):
        resolve_device("cuda")
