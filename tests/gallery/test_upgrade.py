"""An upgrade: other codes under the same ids and metadata, in one commit that can be taken back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from made_up_galleries import FakeModel, make_own_store, make_store
from own_galleries import KINDS, add, codes_of, expected_codes, filled, fit_again, write_pictures
from phpq.additive import Calibration
from phpq.codes import Codebooks, FloatArray, Space
from phpq.config import DataConfig
from phpq.errors import ConfigError, DataError, NotTrainedError
from phpq.gallery import GalleryStore, _embedded
from phpq.gallery.folder import EMBEDDING_LOCK, MANIFEST, read_manifest, writing
from phpq.gallery.ingest import Ingest
from phpq.gallery.models import MODEL, MODELS
from phpq.gallery.owned import BOOKS, SIDE, read_calibration, write_calibration
from phpq.gallery.repair import verify_store
from phpq.gallery.upgrade import UpgradeReport, drop_old, rollback, upgrade
from sure_galleries import certain


class OtherModel(FakeModel):
    """Embeds colours otherwise, into other dimensions, and has codebooks of another shape."""

    card = SimpleNamespace(config=SimpleNamespace(data=DataConfig(store_size=3, fit="squash")))
    query_norm = "unit"

    def __init__(self, name: str = "other", *, general: bool = True) -> None:
        super().__init__()
        words = np.random.default_rng(7).normal(size=(2, 16, 4))
        self.codebooks = Codebooks(
            (words / np.linalg.norm(words, axis=2, keepdims=True)).astype(np.float32)
        )
        self.name, self.general = name, general
        self.seen = 0  # images

    def embedding_dim(self, space: Space = "learned") -> int:
        if space == "general" and not self.general:
            raise NotTrainedError("There is no general embedding. Add it: phpq train --resume RUN")
        return 20 if space == "general" else 8

    def fingerprint(self) -> str:
        return self.name

    def general_fingerprint(self) -> str:
        return f"{self.name}general"

    def save(self, folder: Path) -> None:
        (folder / "weights").write_text(self.name)

    def embed_pixels(
        self, pixels: NDArray[np.uint8], *, batch_size: int = 64, space: Space = "learned"
    ) -> FloatArray:
        self.seen += len(pixels)
        return self.vectors(pixels[:, :, 0, 0], space)

    def vectors(self, colours: NDArray[np.uint8], space: Space) -> FloatArray:
        mix = np.random.default_rng(5).normal(size=(3, self.embedding_dim(space)))
        vectors: FloatArray = np.sin((colours[:, :, None] / 70 * mix).sum(axis=1) + 1)
        return vectors.astype(np.float32)


def no_model() -> Any:
    raise AssertionError("no image has to be embedded")


def give(store: GalleryStore, model: OtherModel | None = None, **settings: Any) -> UpgradeReport:
    return upgrade(store, no_model, model.model if model else None, **settings)


def with_files(home: Path, count: int = 5, *, own: bool = True, keep: bool = True) -> GalleryStore:
    """Make a gallery of picture files, whose ids are "red/red-0-1.png"."""
    store = (make_own_store if own else make_store)(home / "g", keep_embeddings=keep)
    add(store, write_pictures(home / "files", tuple(KINDS), count))
    (store.folder / MODEL).mkdir()
    return store


def rows_of(store: GalleryStore) -> list[dict[str, Any]]:
    table = store.dataset.to_table().to_pylist()
    made = ("code", "check", "embedding")
    return [{key: row[key] for key in row if key not in made} for row in table]


def plain_codes(store: GalleryStore, model: OtherModel, home: Path) -> dict[str, bytes]:
    """Return the codes that a model, or the gallery's codebooks, give to each image alone."""
    from PIL import Image

    codes = {}
    for row in rows_of(store):
        with Image.open(row["uri"]) as image:
            colour = np.array([image.convert("RGB").getpixel((0, 0))], np.uint8)
        space = store.manifest.space
        vector = model.vectors(colour, space)
        if store.manifest.owns_codebooks:
            vector = vector.astype(np.float16).astype(np.float32)
            codes[row["id"]] = store.own_codebooks().encode(vector, [row["label"]])[0].tobytes()
        else:
            codes[row["id"]] = model.codebooks.encode(vector)[0].tobytes()
    return codes


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_another_model_is_shown_the_images(tmp_path: Path, own: bool, keep: bool) -> None:
    store, model = with_files(tmp_path, own=own, keep=keep), OtherModel()
    store.delete(["red/red-0-1.png"])
    rows, codes, version, steps = rows_of(store), codes_of(store), store.version, []
    report = give(store, model, progress=lambda *now: steps.append(now))
    assert (report.changed, report.images, report.before) == (True, 19, version)
    assert report.version == store.version == version + 1
    assert steps[-1] == ("encoding", 19, 19)
    assert rows_of(store) == rows
    manifest = store.manifest
    name = "othergeneral" if own else "other"
    assert (manifest.model, manifest.model_fingerprint, report.model) == (name, name, name)
    assert (manifest.bits, manifest.embedding_dim) == ((16, 20) if own else (8, 8))
    assert (store.folder / MODELS / name / "weights").read_text() == "other"
    assert codes_of(store) == plain_codes(store, model, tmp_path)
    if own and keep:
        assert codes_of(store) == expected_codes(store)
    assert ("embedding" in store.dataset.schema.names) is keep
    assert verify_store(store.folder).sound
    assert read_manifest(store.folder).format_version == 3
    assert codes_of(GalleryStore.open(store.folder)) == codes_of(store)
    # Who still reads the version before has its codes and its model.
    old = GalleryStore.open(store.folder, version=version)
    assert (codes_of(old), old.manifest.model) == (codes, "")
    assert not (store.folder / SIDE / name).exists()
    assert give(store, model).changed is False
    assert store.version == version + 1


def test_another_length_needs_no_images(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    version, codes = store.version, codes_of(store)
    report = give(store, bits=32)
    assert (report.bits, report.images, report.before) == (32, 40, version)
    assert codes_of(store) == expected_codes(store)
    assert store.manifest.model == ""
    assert not (store.folder / MODELS).exists()
    assert give(store, bits=32).changed is False
    rollback(store)
    assert (codes_of(store), store.manifest.bits) == (codes, 16)
    fit_again(store)  # to what it holds now
    assert (store.manifest.bits, store.manifest.before) == (16, report.version)


def test_images_that_are_gone_are_named_or_left_out(tmp_path: Path) -> None:
    store, model = with_files(tmp_path), OtherModel()
    (tmp_path / "files/red/red-0-1.png").unlink()
    (tmp_path / "files/blue/blue-0-0.png").write_bytes(b"another image")
    version, codes = store.version, codes_of(store)
    with pytest.raises(DataError, match=r"1 of 20 images .*: 'red/red-0-1.png'.*drop_missing"):
        give(store, model)
    assert model.seen == 0
    shutil.copy(tmp_path / "files/red/red-0-0.png", tmp_path / "files/red/red-0-1.png")
    with pytest.raises(DataError, match="2 of 20 images"):  # one of another content, too
        give(store, model)
    assert (store.version, codes_of(store)) == (version, codes)
    report = give(store, model, drop_missing=True)
    assert sorted(report.dropped) == ["blue/blue-0-0.png", "red/red-0-1.png"]
    assert (report.images, len(store), store.manifest.fitted_rows) == (18, 18, 18)
    assert model.seen == 18 + 2  # only the file of another content was looked at again
    upgraded = codes_of(store)
    assert rollback(store).images == 20
    assert codes_of(store) == codes
    assert rollback(store).images == 18
    assert codes_of(store) == upgraded
    store.delete(["red/red-0-0.png"])
    with pytest.raises(DataError, match=r"was changed since.*had 20 images and has 17"):
        rollback(store)


def test_a_gallery_without_any_file_is_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")  # added as pixels
    with pytest.raises(DataError, match="None of the 40 images"):
        give(store, OtherModel(), drop_missing=True)


def test_a_killed_upgrade_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_embedded, "_BLOCK", 4)
    store, model = with_files(tmp_path), OtherModel()
    codes = codes_of(store)

    def stop(what: str, done: int, total: int) -> None:
        if what == "embedding" and done >= 9:
            # Beside an upgrade that embeds, compacting leaves what it has done.
            GalleryStore.open(store.folder).compact()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give(store, model, progress=stop)
    assert codes_of(GalleryStore.open(store.folder)) == codes
    assert model.seen == 12
    Path(rows_of(store)[0]["uri"]).unlink()  # it was seen before that
    again = OtherModel()
    give(GalleryStore.open(store.folder), again)
    assert again.seen == 8
    store.refresh()
    assert len(codes_of(store)) == 20


def test_what_is_added_meanwhile_is_upgraded_too(tmp_path: Path) -> None:
    store, model = with_files(tmp_path), OtherModel()
    other = GalleryStore.open(store.folder)
    late = Ingest(GalleryStore.open(store.folder), FakeModel().model, batch_size=16)
    new = write_pictures(tmp_path / "new", ("grey",), 3, seed=4)

    def meanwhile(what: str, done: int, total: int) -> None:
        if what == "embedding" and len(other) == 20:
            add(other, new)

    assert give(store, model, progress=meanwhile).images == 23
    assert codes_of(store) == plain_codes(store, model, tmp_path)
    # Images that were embedded by the model before are no longer let in.
    files = write_pictures(tmp_path / "more", ("grey",), 2, seed=5)
    with pytest.raises(DataError, match="upgraded to another model while images were added"):
        late.run(files, metadata={})
    store.refresh()
    assert len(store) == 23


def test_the_version_before_stays_until_it_is_dropped(tmp_path: Path) -> None:
    store, model = with_files(tmp_path), OtherModel()
    codes, books = codes_of(store), store.manifest.books
    with pytest.raises(ConfigError, match="no version to go back to"):
        rollback(store)
    give(store, model)
    upgraded = codes_of(store)
    store.compact()
    assert {path.stem for path in (store.folder / BOOKS).iterdir()} == {
        books,
        store.manifest.books,
    }
    version = store.version
    report = rollback(store)
    assert (codes_of(store), store.manifest.model, report.before) == (codes, "", version)
    assert codes_of(GalleryStore.open(store.folder)) == codes
    store.compact()
    rollback(store)
    assert (codes_of(store), store.manifest.model) == (upgraded, "othergeneral")
    assert drop_old(store) > 0
    with pytest.raises(ConfigError, match="was dropped"):
        rollback(store)
    assert codes_of(store) == upgraded
    assert [path.stem for path in (store.folder / BOOKS).iterdir()] == [store.manifest.books]
    assert not (store.folder / MODEL).exists()
    assert verify_store(store.folder).sound
    assert drop_old(store) == 0  # nothing was kept


def test_two_upgrades_go_back_one_at_a_time(tmp_path: Path) -> None:
    store = with_files(tmp_path)
    give(store, OtherModel("first"))
    first = codes_of(store)
    give(store, OtherModel("second"), bits=24)
    assert {path.name for path in (store.folder / MODELS).iterdir()} == {
        "firstgeneral",
        "secondgeneral",
    }
    rollback(store)
    assert (codes_of(store), store.manifest.model) == (first, "firstgeneral")


def test_a_change_since_is_not_lost_by_a_rollback(tmp_path: Path) -> None:
    store, model = with_files(tmp_path), OtherModel()
    give(store, model)
    add_with = Ingest(store, model.model, batch_size=16)
    add_with.run(write_pictures(tmp_path / "new", ("grey",), 1, seed=3), metadata={})
    with pytest.raises(DataError, match=f"phpq gallery upgrade .*{MODEL} --bits 16"):
        rollback(store)
    assert len(store) == 21


def test_a_kill_before_the_commit_leaves_the_gallery_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_files(tmp_path)
    codes, version = codes_of(store), store.version

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(GalleryStore, "rewrite", killed)
        with pytest.raises(KeyboardInterrupt):
            give(store, OtherModel())
    opened = GalleryStore.open(store.folder)
    assert (opened.version, codes_of(opened), opened.manifest.model) == (version, codes, "")
    with pytest.raises(ConfigError, match="no version to go back to"):
        rollback(opened)
    opened.compact()
    assert list((store.folder / MODELS).iterdir()) == []
    assert give(opened, OtherModel()).changed


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    own, learned = with_files(tmp_path / "a"), with_files(tmp_path / "b", own=False)
    with pytest.raises(ConfigError, match="Say what to upgrade to"):
        give(own)
    with pytest.raises(ConfigError, match="Say what to upgrade to"):
        give(learned, bits=8)
    with pytest.raises(ConfigError, match="have 8 bits, not 16"):
        give(learned, OtherModel(), bits=16)
    with pytest.raises(ConfigError, match="multiple of 8"):
        give(own, bits=13)
    with pytest.raises(NotTrainedError, match="no general embedding"):
        give(own, OtherModel(general=False))
    with pytest.raises(ConfigError, match="holds no images"):
        give(make_own_store(tmp_path / "empty"), bits=32)
    with (
        writing(own.folder, lock_file=EMBEDDING_LOCK),
        pytest.raises(DataError, match="upgraded or refitted by another process"),
    ):
        give(own, OtherModel())
    assert not (own.folder / MODELS).exists()


def test_a_model_folder_of_a_manifest_is_a_name(tmp_path: Path) -> None:
    store = with_files(tmp_path)
    give(store, OtherModel())
    path = store.folder / MANIFEST
    path.write_text(path.read_text().replace('"model": ""', '"model": "../elsewhere"'))
    with pytest.raises(Exception, match="do not fit together"):
        GalleryStore.open(store.folder)


def test_an_upgrade_keeps_parents_and_drops_probabilities(tmp_path: Path) -> None:
    store = with_files(tmp_path, own=False)
    parents = {"red": "warm", "blue": "cold"}
    calibration = Calibration(sharpness=2.0, probabilities=certain(0), parents=parents)
    with store.changing():
        store.commit_manifest(
            replace(store.manifest, chances=write_calibration(store.folder, calibration))
        )
    give(store, OtherModel())
    assert read_calibration(store.folder, store.manifest) == Calibration(parents=parents)
    assert give(store, OtherModel()).changed is False
    store.compact()  # which leaves what a rollback needs
    rollback(store)
    assert read_calibration(store.folder, store.manifest) == calibration
