"""The model of a version: found, loaded once, and refused if it did not make the codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery.models import (
    MODEL,
    MODELS,
    Models,
    as_model,
    is_made_by,
    load_model,
    manifest_for,
    model_folder,
    run_of,
    save_model,
)
from served_galleries import copy_gallery, tiny_model


def test_a_version_names_its_model(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    manifest = GalleryStore.open(folder).manifest
    assert model_folder(folder, manifest) == model_folder(folder, None) == folder / MODEL
    upgraded = replace(manifest, model="abc", format_version=3)
    assert model_folder(folder, upgraded) == folder / MODELS / "abc"
    assert run_of(folder) is None
    assert is_made_by(manifest, as_model(folder / MODEL, "cpu"))
    assert not is_made_by(replace(manifest, model_fingerprint="abc"), tiny_model())


def test_models_are_loaded_on_demand_and_two_are_kept(tmp_path: Path) -> None:
    folder = copy_gallery(tmp_path)
    manifest = GalleryStore.open(folder).manifest
    models = Models(folder, device="cpu")
    first = models.of(manifest)
    assert models.of(replace(manifest, before=3)) is first
    assert Models.one(folder, first, manifest).of(manifest) is first
    with pytest.raises(FormatError, match="made by another model"):
        models.of(replace(manifest, model_fingerprint="abc"))
    with pytest.raises(FormatError, match=f"cannot be read.*{MODELS}.*phpq gallery verify"):
        load_model(folder, replace(manifest, model="abc"))
    assert models.of(manifest) is first


def test_a_model_is_saved_whole_and_once(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_model(), "abc")
    saved = sorted(path.name for path in (tmp_path / MODELS / "abc").iterdir())
    assert "weights.safetensors" in saved
    (tmp_path / MODELS / "abc" / "weights.safetensors").unlink()
    save_model(tmp_path, tiny_model(), "abc")
    assert not (tmp_path / MODELS / "abc" / "weights.safetensors").exists()  # it was there
    assert [path.name for path in (tmp_path / MODELS).iterdir()] == ["abc"]


def test_whose_codebooks_must_be_known() -> None:
    with pytest.raises(ConfigError, match="use 'model' or 'own'"):
        manifest_for(
            tiny_model(),
            "mine",  # type: ignore[arg-type]
            bits=8,
            trust=0.5,
            keep_embeddings=True,
        )
