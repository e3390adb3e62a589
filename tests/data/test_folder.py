from __future__ import annotations

from pathlib import Path

import pytest

from phpq.data.folder import natural_key, open_folder
from phpq.errors import DataError
from picture_files import write_classes, write_image


def test_class_folders_are_split_and_sorted_naturally(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"class 10": 10, "Class 2": 5, "class 1": 2})
    dataset = open_folder(root)
    assert dataset.name == "birds"
    assert dataset.class_names == ("class 1", "Class 2", "class 10")
    assert dataset.test.class_sizes().tolist() == [1, 1, 2]
    assert dataset.train.class_sizes().tolist() == [1, 4, 8]
    everything = set(dataset.train.ids) | set(dataset.test.ids)
    assert everything == {p.relative_to(root).as_posix() for p in root.rglob("*.png")}
    for images in (dataset.train, dataset.test):
        for index, name in enumerate(images.ids):
            assert images.class_names[images.labels[index]] == name.split("/")[0]
            assert images.path(index) == root / name


def test_the_split_follows_the_seed(tmp_path: Path) -> None:
    root = write_classes(tmp_path, {"a": 20, "b": 20})
    assert open_folder(root, seed=1).test.ids == open_folder(root, seed=1).test.ids
    assert open_folder(root, seed=1).test.ids != open_folder(root, seed=2).test.ids


@pytest.mark.parametrize("test", ["test", "Test", "val", "valid", "validation"])
def test_given_splits_are_kept(tmp_path: Path, test: str) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 1})
    write_classes(tmp_path / test, {"a": 1, "b": 3})
    dataset = open_folder(tmp_path)
    assert dataset.train.ids == ("train/a/0.png", "train/a/1.png", "train/b/0.png")
    assert dataset.test.labels.tolist() == [0, 1, 1, 1]
    assert dataset.test.ids[0] == f"{test}/a/0.png"


def test_test_is_preferred_to_val(tmp_path: Path) -> None:
    for split in ("train", "test", "val"):
        write_classes(tmp_path / split, {"a": 1, "b": 1})
    assert open_folder(tmp_path).test.ids == ("test/a/0.png", "test/b/0.png")


def test_only_visible_images_of_known_types_count_at_any_depth(tmp_path: Path) -> None:
    root = write_classes(tmp_path, {"a": 2, "b": 2, ".hidden": 2})
    write_image(root / "a" / "2019" / "June" / "UPPER.JPG")
    write_image(root / "a" / ".trash" / "x.png")
    write_image(root / "a" / "._0.png")
    (root / "a" / "notes.txt").write_text("no image")
    write_image(root / "loose.png")
    dataset = open_folder(root)
    seen = {*dataset.train.ids, *dataset.test.ids}
    assert seen == {"a/0.png", "a/1.png", "a/2019/June/UPPER.JPG", "b/0.png", "b/1.png"}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"a": 2})
    write_classes(tmp_path / "elsewhere", {"b": 3})
    (root / "b").symlink_to(tmp_path / "elsewhere" / "b")
    (root / "a" / "loop").symlink_to(root / "a")
    dataset = open_folder(root)
    assert (dataset.train.class_sizes() + dataset.test.class_sizes()).tolist() == [2, 3]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'.*absent' does not exist. Put the images of each class"):
        open_folder(tmp_path / "absent")
    path = write_image(tmp_path / "x.png")
    with pytest.raises(DataError, match="is a file, not a folder"):
        open_folder(path)


def test_no_class_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no class folders"):
        open_folder(tmp_path)
    write_image(tmp_path / "x.png")
    with pytest.raises(DataError, match="has 1 images but no class folders"):
        open_folder(tmp_path)


def test_no_images_and_empty_class(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"No images in .*2 folders \('a', 'b'\).*\.jpg"):
        open_folder(tmp_path)
    write_image(tmp_path / "a" / "x.png")
    with pytest.raises(DataError, match=r"1 class \('b'\) without images"):
        open_folder(tmp_path)


def test_one_class_only(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"one class only \('a'\)"):
        open_folder(write_classes(tmp_path, {"a": 4}))


def test_a_missing_split_is_an_error(tmp_path: Path) -> None:
    write_classes(tmp_path / "one" / "train", {"a": 4, "b": 4})
    with pytest.raises(DataError, match=r"has 'train/' but no test/ \(or val/\)"):
        open_folder(tmp_path / "one")
    write_classes(tmp_path / "two" / "test", {"a": 4, "b": 4})
    with pytest.raises(DataError, match="has 'test/' but no train/"):
        open_folder(tmp_path / "two")


def test_splits_with_different_classes(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 2})
    write_classes(tmp_path / "test", {"a": 2, "c": 2})
    with pytest.raises(DataError, match=r"1 class \('b'\) only in train; 1 class \('c'\) only in"):
        open_folder(tmp_path)


def test_natural_order() -> None:
    names = ["b10", "B2", "a", "10", "9", "b2"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "B2", "b2", "b10"]
