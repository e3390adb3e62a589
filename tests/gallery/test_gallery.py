from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import phpq
from finished_runs import copy_run
from phpq.additive import TRUST, AdditiveCodebooks
from phpq.codes import normalise_sub_vectors
from phpq.data import write_plumage
from phpq.errors import ConfigError, DataError, FormatError, ShapeError, UnknownNameError
from phpq.gallery import Gallery
from phpq.model.weights import write_safetensors
from reference import scan_codes
from tiny_runs import tiny_birds, tiny_network


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `birds/`, `run/` and two galleries of the birds, one with embeddings."""
    home = tmp_path_factory.mktemp("galleries")
    write_plumage(home / "birds", tiny_birds())
    copy_run(home / "run")
    for name, keep in (("g", False), ("kept", True)):
        made = Gallery.create(home / name, home / "run", keep_embeddings=keep)
        assert made.add(home / "birds").added == 32
    return home


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "home"))


def test_add_search_reopen(home: Path) -> None:
    opened = phpq.Gallery.open(home / "g", device="cpu")
    photo = sorted((home / "birds" / "test").rglob("*.png"))[3]
    hits = opened.search(photo, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert opened.search(str(photo), 5) == opened.search(Image.open(photo), 5) == hits
    embedding = opened.model.embed(photo)
    assert opened.search(embedding[0], 5) == opened.search(embedding, 5) == hits
    (many,) = opened.search_many([photo], 5)
    assert many == hits == opened.search_many(embedding, 5)[0]
    # The same as a flat scan over codes made from the files.
    ids = [hit.id for hit in opened.search(photo, 100)]
    files = [home / "birds" / name for name in sorted(ids)]
    tables = opened.model.codebooks.lookup_tables(embedding, norm=opened.model.query_norm)
    _, expected = scan_codes(tables, opened.model.encode(files), 32)
    scores = [hit.score for hit in opened.search(photo, 100)]
    np.testing.assert_allclose(scores, expected[0], rtol=1e-6)
    assert len(ids) == len(set(ids)) == len(opened) == opened.count() == 32
    hit = hits[0]
    assert hit.label is not None
    assert hit.label in hit.id
    assert opened.get(hit.id).uri == hit.uri
    assert opened.info()["images"] == 32
    assert opened.memory_bytes() > 0


def test_filters_return_k_where_k_exist(home: Path) -> None:
    opened = Gallery.open(home / "g")
    label = opened.search_id(opened.search(np.ones(32, np.float32))[0].id)[0].label
    other = next(name for name in tiny_birds().class_names if name != label)
    hits = opened.search(np.ones(32, np.float32), 8, where=f"label = '{other}'")
    assert len(hits) == 8
    assert {hit.label for hit in hits} == {other}
    assert opened.search(np.ones(32, np.float32), where="label = 'x'").hits == ()
    assert opened.count(f"label = '{other}'") == 8


def test_added_deleted_and_replaced_images_show_at_once(home: Path, tmp_path: Path) -> None:
    opened = Gallery.open(home / "g")
    image = tiny_birds().test.read(0)
    opened.search(image)
    report = opened.add([{"id": "mine", "image": image, "label": "new", "Year": 2024}])
    assert report.added == 1
    (hit,) = opened.search(image, 1, where="year = 2024")
    assert (hit.id, hit.label, hit.uri, hit.metadata) == ("mine", "new", None, {"year": 2024})
    other = tiny_birds().test.read(3)
    assert opened.upsert([{"id": "mine", "image": other, "label": "new"}]).replaced == 1
    assert opened.get("mine").code.tolist() == opened.model.encode(other)[0].tolist()
    assert opened.delete("mine") == 1
    assert opened.delete(["mine", "who"]) == 0
    assert opened.count("year = 2024") == 0
    assert all(hit.id != "mine" for hit in opened.search(image, 100))
    with pytest.raises(UnknownNameError, match="There is no image 'mine'"):
        opened.get("mine")


def test_search_by_id_leaves_out_itself(home: Path) -> None:
    for name, rerank in (("g", 0), ("kept", 0), ("kept", 6)):
        opened = Gallery.open(home / name)
        first = opened.search(np.ones(32, np.float32))[0].id
        hits = opened.search_id(first, 5, rerank=rerank)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
        assert first not in {hit.id for hit in hits}


def test_reranking_orders_by_floats(home: Path) -> None:
    opened = Gallery.open(home / "kept")
    photo = sorted((home / "birds" / "test").rglob("*.png"))[0]
    hits = opened.search(photo, 4, rerank=32)
    assert hits[0].id == photo.relative_to(home / "birds").as_posix()  # the image itself
    assert hits[0].score == pytest.approx(4, abs=1e-2)
    files = [home / "birds" / hit.id for hit in hits]
    vectors = normalise_sub_vectors(opened.model.embed([photo, *files]), 4)
    np.testing.assert_allclose([hit.score for hit in hits], vectors[1:] @ vectors[0], atol=5e-3)
    with pytest.raises(ConfigError, match="rerank=2 is less than top_k=4"):
        opened.search(photo, 4, rerank=2)
    with pytest.raises(ConfigError, match="keep_embeddings=True"):
        Gallery.open(home / "g").search(photo, 4, rerank=8)


def test_to_faiss_gives_the_same_scores(home: Path) -> None:
    opened = Gallery.open(home / "g")
    opened.delete(where="label LIKE '000%'")
    exported = opened.to_faiss()
    queries = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    scores, rows = exported.index.search(normalise_sub_vectors(queries, 4), 5)
    for hits, found, named in zip(opened.search_many(queries, 5), scores, rows, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], found, rtol=1e-5)
        by_id = {hit.id: hit.score for hit in opened.search_many(queries, 99)[0]}
        assert all(exported.ids[row] in by_id for row in named)
    assert len(exported.ids) == exported.index.ntotal == 24


def test_a_copy_is_complete_and_another_model_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.rmtree(home / "run")
    copied = Path(shutil.copytree(home / "g", tmp_path / "elsewhere"))
    assert len(Gallery.open(copied)) == 32
    weights = copied / "model" / "weights.safetensors"
    write_safetensors(weights, tiny_network(seed=5).state_dict(), {"epoch": "1"})
    with pytest.raises(FormatError, match=r"made by another model.*verify --repair"):
        Gallery.open(copied)
    weights.write_bytes(b"broken")
    with pytest.raises(FormatError, match=r"model of the gallery .* cannot be read"):
        Gallery.open(copied)
    shutil.rmtree(copied / "model")
    with pytest.raises(FormatError, match=r"model of the gallery .* cannot be read"):
        Gallery.open(copied)


def test_pruning_follows_the_folder(home: Path, tmp_path: Path) -> None:
    opened = Gallery.open(home / "g")
    opened.add(home / "birds")  # the folder was copied: its places are noted
    gone = sorted((home / "birds").rglob("*.png"))[:2]
    for file in gone:
        file.unlink()
    opened.add([{"id": "mine", "image": tiny_birds().test.read(0)}])
    assert opened.prune(home / "birds") == 2
    assert len(opened) == 31
    assert opened.prune(tmp_path) == 0
    with pytest.raises(DataError, match="nothing was deleted"):
        opened.prune(tmp_path / "none")


def test_a_reader_outlives_a_compaction_elsewhere(home: Path) -> None:
    reader, writer = Gallery.open(home / "g"), Gallery.open(home / "g")
    query = np.ones(32, np.float32)
    before = reader.search(query, 3)
    writer.add([{"id": "mine", "image": tiny_birds().test.read(0)}])
    writer.compact()
    assert reader.search(query, 3).hits == before.hits
    reader.refresh()
    assert len(reader) == 33


def test_wrong_arguments_are_named(home: Path) -> None:
    opened = Gallery.open(home / "g")
    query = np.ones(32, np.float32)
    with pytest.raises(ConfigError, match="top_k=0"):
        opened.search(query, 0)
    with pytest.raises(ShapeError, match=r"expected \(N, 32\)"):
        opened.search(np.ones(31, np.float32))
    with pytest.raises(ConfigError, match="on_bad='stop'"):
        opened.add([], on_bad="stop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_size=0"):
        opened.add([], batch_size=0)
    with pytest.raises(DataError, match="exists already"):
        Gallery.create(home / "g", opened.model)
    assert opened.made_by(home / "run")
    assert opened.made_by(opened.model)


def test_verify_and_export(home: Path) -> None:
    opened = Gallery.open(home / "g")
    assert opened.verify().sound
    assert opened.export(home / "out.parquet") == 32


def test_a_gallery_that_owns_its_codebooks(home: Path) -> None:
    own = Gallery.create(home / "own", home / "run", codebooks="own", bits=16)
    manifest = own.manifest
    assert (manifest.bits, manifest.trust, manifest.keep_embeddings) == (16, TRUST, True)
    assert manifest.embedding_dim == own.model.embedding_dim("general")
    assert manifest.model_fingerprint == own.model.general_fingerprint()
    report = own.add(home / "birds")
    assert (report.added, report.refitted) == (32, False)
    opened = Gallery.open(home / "own", device="cpu")
    assert isinstance(opened.codebooks, AdditiveCodebooks)
    photo = sorted((home / "birds" / "test").rglob("*.png"))[3]
    hits = opened.search(photo, 5)
    assert opened.search(opened.embed(photo)[0], 5) == hits
    assert opened.embed(photo).shape == (1, manifest.embedding_dim)
    assert hits.verdict is not None
    assert len(hits.verdict.runners_up) == 3
    assert opened.search_id(hits[0].id, 3, rerank=5)[0].id != hits[0].id
    assert opened.verify().sound
    assert opened.made_by(home / "run")
    with pytest.raises(ConfigError, match=r"owns its codebooks.*IndexPQ"):
        opened.to_faiss()
    info = opened.info()
    assert (info["codebooks"], info["format_version"]) == ("own", 2)
    assert info["bytes_per_image"] > info["bits"] / 8
    assert info["fit"]["due"] is None


def test_it_needs_a_general_embedding(home: Path) -> None:
    own = Gallery.create(home / "own", home / "run", codebooks="own", bits=8)
    assert own.verify().sound
    (home / "own" / "model" / "general.safetensors").unlink()
    with pytest.raises(FormatError, match=r"cannot be read.*Copy general.safetensors"):
        Gallery.open(home / "own")
    report = own.verify()
    assert not report.sound
    assert "the model cannot be read" in report.problems[0]


def test_it_is_fitted_anew_when_what_came_does_not_fit(home: Path) -> None:
    files = sorted((home / "birds").rglob("*.png"))
    own = Gallery.create(home / "own", home / "run", codebooks="own", bits=8)
    rows = [
        {"path": file, "id": f"n{number}", "label": file.parent.name}
        for number, file in enumerate(files)
    ]
    assert not own.add(rows[:8]).refitted
    first = own.manifest.fit
    assert not own.add(rows[:8]).refitted
    assert own.manifest.fit == first
    assert own.add(rows[8:]).refitted
    assert (own.manifest.fitted_rows, own.manifest.fit != first) == (len(files), True)
    assert own.refit(trust=0.2, bits=16).trust == 0.2
    assert own.manifest.bits == 16
    label = own.get("n0").label
    assert label is not None
    assert own.rename_labels({label: "other"}) > 0
    assert own.get("n0").label == "other"
    assert own.relabel("n0", "mine") == 1
    assert own.search(files[0], 1, where="label = 'mine'")[0].id == "n0"


def test_own_codebooks_that_cannot_be_are_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match="codebooks='mine'"):
        Gallery.create(home / "x", home / "run", codebooks="mine")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="multiple of 8"):
        Gallery.create(home / "x", home / "run", codebooks="own", bits=12)
    with pytest.raises(ConfigError, match="codebooks of its model"):
        Gallery.open(home / "g").refit()
    assert not (home / "x").exists()
