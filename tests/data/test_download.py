from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from phpq.data.download import CATALOGUE, Archive, download
from phpq.errors import DownloadError, UnknownNameError


class Site:
    """A small web server whose manners can be chosen."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True  # answer 206 to a Range request
        self.shift = 0  # answer with another range than was asked for
        self.cut: list[int] = []  # break each of the next answers after so many bytes
        self.status: list[int] = []  # errors to answer first
        self.asked: list[str | None] = []  # the Range header of each request
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        if self.status:
            request.send_error(self.status.pop(0))
            return
        data = self.files[request.path.lstrip("/")]
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and self.ranges else 0
        if start > 0 and start >= len(data):
            request.send_error(416)
            return
        start += self.shift if start else 0
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        body = data[start:]
        request.wfile.write(body[: self.cut.pop(0)] if self.cut else body)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # The package offers the function of the same name, so the module is found by its full name.
    monkeypatch.setattr(sys.modules["phpq.data.download"], "WAIT_SECONDS", 0.001)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    opened = Site()
    yield opened
    opened.close()


def tar(members: dict[str, bytes], hostile: tarfile.TarInfo | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if hostile:
            archive.addfile(hostile)
    return stream.getvalue()


BIRDS = tar({"Birds/owl.txt": b"owl" * 20_000, "Birds/wren.txt": b"wren"})


@pytest.fixture
def offer(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def add(data: bytes = BIRDS, *, checksum: str | None = None, inside: str = ".") -> None:
        site.files["birds.tar"] = data
        right = hashlib.sha256(data).hexdigest()
        archive = Archive(f"{site.url}/birds.tar", len(data), "sha256", checksum or right, inside)
        monkeypatch.setitem(CATALOGUE, "birds", (archive,))

    return add


def test_a_download_is_unpacked_and_cleaned_up(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer(inside="pictures")
    seen: list[tuple[str, int, int]] = []
    folder = download("birds", tmp_path / "new", progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "new" / "birds"
    assert (folder / "pictures/Birds/wren.txt").read_bytes() == b"wren"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["birds"]
    assert seen[-1] == ("birds.tar", len(BIRDS), len(BIRDS))
    assert download("birds", tmp_path / "new") == folder
    assert site.asked == [None]  # the second call asks nobody


def test_a_broken_transfer_goes_on_where_it_stopped(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    site.cut = [1000, 500]
    seen: list[int] = []
    download("birds", tmp_path, progress=lambda file, done, total: seen.append(done))
    assert site.asked == [None, "bytes=1000-", "bytes=1500-"]
    assert seen == sorted(seen)
    assert (tmp_path / "birds/Birds/owl.txt").stat().st_size == 60_000


def test_a_later_call_goes_on_too(site: Site, offer: Callable[..., None], tmp_path: Path) -> None:
    offer()
    (tmp_path / "birds.tar.part").write_bytes(BIRDS[:700])
    download("birds", tmp_path)
    assert site.asked == ["bytes=700-"]


def test_a_server_without_ranges_starts_over(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    site.ranges = False
    site.cut = [1000]
    download("birds", tmp_path)
    assert site.asked == [None, "bytes=1000-"]
    assert (tmp_path / "birds/Birds/wren.txt").read_bytes() == b"wren"


def test_a_range_that_was_not_asked_for_is_not_believed(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    site.shift = 5
    (tmp_path / "birds.tar.part").write_bytes(BIRDS[:700])
    download("birds", tmp_path)
    assert site.asked == ["bytes=700-", None]


def test_a_part_that_is_too_long_or_complete(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    (tmp_path / "birds.tar.part").write_bytes(BIRDS + b"extra")
    download("birds", tmp_path)
    assert site.asked == [f"bytes={len(BIRDS) + 5}-", None]
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "birds.tar.part").write_bytes(BIRDS)
    download("birds", tmp_path / "again")
    assert len(site.asked) == 2


def test_a_file_fetched_by_hand_is_used(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    (tmp_path / "birds.tar").write_bytes(BIRDS)
    download("birds", tmp_path)
    assert site.asked == []


def test_a_wrong_checksum_unpacks_nothing(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer(checksum="0" * 64)
    with pytest.raises(DownloadError, match=r"sha256 checksum .*expected 0000.*removed: run the"):
        download("birds", tmp_path)
    assert list(tmp_path.iterdir()) == []


def _outside() -> tarfile.TarInfo:
    return tarfile.TarInfo("../../escaped.txt")


def _link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("Birds/link")
    info.type = tarfile.SYMTYPE
    info.linkname = "../../../etc/passwd"
    return info


def _device() -> tarfile.TarInfo:
    info = tarfile.TarInfo("Birds/device")
    info.type = tarfile.CHRTYPE
    return info


@pytest.mark.parametrize("hostile", [_outside, _link, _device])
def test_a_hostile_archive_is_refused(
    offer: Callable[..., None], tmp_path: Path, hostile: Callable[[], tarfile.TarInfo]
) -> None:
    offer(tar({"Birds/owl.txt": b"owl"}, hostile()))
    home = tmp_path / "deep" / "home"
    with pytest.raises(DownloadError, match="Cannot unpack"):
        download("birds", home)
    assert [path.name for path in home.iterdir()] == ["birds.tar"]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_a_damaged_archive_is_refused(offer: Callable[..., None], tmp_path: Path) -> None:
    offer(b"this is no archive")
    with pytest.raises(DownloadError, match=r"Cannot unpack .*Remove the file"):
        download("birds", tmp_path)
    assert not (tmp_path / "birds").exists()


def test_errors_of_the_server(site: Site, offer: Callable[..., None], tmp_path: Path) -> None:
    offer()
    site.status = [503, 500]
    download("birds", tmp_path / "patient")
    assert len(site.asked) == 3
    site.status = [404]
    with pytest.raises(DownloadError, match="the server answered 404 Not Found"):
        download("birds", tmp_path / "gone")
    assert len(site.asked) == 4  # asking again would not help


def test_a_server_that_always_breaks_is_given_up(
    site: Site, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer()
    site.cut = [10] + [0] * 20
    with pytest.raises(DownloadError, match=r"ended early. The first 10 bytes are kept"):
        download("birds", tmp_path)
    assert len(site.asked) == 6
    assert (tmp_path / "birds.tar.part").read_bytes() == BIRDS[:10]


def test_offline_says_what_to_do_by_hand(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = Archive("http://127.0.0.1:9/birds.tar", 10, "md5", "0" * 32)
    monkeypatch.setitem(CATALOGUE, "birds", (archive,))
    with pytest.raises(
        DownloadError, match=r"Cannot download http://127.*save it as '.*birds.tar'"
    ):
        download("birds", tmp_path)


def test_unknown_names_and_folders_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown download 'cub20'.*Did you mean 'cub200'"):
        download("cub20", tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"Cannot write cub200 to .*Choose another folder"):
        download("cub200", tmp_path / "file")


@pytest.mark.parametrize("name", ["cub200", "dogs120"])
def test_the_catalogue_is_well_formed(name: str) -> None:
    for archive in CATALOGUE[name]:
        assert len(archive.checksum) == 2 * hashlib.new(archive.algorithm).digest_size
        assert archive.file.endswith((".tgz", ".tar"))
