"""Tiny copies of the official layouts of CUB-200-2011 and Stanford Dogs, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from picture_files import write_image

CUB_CLASSES = ("001.Owl", "002.Wren")
DOG_CLASSES = ("n01-Pug", "n02-Beagle")


def write_cub200(root: Path, *, extension: str = ".jpg") -> Path:
    """Write two classes of three images; the first two images of a class are for training."""
    files = [f"{name}/bird_{i}.jpg" for name in CUB_CLASSES for i in range(3)]
    for file in files:
        write_image((root / "images" / file).with_suffix(extension))
    tables = {
        "classes.txt": [f"{i} {name}" for i, name in enumerate(CUB_CLASSES, start=1)],
        "images.txt": [f"{i} {file}" for i, file in enumerate(files, start=1)],
        "image_class_labels.txt": [f"{i + 1} {i // 3 + 1}" for i in range(6)],
        "train_test_split.txt": [f"{i + 1} {int(i % 3 < 2)}" for i in range(6)],
    }
    for name, lines in tables.items():
        (root / name).write_text("\n".join(lines) + "\n", "utf-8")
    return root


def write_dogs120(root: Path, *, images: str = "images/Images", lists: str = "lists") -> Path:
    """Write two classes of three images; the first two images of a class are for training."""
    from scipy.io import savemat

    (root / lists).mkdir(parents=True, exist_ok=True)
    for split, numbers in (("train", (0, 1)), ("test", (2,))):
        files = [f"{name}/dog_{i}.jpg" for name in DOG_CLASSES for i in numbers]
        for file in files:
            write_image(root / images / file)
        cells = np.empty((len(files), 1), dtype=object)
        cells[:, 0] = files
        labels = np.repeat([[1], [2]], len(numbers), axis=0).astype(np.uint8)
        path = root / lists / f"{split}_list.mat"
        savemat(path, {"file_list": cells, "annotation_list": cells, "labels": labels})
    return root
