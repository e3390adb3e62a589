from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmark_layouts import DOG_CLASSES, write_dogs120
from phpq.data.dogs120 import open_dogs120
from phpq.errors import DataError


@pytest.mark.parametrize("images", ["images/Images", "Images"])
@pytest.mark.parametrize("lists", ["lists", "."])
def test_the_official_layout(tmp_path: Path, images: str, lists: str) -> None:
    dataset = open_dogs120(write_dogs120(tmp_path, images=images, lists=lists))
    assert dataset.class_names == DOG_CLASSES
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.test.labels.tolist() == [0, 1]
    assert dataset.test.ids == (f"{images}/n01-Pug/dog_2.jpg", f"{images}/n02-Beagle/dog_2.jpg")
    assert dataset.test.read(1).size == (12, 12)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not Stanford Dogs.*phpq download dogs120"):
        open_dogs120(tmp_path)


def test_missing_images_are_listed(tmp_path: Path) -> None:
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
