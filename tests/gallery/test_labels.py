"""Labels are renamed, merged and given anew, and codes follow where the gallery owns codebooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_galleries import make_record, make_store
from own_galleries import codes_of, expected_codes, filled, query_for, view_of
from phpq.errors import ConfigError, UnknownNameError
from phpq.gallery import GalleryStore
from phpq.gallery._part import find_part
from phpq.gallery.labels import relabel, rename_labels
from phpq.gallery.view import Page


def labels(store: GalleryStore) -> dict[str, str | None]:
    return {r.id: r.label for r in store.records(store.dataset.to_table())}


def test_labels_of_a_gallery_with_the_models_codebooks(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"n{i}", i, label="abc"[i % 3]) for i in range(9)])
    codes, version = codes_of(store), store.version
    assert rename_labels(store, {"a": "it's", "b": "a"}) == 6
    assert store.version == version + 1
    assert [labels(store)[f"n{i}"] for i in range(3)] == ["it's", "a", "c"]
    assert rename_labels(store, {"c": "a"}) == 3  # merged
    assert store.count("label = 'a'") == 6
    assert rename_labels(store, {"a": "a"}) == 0
    assert relabel(store, ["n1", "n2"], "new") == 2
    assert relabel(store, ["n1"], None) == 1
    assert relabel(store, ["n1"], None) == 0
    assert (labels(store)["n1"], labels(store)["n2"]) == (None, "new")
    assert codes_of(store) == codes
    find_part(store).codes()
    with pytest.raises(UnknownNameError, match="has the label 'who'; nothing was changed"):
        rename_labels(store, {"a": "x", "who": "y"})
    with pytest.raises(UnknownNameError, match="no image 'who'"):
        relabel(store, ["n3", "who"], "x")
    with pytest.raises(ConfigError, match="must not be empty"):
        rename_labels(store, {"a": ""})
    with pytest.raises(ConfigError, match="must not be empty"):
        relabel(store, ["n1"], "")


@pytest.mark.parametrize("keep", [True, False])
def test_a_renamed_class_keeps_its_codes(tmp_path: Path, keep: bool) -> None:
    store = filled(tmp_path / "g", keep_embeddings=keep)
    codes, fit, version = codes_of(store), store.manifest.fit, store.version
    assert rename_labels(store, {"red": "green", "green": "red", "grey": "rot"}) == 30
    assert (store.version, store.manifest.fit) == (version + 1, fit)
    assert codes_of(store) == codes
    assert labels(store)["red/0/1"] == "green"
    found = view_of(store).search_many(query_for("grey"), Page())[0]
    assert found.verdict is not None
    assert (found.verdict.label, found[0].label) == ("rot", "rot")
    if keep:
        assert codes_of(store) == expected_codes(store)
    find_part(store).codes()


@pytest.mark.parametrize("keep", [True, False])
def test_merged_classes_have_one_prototype(tmp_path: Path, keep: bool) -> None:
    store = filled(tmp_path / "g", keep_embeddings=keep)
    codes, version = codes_of(store), store.version
    assert rename_labels(store, {"grey": "red", "blue": "sky", "green": "sky"}) == 30
    assert store.version == version + 1
    assert store.own_codebooks().class_names == ("sky", "red")
    unmoved = [name for name in codes if name.startswith(("red", "blue"))]
    assert all(codes_of(store)[name] == codes[name] for name in unmoved)
    if keep:
        assert codes_of(store) == expected_codes(store)
    assert set(view_of(store).label_counts) == {"red", "sky"}


@pytest.mark.parametrize("keep", [True, False])
def test_a_relabelled_row_is_encoded_anew(tmp_path: Path, keep: bool) -> None:
    store = filled(tmp_path / "g", keep_embeddings=keep)
    codes, rows = codes_of(store), store.numbers_of(["red/0/0", "red/0/1"])
    assert relabel(store, ["red/0/0", "red/0/1"], "green") == 2
    assert relabel(store, ["red/0/2"], "new kind") == 1
    assert relabel(store, ["red/0/3"], None) == 1
    assert store.numbers_of(["red/0/0", "red/0/1"]).tolist() == rows.tolist()
    now = codes_of(store)
    assert "new kind" in store.own_codebooks().class_names
    changed = {name for name in codes if now[name] != codes[name]}
    assert changed <= {f"red/0/{number}" for number in range(4)}
    if keep:
        assert now == expected_codes(store)
    assert list(now) == list(codes)
    find_part(store).codes()
