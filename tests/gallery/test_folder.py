"""The folder of a gallery: manifest, damage and the lock of its writer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made_up_galleries import make_codebooks
from phpq.errors import ConfigError, DataError, FormatError
from phpq.files import write_json
from phpq.gallery.folder import (
    HINT,
    IMAGES,
    LOCK,
    MANIFEST,
    damage_named,
    new_manifest,
    new_own_manifest,
    newest_seen,
    parse_manifest,
    read_manifest,
    writing,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = new_manifest(make_codebooks(), "abc", query_norm="raw", keep_embeddings=True)
    write_json(tmp_path / MANIFEST, manifest.to_dict())
    assert read_manifest(tmp_path) == manifest
    assert manifest.bits == json.loads((tmp_path / MANIFEST).read_text())["bits"] == 6
    assert manifest.created.endswith("+00:00")


def test_the_calibration_is_in_the_manifest_only_if_there_is_one(
    tmp_path: Path,
) -> None:
    plain = new_manifest(make_codebooks(), "abc")
    assert "chances" not in plain.to_dict()
    calibrated = replace(plain, chances="abc123")
    assert parse_manifest(calibrated.to_dict(), tmp_path) == calibrated
    assert calibrated.same_gallery(plain)
    upgraded = replace(calibrated, format_version=3, before=2)
    assert parse_manifest(upgraded.to_dict(), tmp_path) == upgraded
    for bad in ("../other", 3):
        with pytest.raises(FormatError, match="damaged"):
            parse_manifest(plain.to_dict() | {"chances": bad}, tmp_path)


def test_a_gallery_that_owns_its_codebooks_says_so(tmp_path: Path) -> None:
    plain = new_manifest(make_codebooks(), "abc")
    assert plain.to_dict()["format_version"] == 1
    assert not {"codebooks", "space", "trust", "books", "fit"} & set(plain.to_dict())
    assert plain.common() == plain
    own = replace(new_own_manifest(20, "abc", bits=24), books="x", fit="y", fitted_rows=7)
    content = own.to_dict()
    assert parse_manifest(content, tmp_path) == own
    shown = {name: content[name] for name in ("format_version", "codebooks", "space", "bits")}
    assert shown == {"format_version": 2, "codebooks": "own", "space": "general", "bits": 24}
    longer = replace(own, num_codebooks=8, trust=0.1, books="z", fit="z", fitted_rows=9)
    assert longer.common() == own.common() != replace(own, embedding_dim=21).common()
    for change in ({"trust": 2}, {"space": "odd"}, {"codebooks": "model"}, {"books": 1}):
        with pytest.raises(FormatError, match="do not fit together"):
            parse_manifest(content | change, tmp_path)
    with pytest.raises(FormatError, match="is damaged"):
        parse_manifest({name: content[name] for name in content if name != "fit"}, tmp_path)
    for bits in (0, 12, 264):
        with pytest.raises(ConfigError, match="multiple of 8 from 8 to 256"):
            new_own_manifest(20, "abc", bits=bits)
    with pytest.raises(ConfigError, match=r"trust=1\.5"):
        new_own_manifest(20, "abc", trust=1.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 4}, "format version 4; this phpq .* reads up to 3. Update phpq"),
        ({"format_version": 2}, "is damaged"),  # says nothing of codebooks
        ({"format_version": "x"}, "do not fit together"),
        ({"bits": 7}, "do not fit together"),
        ({"codebook_size": 3}, "do not fit together"),
        ({"num_codebooks": None}, "is damaged"),
        ({"query_norm": "odd"}, "do not fit together"),
        ({"keep_embeddings": 1}, "do not fit together"),
    ],
)
def test_wrong_values_name_the_repair(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = new_manifest(make_codebooks(), "abc").to_dict() | change
    with pytest.raises(FormatError, match=message) as raised:
        parse_manifest(content, tmp_path)
    assert f"phpq gallery verify --repair {tmp_path}" in str(raised.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"does not exist. Make one with: phpq index"):
        read_manifest(tmp_path / "none")
    with pytest.raises(FormatError, match=r"is not a gallery: it has no manifest.json. Give a"):
        read_manifest(tmp_path)
    (tmp_path / "images.lance").mkdir()
    with pytest.raises(FormatError, match="phpq gallery verify --repair"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(FormatError, match=r"damaged.*phpq gallery verify --repair"):
        read_manifest(tmp_path)


def test_damage_names_the_repair_and_hides_the_source(tmp_path: Path) -> None:
    with (
        pytest.raises(FormatError, match=r"is damaged: Not found: x. Repair it with: phpq gallery"),
        damage_named(tmp_path),
    ):
        raise OSError("Not found: x, /home/builder/src/io.rs:3:4")


def test_our_own_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mine"), damage_named(tmp_path):
        raise ConfigError("mine")


def test_the_hint_is_only_a_hint(tmp_path: Path) -> None:
    assert newest_seen(tmp_path) == 0
    hint = tmp_path / IMAGES / HINT
    hint.parent.mkdir(parents=True)
    hint.write_text("nonsense")
    assert newest_seen(tmp_path) == 0
    hint.write_text('{"version": 4}')
    assert newest_seen(tmp_path) == 4


HOLD = """
import sys, time
from pathlib import Path
from phpq.gallery.folder import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_waits_then_is_told_who_writes(tmp_path: Path) -> None:
    with (
        writing(tmp_path),
        pytest.raises(DataError, match=r"another process \(number \d+\).*Nothing was lost"),
        writing(tmp_path, timeout=0.05),
    ):
        pass
    with writing(tmp_path, timeout=0):  # freed
        pass


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataError, match=f"number {holder.pid}"), writing(tmp_path, timeout=0):
            pass
        holder.kill()
        holder.wait()
        with writing(tmp_path, timeout=5):
            assert (tmp_path / LOCK).is_file()


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be changed"), writing(tmp_path / "none"):
        pass
