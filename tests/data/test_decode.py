from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from phpq.config import DataConfig
from phpq.data import (
    LabelledImages,
    decode_all,
    decode_square,
    decode_squares,
    open_dataset,
    read_image,
    to_square,
)
from phpq.data.decode import FORMATS, image_format, read_ahead
from phpq.data.folder import open_folder
from phpq.errors import BadImageError, DataError
from picture_files import plain_images, write_classes, write_image

SMALL = DataConfig(store_size=8)


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and has no pixels to match."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (Image.new("L", (3, 2), 100), "PNG", (100, 100, 100)),
        (Image.new("1", (3, 2), 1), "PNG", (255, 255, 255)),
        (Image.new("LA", (3, 2), (0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (3, 2), (200, 0, 0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (3, 2), (200, 0, 0, 255)), "PNG", (200, 0, 0)),
        (Image.new("P", (3, 2), 0).convert("RGB").convert("P"), "GIF", (0, 0, 0)),
        (Image.new("I;16", (3, 2), 65535), "PNG", (255, 255, 255)),
        (Image.new("I;16", (3, 2), 257 * 90), "PNG", (90, 90, 90)),
        (Image.new("I", (3, 2), 200), "TIFF", (200, 200, 200)),
        (Image.new("F", (3, 2), 0.5), "TIFF", (0, 0, 0)),
        (Image.new("CMYK", (3, 2), (0, 0, 0, 0)), "TIFF", (255, 255, 255)),
    ],
)
def test_any_mode_becomes_rgb(
    image: Image.Image, kind: str, expected: tuple[int, int, int]
) -> None:
    seen = read_image(encoded(image, kind))
    assert seen.mode == "RGB"
    assert seen.size == (3, 2)
    assert seen.getpixel((1, 1)) == expected


def test_float_images_are_scaled_by_the_range_seen() -> None:
    image = Image.fromarray(np.array([[-1.0, 0.0, 3.0]], dtype=np.float32))
    row = np.asarray(read_image(encoded(image, "TIFF")))[0, :, 0]
    assert row.tolist() == [0, 64, 255]


def test_palette_and_rgb_transparency_are_laid_over_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    seen = read_image(encoded(palette, "PNG", transparency=0))
    assert [seen.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (40, 50, 60)]
    keyed = encoded(Image.new("RGB", (2, 1), (9, 9, 9)), "PNG", transparency=(9, 9, 9))
    assert read_image(keyed).getpixel((0, 0)) == (255, 255, 255)


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (20, 10), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(encoded(image, "JPEG", exif=exif)).size == (10, 20)


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(data).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"these are words, not pixels", "not an image"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:-400], "damaged .*truncated"),
        (encoded(Image.effect_noise((64, 64), 50), "PNG")[:900], "damaged"),
        (png_header(40_000, 40_000), "40000 x 40000 pixels are more than the limit of 100,000,000"),
        (png_header(9_600, 9_600), "damaged"),  # under our limit, over Pillow's first one
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "bird.jpg"
    path.write_bytes(data)
    with pytest.raises(BadImageError, match=reason) as caught:
        read_image(path)
    assert repr(str(path)) in str(caught.value)
    with pytest.raises(BadImageError, match="'the upload'"):
        read_image(data, name="the upload")


@pytest.mark.parametrize("name", ["bird.eps", "bird.jpg"])
@pytest.mark.parametrize("kind", ["EPS", "PCX", "ICO"])
def test_other_formats_are_refused_before_their_loader_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    data = encoded(Image.new("RGB", (20, 10), (255, 0, 0)), kind)
    assert kind not in FORMATS
    (tmp_path / name).write_bytes(data)
    _, accept = Image.OPEN[kind]
    monkeypatch.setitem(Image.OPEN, kind, (lambda *_: pytest.fail("it was opened"), accept))
    for source in (tmp_path / name, data):
        with pytest.raises(BadImageError, match=rf"looks like {kind}\. Opened are JPEG, PNG"):
            read_image(source)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_that_is_meant_is_opened(kind: str) -> None:
    data = encoded(Image.new("RGB", (64, 48), (255, 255, 255)), kind)
    assert read_image(data).size == (64, 48)
    assert image_format(data) == kind


def test_missing_files_and_folders_are_bad_images(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match="there is no such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(BadImageError, match="directory"):
        read_image(tmp_path)


def test_pillow_keeps_its_own_limit() -> None:
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(BadImageError, match="limit of 3"):
        read_image(encoded(Image.new("RGB", (2, 2)), "PNG"), max_pixels=3)
    assert before == Image.MAX_IMAGE_PIXELS


def test_squash_keeps_everything_and_crop_keeps_the_centre() -> None:
    image = Image.new("RGB", (30, 10), (0, 0, 0))
    image.paste((255, 255, 255), (10, 0, 20, 10))  # the centre square is white
    crop = to_square(image, 10, "crop")
    squash = to_square(image, 12, "squash")
    assert crop.shape == (3, 10, 10)
    assert crop.dtype == np.uint8
    assert crop.flags.c_contiguous
    assert (crop == 255).all()
    assert squash.shape == (3, 12, 12)
    assert 0.3 < squash.mean() / 255 < 0.36
    assert to_square(image.transpose(Image.Transpose.ROTATE_90), 10, "crop").min() == 255


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_a_square_of_the_right_size_is_not_touched(fit: Literal["squash", "crop"]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    assert (to_square(Image.fromarray(pixels), 9, fit) == pixels.transpose(2, 0, 1)).all()


def test_a_large_jpeg_decoded_small_stays_close_to_the_full_decode() -> None:
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    image = Image.fromarray(np.stack([np.tile(ramp, (600, 1))] * 3, axis=2))
    data = encoded(image, "JPEG", quality=95)
    assert read_image(data, draft=100).size == (200, 150)
    assert read_image(data).size == (800, 600)
    fast = decode_square(data, DataConfig(store_size=32)).astype(int)
    full = to_square(read_image(data), 32).astype(int)
    assert np.abs(fast - full).max() <= 4


def birds(root: Path) -> LabelledImages:
    return open_folder(write_classes(root, {"owl": 8, "wren": 8})).train


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_decoding_all_equals_decoding_one_by_one(tmp_path: Path, workers: int) -> None:
    images = birds(tmp_path / "birds")
    calls: list[tuple[int, int]] = []
    decoded = decode_all(
        images, SMALL, workers=workers, progress=lambda done, total: calls.append((done, total))
    )
    for index in range(len(images)):
        path = images.path(index)
        assert path is not None
        assert (decoded.pixels[index] == decode_square(path, SMALL)).all()
    assert decoded.images is images
    assert decoded.skipped == ()
    assert calls == [(i + 1, len(images)) for i in range(len(images))]


def test_a_set_is_decoded_as_squares_and_reasons(tmp_path: Path) -> None:
    images = birds(tmp_path / "birds")
    path = images.path(3)
    assert path is not None
    path.write_bytes(b"")
    for row, square in enumerate(decode_squares(images, SMALL, ahead=2)):
        if row == 3:
            assert (
                square == f"Cannot read the image {images.ids[3]!r}: the file is empty (0 bytes)."
            )
        else:
            assert np.array_equal(square, decode_square(images.path(row) or b"", SMALL))


def test_images_without_files_are_read_by_their_reader() -> None:
    decoded = decode_all(plain_images([0, 1, 0], ("a", "b")), SMALL)
    assert decoded.pixels[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_bad_images_are_skipped_by_name_and_the_rest_stays_in_order(tmp_path: Path) -> None:
    images = birds(tmp_path / "birds")
    whole = decode_all(images, SMALL).pixels
    for index in (0, 5):
        path = images.path(index)
        assert path is not None
        path.write_bytes(b"")
    decoded = decode_all(images, SMALL, workers=2)
    kept = [i for i in range(len(images)) if i not in (0, 5)]
    assert decoded.images.ids == tuple(images.ids[i] for i in kept)
    assert (decoded.pixels == whole[kept]).all()
    assert [image.id for image in decoded.skipped] == [images.ids[0], images.ids[5]]
    assert "0 bytes" in decoded.skipped[0].reason
    assert len(decoded) == len(kept) == len(decoded.pixels)


def test_refuse_lists_ten_bad_images(tmp_path: Path) -> None:
    images = birds(tmp_path / "birds")
    for index in range(11):
        path = images.path(index)
        assert path is not None
        path.write_text("no")
    config = DataConfig(store_size=8, on_bad_image="refuse")
    with pytest.raises(DataError, match="11 of 12 images") as caught:
        decode_all(images, config)
    assert str(caught.value).count("Cannot read the image") == 10
    assert "... and 1 more" in str(caught.value)


def test_a_class_left_empty_is_an_error(tmp_path: Path) -> None:
    images = birds(tmp_path / "birds")
    for index in np.flatnonzero(images.labels == 1):
        path = images.path(int(index))
        assert path is not None
        path.write_bytes(b"x")
    with pytest.raises(DataError, match=r"1 class \('wren'\) without a readable image"):
        decode_all(images, SMALL)


def test_max_pixels_of_the_config_holds(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"owl": 4, "wren": 4})
    write_image(root / "owl" / "9.png", side=40)
    dataset = open_dataset(root)
    config = DataConfig(store_size=8, max_pixels=200)
    skipped = [
        image.id
        for split in (dataset.train, dataset.test)
        for image in decode_all(split, config).skipped
    ]
    assert skipped == ["owl/9.png"]


def test_an_error_in_the_progress_callback_stops_the_work(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all(birds(tmp_path / "birds"), SMALL, progress=stop)


@pytest.mark.parametrize("ahead", [1, 3, 100])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_are_those_of_a_plain_loop(ahead: int, workers: int) -> None:
    done = list(read_ahead(range(40), lambda n: n * n, ahead=ahead, workers=workers))
    assert done == [n * n for n in range(40)]


def test_items_are_taken_only_so_far_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    results = read_ahead(items(), str, ahead=5)
    assert next(results) == "1"
    assert taken == 6
    results.close()
    assert taken == 6


def test_an_error_is_raised_where_its_result_would_be() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    seen: list[int] = []
    with pytest.raises(ValueError, match="three"):
        seen.extend(read_ahead(range(9), work, ahead=9))
    assert seen == [0, 1, 2]


def test_threads_end_and_waiting_work_is_dropped_when_the_consumer_stops() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number:
            gate.wait(10)
        return number

    results = read_ahead(range(50), work, ahead=20, workers=2)
    before = threading.active_count()
    assert next(results) == 0
    threading.Timer(0.1, gate.set).start()
    results.close()
    assert len(begun) < 20
    gate.wait(10)
    assert threading.active_count() <= before + 1  # the timer may still be ending
