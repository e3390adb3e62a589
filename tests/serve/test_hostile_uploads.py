"""Uploads that mean harm: each is refused or decoded, quickly, and the server goes on."""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from served_galleries import new_photo, photo, served

SECONDS = 20.0  # for one answer, on a machine that has other things to do


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(max_upload_bytes=2_000_000, max_pixels=4_000_000, decode_seconds=10) as client:
        yield client


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(width: int, height: int, pixels: bytes, *extra: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(pixels, 9))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + data + chunk(b"IEND", b"")


def saved(kind: str, size: tuple[int, int] = (60, 40)) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def with_wild_exif() -> bytes:
    stream = io.BytesIO()
    exif = b"Exif\0\0MM\0*" + b"\xff" * 200
    Image.new("RGB", (30, 30)).save(stream, "JPEG", exif=exif)
    return stream.getvalue()


REFUSED = {
    "empty": b"",
    "one byte": b"\xff",
    "text": b"hello, I am a picture",
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file",
    "eps": saved("EPS"),
    "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>",
    "zip": b"PK\x03\x04" + bytes(200),
    "elf": b"\x7fELF" + bytes(200),
    "truncated jpeg": photo()[:300],
    "truncated png": new_photo(0)[:300],
    "header of a jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "bomb: few bytes, many pixels": png(30_000, 30_000, bytes(1000)),
    "largest png there can be": png(2**31 - 1, 2**31 - 1, b""),
    "png of no size": png(0, 0, b""),
    "gif of 65535 x 65535": b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(20),
    "bmp of negative size": b"BM" + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, 40, -9, -9, 1, 24),
    "tiff that points to itself": b"II*\0\x08\0\0\0\x01\0" + b"\x08\0\0\0" * 40,
    "webp cut short": saved("WEBP")[:40],
    "text bomb in a png": png(
        9, 9, bytes(90)[:5], chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(50_000_000)))
    ),
    "nulls": bytes(100_000),
    "noise": np.random.default_rng(1).bytes(100_000),
}
DECODED = {
    "jpeg and html in one": photo() + b"<script>alert(1)</script>",
    "jpeg and zip in one": photo() + b"PK\x03\x04" + bytes(100),
    "wild exif": with_wild_exif(),
    "animation": saved("GIF"),
    "tall": png(1, 4000, bytes(2 * 4000)),
    "just below the limit": png(1900, 2100, bytes(1901 * 2100)),
    "webp": saved("WEBP"),
    "tiff": saved("TIFF"),
}


def post(client: TestClient, content: bytes, name: str = "photo.jpg") -> tuple[int, str]:
    start = time.monotonic()
    answer = client.post("/api/v1/search", files={"image": (name, content)}, data={"top_k": "1"})
    assert time.monotonic() - start < SECONDS
    assert client.get("/health").status_code == 200
    return answer.status_code, answer.text


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_reason(client: TestClient, name: str) -> None:
    status, text = post(client, REFUSED[name])
    assert status == 422, text
    assert "BadImageError" in text
    assert "photo.jpg" in text
    assert "root:" not in text


@pytest.mark.parametrize("name", ["postscript", "eps"])
def test_an_eps_is_named_and_no_program_is_looked_for(client: TestClient, name: str) -> None:
    for file in ("photo.jpg", "photo.eps"):
        status, text = post(client, REFUSED[name], file)
        assert status == 422
        assert "looks like EPS. Opened are JPEG" in text
        assert "Ghostscript" not in text


@pytest.mark.parametrize("name", DECODED)
def test_it_is_an_image_and_nothing_more(client: TestClient, name: str) -> None:
    status, text = post(client, DECODED[name])
    assert status == 200, text


def test_too_many_bytes_are_refused_by_size(client: TestClient) -> None:
    status, text = post(client, bytes(2_000_001))
    assert status == 413
    assert "2,000,000 bytes" in text
    assert post(client, bytes(30_000_000))[0] == 413


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a\x00b.jpg", "<script>.jpg", "x" * 500, "ü\u202e.jpg", '"; rm'],
)
def test_the_name_of_a_file_is_only_a_word(client: TestClient, name: str) -> None:
    assert post(client, photo(), name)[0] == 200
    status, text = post(client, b"no image", name)
    assert status == 422
    assert "/etc" not in text


def test_a_name_of_many_kilobytes_is_refused(client: TestClient) -> None:
    assert post(client, photo(), "x" * 50_000)[0] == 400


def test_forms_that_are_none(client: TestClient) -> None:
    for content, kind in (
        (b"", "multipart/form-data"),
        (b"--x", "multipart/form-data; boundary=x"),
        (b"--x\r\n\r\n\r\n--x--", "multipart/form-data; boundary=x"),
        (b"a=b&" * 5000, "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"--x\r\nContent-Disposition: form-data; name=image\r\n\r\ntext\r\n--x--\r\n",
         "multipart/form-data; boundary=x"),
    ):  # fmt: skip
        for path in ("search", "search/batch", "explain"):
            answer = client.post(f"/api/v1/{path}", content=content, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (path, kind, answer.text)
    many = [("image", (str(n), b"x")) for n in range(40)]
    assert 400 <= client.post("/api/v1/search/batch", files=many).status_code < 500
