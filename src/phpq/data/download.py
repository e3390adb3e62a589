"""The name of a benchmark in, its unpacked folder out; from the official addresses only.

An interrupted transfer continues where it stopped, now or at the next call. Archives are unpacked
after their checksum was verified, and the folder is renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phpq.errors import DownloadError, unknown_name

Progress = Callable[[str, int, int], None]  # file, bytes done, bytes in all

ATTEMPTS = 5  # without a new byte; progress resets the count
WAIT_SECONDS = 1.0  # before the second attempt; doubled each time
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Archive:
    """One file of a benchmark."""

    url: str  # official address
    size: int  # bytes
    algorithm: str  # of the checksum, a name that hashlib knows
    checksum: str  # hexadecimal
    inside: str = "."  # folder of the data set in which the archive is unpacked

    @property
    def file(self) -> str:
        """The file's name on disk."""
        return self.url.rpartition("/")[2]


CATALOGUE: dict[str, tuple[Archive, ...]] = {
    "cub200": (
        # MD5: widely used for this file of CaltechDATA record 65de6-vp158, as by several loaders.
        # Size: as in TensorFlow Datasets, caltech_birds2011.
        Archive(
            url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            size=1_150_585_339,
            algorithm="md5",
            checksum="97eceeb196236b17998738112f37df78",
        ),
    ),
    "dogs120": (
        # Sizes and SHA-256 of both: TensorFlow Datasets, url_checksums/stanford_dogs.txt.
        Archive(
            url="http://vision.stanford.edu/aditya86/ImageNetDogs/images.tar",
            size=793_579_520,
            algorithm="sha256",
            checksum="a443fc2f9a851aa1a7b8e4fa4af94b8459fce2c9f5a2f4dd4669cf9673a4ec58",
            inside="images",
        ),
        Archive(
            url="http://vision.stanford.edu/aditya86/ImageNetDogs/lists.tar",
            size=481_280,
            algorithm="sha256",
            checksum="34b47cacd9a98b5d150e084f24d29391c084c55272295ec65c85651bc35f4d6c",
            inside="lists",
        ),
    ),
}


def download(name: str, folder: Path, *, progress: Progress | None = None) -> Path:
    """Fetch and unpack "cub200" or "dogs120" into `folder/name`, unless that exists.

    A `DownloadError` says what to do by hand; received bytes are kept.
    """
    if name not in CATALOGUE:
        raise unknown_name("download", name, CATALOGUE)
    target = folder / name
    if target.is_dir():
        return target
    archives = CATALOGUE[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [_fetch(archive, folder, progress) for archive in archives]
        _unpack(files, archives, target)
    except OSError as error:
        raise DownloadError(
            f"Cannot write {name} to {str(folder)!r}: {error.strerror or error}. "
            "Choose another folder or make room."
        ) from error
    for file in files:
        file.unlink(missing_ok=True)
    return target


def _fetch(archive: Archive, folder: Path, progress: Progress | None) -> Path:
    """Return the complete file with the right checksum; missing bytes are fetched."""
    file = folder / archive.file
    if not file.is_file():
        part = folder / f"{archive.file}.part"
        _transfer(archive, part, progress)
        part.replace(file)
    with file.open("rb") as stream:
        seen = hashlib.file_digest(stream, archive.algorithm).hexdigest()
    if seen != archive.checksum:
        size = file.stat().st_size
        file.unlink()
        raise DownloadError(
            f"{archive.file} ({size:,} bytes) has the {archive.algorithm} checksum {seen}; "
            f"expected {archive.checksum} ({archive.size:,} bytes). It has been removed: run the "
            f"command again. If it fails twice, the file at {archive.url} has changed."
        )
    return file


def _transfer(archive: Archive, part: Path, progress: Progress | None) -> None:
    """Append the missing bytes of a file to `part`; broken connections are retried."""
    import httpx

    failures = 0
    while (before := _size(part)) != archive.size:
        try:
            if _receive(archive, part, before, progress):
                return
            reason = "the connection ended early"
        except httpx.HTTPStatusError as error:
            answer = error.response
            reason = f"the server answered {answer.status_code} {answer.reason_phrase}"
            if answer.status_code == 416 and before:  # `part` is longer than the file
                part.unlink()
            elif answer.status_code < 500:  # a retry will not help
                raise _offline(archive, part, reason) from error
        except httpx.RemoteProtocolError:
            reason = "the connection ended early"
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
        failures = 0 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise _offline(archive, part, reason)
        time.sleep(WAIT_SECONDS * 2**failures)


def _receive(archive: Archive, part: Path, start: int, progress: Progress | None) -> bool:
    """Append the bytes from `start` on; returns whether the file is complete."""
    import httpx

    # Uncompressed: a compressed transfer could not be continued.
    headers = {"User-Agent": "phpq", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with httpx.stream(
        "GET", archive.url, headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True
    ) as response:
        response.raise_for_status()
        resumed = response.status_code == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink()  # not the requested range: start again
            return False
        done = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else archive.size
        with part.open("ab" if resumed else "wb") as stream:
            for block in response.iter_raw():  # written at once, so that none is lost
                stream.write(block)
                done += len(block)
                if progress:
                    progress(archive.file, done, total)
    return done >= total


def _offline(archive: Archive, part: Path, reason: str) -> DownloadError:
    have = _size(part)
    kept = f" The first {have:,} bytes are kept; a later run goes on from there." if have else ""
    return DownloadError(
        f"Cannot download {archive.url}: {reason}.{kept} Check the network and run the command "
        f"again, or fetch the file by other means, save it as {str(part.with_suffix(''))!r}, and "
        "run the command again to check and unpack it."
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _unpack(files: list[Path], archives: tuple[Archive, ...], target: Path) -> None:
    room = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(room, ignore_errors=True)
    try:
        for file, archive in zip(files, archives, strict=True):
            inside = room / archive.inside
            inside.mkdir(parents=True, exist_ok=True)
            try:
                with tarfile.open(file) as tar:
                    tar.extractall(inside, filter="data")  # refuses links and paths that lead out
            except (tarfile.TarError, EOFError) as error:
                reason = str(error).partition("\n")[0].rstrip(":")
                raise DownloadError(
                    f"Cannot unpack {str(file)!r}: {reason}. Remove the file and run the command "
                    "again."
                ) from error
        room.replace(target)
    finally:
        shutil.rmtree(room, ignore_errors=True)
