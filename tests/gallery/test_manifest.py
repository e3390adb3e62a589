from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from made_up_galleries import make_codebooks
from phpq.errors import FormatError
from phpq.gallery.manifest import (
    MANIFEST,
    new_manifest,
    parse_manifest,
    read_manifest,
    write_manifest,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = new_manifest(make_codebooks(), "abc", query_norm="raw", keep_embeddings=True)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert manifest.bits == json.loads((tmp_path / MANIFEST).read_text())["bits"] == 6
    assert manifest.created.endswith("+00:00")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format version 2; this phpq .* reads 1. Update phpq"),
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
