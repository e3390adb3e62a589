from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmark_layouts import CUB_CLASSES, DOG_CLASSES, write_cub200, write_dogs120
from phpq.data import data_home, open_dataset
from phpq.data.sources import LOADERS, find_cub200, open_cub200, open_dogs120
from phpq.errors import DataError
from picture_files import write_classes


def test_a_path_is_recognised_by_what_is_there(tmp_path: Path) -> None:
    write_classes(tmp_path / "birds", {"a": 2, "b": 2})
    table = tmp_path / "list.csv"
    rows = [f"birds/{name}/{i}.png,{name}" for name in "ab" for i in range(2)]
    table.write_text("\n".join(["path,label", *rows]))
    write_cub200(tmp_path / "cub" / "CUB_200_2011")
    write_dogs120(tmp_path / "dogs")
    for path, name in (
        ("birds", "birds"),
        ("list.csv", "list"),
        ("cub", "cub200"),
        ("dogs", "dogs120"),
    ):
        assert open_dataset(tmp_path / path).name == name
        assert open_dataset(str(tmp_path / path)).name == name


def test_a_reading_can_be_forced(tmp_path: Path) -> None:
    write_cub200(tmp_path / "cub")
    assert open_dataset(f"cub200:{tmp_path / 'cub'}").name == "cub200"
    forced = open_dataset(f"folder:{tmp_path / 'cub' / 'images'}")
    assert forced.name == "images"
    with pytest.raises(DataError, match="is not Stanford Dogs"):
        open_dataset(f"dogs120:{tmp_path}")


@pytest.mark.parametrize("kind", sorted(LOADERS))
def test_every_loader_explains_a_missing_path(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="absent"):
        open_dataset(f"{kind}:{tmp_path / 'absent.csv'}")


def test_downloads_are_found_at_home_and_missed_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'cub200' is not downloaded.*phpq download cub200"):
        open_dataset("cub200", home=tmp_path)
    write_cub200(tmp_path / "cub200" / "CUB_200_2011")
    write_dogs120(tmp_path / "dogs120")
    assert len(open_dataset("cub200", home=tmp_path).train) == 4
    assert len(open_dataset("dogs120", home=tmp_path).train) == 4
    assert data_home(tmp_path) == tmp_path
    assert data_home().parts[-2:] == (".cache", "phpq")


def test_plumage_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset("plumage:species=3,images=4,test=2,size=24", seed=5)
    assert (len(dataset.train), len(dataset.test)) == (12, 6)
    assert dataset.train.read(0).size == (24, 24)
    assert len(open_dataset("plumage").train) == 800
    assert open_dataset("plumage", seed=1).class_names != open_dataset("plumage").class_names
    # A folder of that name is reached by a Path, which never is a name.
    write_classes(tmp_path / "plumage", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    assert open_dataset(Path("plumage")).class_names == ("a", "b")


@pytest.mark.parametrize("spec", ["no/such/place", "cub2000", "", "http://example.org/x"])
def test_nothing_there_says_what_is_accepted(spec: str) -> None:
    with pytest.raises(DataError, match=r"Accepted: a folder of class folders.*CSV.*plumage"):
        open_dataset(spec)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes.txt' is not a data set. Accepted"):
        open_dataset(tmp_path / "notes.txt")


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'torch', 'scipy', 'pyarrow', 'pooch', 'matplotlib'}"
    code = f"import sys, phpq.data; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("extension", [".jpg", ".webp", ".PNG"])
@pytest.mark.parametrize("inside", ["CUB_200_2011", "."])
def test_cub200_the_official_layout(tmp_path: Path, extension: str, inside: str) -> None:
    root = write_cub200(tmp_path / inside, extension=extension)
    dataset = open_cub200(tmp_path)
    assert dataset.class_names == CUB_CLASSES
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.ids[1] == f"images/002.Wren/bird_2{extension}"
    assert dataset.train.path(0) == root / "images" / "001.Owl" / f"bird_0{extension}"
    assert dataset.train.read(0).size == (12, 12)
    assert dataset.train.name == "cub200/train"


def test_the_named_file_is_preferred_to_its_conversion(tmp_path: Path) -> None:
    write_cub200(tmp_path, extension=".webp")
    write_cub200(tmp_path)
    assert open_cub200(tmp_path).test.ids[0] == "images/001.Owl/bird_2.jpg"


def test_tables_may_be_in_any_order(tmp_path: Path) -> None:
    write_cub200(tmp_path)
    path = tmp_path / "image_class_labels.txt"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n\n")
    assert open_cub200(tmp_path).train.labels.tolist() == [0, 0, 1, 1]


def test_cub200_another_folder_is_refused(tmp_path: Path) -> None:
    assert find_cub200(tmp_path) is None
    with pytest.raises(DataError, match=r"is not CUB-200-2011.*phpq download cub200"):
        open_cub200(tmp_path)


def test_cub200_missing_images_are_listed(tmp_path: Path) -> None:
    write_cub200(tmp_path)
    (tmp_path / "images/001.Owl/bird_1.jpg").unlink()
    with pytest.raises(DataError, match=r"lacks 1 image \('images/001.Owl/bird_1.jpg'\)"):
        open_cub200(tmp_path)


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("images.txt", "1 a\n1 b\n", "Line 2 .* repeats an id: '1 b'"),
        ("classes.txt", "lonely\n", "Line 1 .* is not '<id> <value>': 'lonely'"),
        ("image_class_labels.txt", "1 1\n", "lacks 5 image ids"),
        (
            "image_class_labels.txt",
            "".join(f"{i} 9\n" for i in range(1, 7)),
            "the value '9'; known: 1, 2",
        ),
        (
            "train_test_split.txt",
            "".join(f"{i} 2\n" for i in range(1, 7)),
            "value '2'; known: 0, 1",
        ),
        ("train_test_split.txt", "".join(f"{i} 1\n" for i in range(1, 7)), "test split .* missing"),
    ],
)
def test_damaged_tables(tmp_path: Path, table: str, text: str, message: str) -> None:
    (write_cub200(tmp_path) / table).write_text(text)
    with pytest.raises(DataError, match=message):
        open_cub200(tmp_path)


@pytest.mark.parametrize("images", ["images/Images", "Images"])
@pytest.mark.parametrize("lists", ["lists", "."])
def test_dogs120_the_official_layout(tmp_path: Path, images: str, lists: str) -> None:
    dataset = open_dogs120(write_dogs120(tmp_path, images=images, lists=lists))
    assert dataset.class_names == DOG_CLASSES
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.ids == (f"{images}/n01-Pug/dog_2.jpg", f"{images}/n02-Beagle/dog_2.jpg")
    assert dataset.test.read(1).size == (12, 12)


def test_dogs120_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not Stanford Dogs.*phpq download dogs120"):
        open_dogs120(tmp_path)


def test_dogs120_missing_images_are_listed(tmp_path: Path) -> None:
    root = write_dogs120(tmp_path)
    (root / "images/Images/n01-Pug/dog_0.jpg").unlink()
    with pytest.raises(DataError, match=r"lacks 1 image \('images/Images/n01-Pug/dog_0.jpg'\) of"):
        open_dogs120(root)


def cells(*texts: str) -> np.ndarray[tuple[int, int], np.dtype[np.object_]]:
    column = np.empty((len(texts), 1), dtype=object)
    column[:, 0] = texts
    return column


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"file_list": cells("n01-Pug/dog_0.jpg")}, r"lacks 1 field \('labels'\)"),
        ({"file_list": cells("a/b.jpg"), "labels": [[1], [2]]}, "1 files but 2 labels"),
        ({"file_list": cells("n03-Fox/x.jpg"), "labels": [[1]]}, "Label 1 stands for both"),
        ({"file_list": cells("n03-Fox/x.jpg"), "labels": [[5]]}, "no image with label 3"),
    ],
)
def test_damaged_lists(tmp_path: Path, content: dict[str, object], message: str) -> None:
    from scipy.io import savemat

    root = write_dogs120(tmp_path)
    savemat(root / "lists" / "test_list.mat", content)
    with pytest.raises(DataError, match=message):
        open_dogs120(root)


def test_a_list_that_is_no_matlab_file(tmp_path: Path) -> None:
    root = write_dogs120(tmp_path)
    (root / "lists" / "train_list.mat").write_text("words, and more words than a header holds " * 9)
    with pytest.raises(DataError, match=r"Cannot read .*train_list.mat.*Download it again"):
        open_dogs120(root)
