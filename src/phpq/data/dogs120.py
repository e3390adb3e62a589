"""Stanford Dogs in its official layout in, a `Dataset` out (12,000 train, 8,580 test images).

Khosla et al., Novel Dataset for Fine-Grained Image Categorization, 2011. The images lie in
`images/Images/<class>/` or `Images/<class>/`, the lists in `lists/` or beside the images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phpq.data.decode import FileReader
from phpq.data.images import Dataset, LabelledImages
from phpq.data.split import named
from phpq.errors import DataError

IMAGE_FOLDERS = ("images/Images", "Images")
LISTS = ("train_list.mat", "test_list.mat")


def find_dogs120(root: Path) -> tuple[Path, Path] | None:
    """Return the folder of class folders and the folder of the lists below `root`, or None."""
    images = next((root / name for name in IMAGE_FOLDERS if (root / name).is_dir()), None)
    for lists in (root / "lists", root):
        if images and all((lists / file).is_file() for file in LISTS):
            return images, lists
    return None


def open_dogs120(root: Path, *, seed: int = 0) -> Dataset:
    """Open Stanford Dogs with its official split; the seed is not used.

    Returns:
        A data set whose ids are paths relative to `root` and whose classes are named by folder,
        as in "n02085620-Chihuahua".

    Raises:
        DataError: If a list is missing, damaged or inconsistent, or an image file is missing.
    """
    del seed
    found = find_dogs120(root)
    if found is None:
        raise DataError(
            f"{str(root)!r} is not Stanford Dogs: it needs {' or '.join(IMAGE_FOLDERS)} with the "
            f"class folders, and {' and '.join(LISTS)} in lists/ or beside them. "
            "Get them with: phpq download dogs120"
        )
    images, lists = found
    splits = [_read_list(lists / name) for name in LISTS]
    class_names = _class_names([*zip(*splits[0], strict=True), *zip(*splits[1], strict=True)])
    prefix = images.relative_to(root).as_posix()
    labelled = []
    for split, (files, labels) in zip(("train", "test"), splits, strict=True):
        ids = tuple(f"{prefix}/{file}" for file in files)
        missing = [name for name in ids if not (root / name).is_file()]
        if missing:
            raise DataError(
                f"{str(root)!r} lacks {named(missing, 'image')} of the {split} list. "
                "Unpack images.tar again, completely."
            )
        reader = FileReader(root, ids)
        targets = np.array(labels, dtype=np.int64) - 1  # the lists count from 1
        labelled.append(LabelledImages(f"dogs120/{split}", ids, targets, class_names, reader))
    return Dataset("dogs120", train=labelled[0], test=labelled[1])


def _read_list(path: Path) -> tuple[list[str], list[int]]:
    """Read a list of N files and N labels, which count from 1."""
    from scipy.io import loadmat  # only this data set needs it

    try:
        content = loadmat(str(path), variable_names=["file_list", "labels"])
    except Exception as error:  # loadmat raises almost anything for a damaged file
        raise DataError(f"Cannot read {str(path)!r}: {error}. Download it again.") from error
    absent = [field for field in ("file_list", "labels") if field not in content]
    if absent:
        raise DataError(f"{str(path)!r} lacks {named(absent, 'field')}. Download it again.")
    files = [str(np.asarray(cell).item()) for cell in np.ravel(content["file_list"])]
    labels = [int(label) for label in np.ravel(content["labels"])]
    if len(files) != len(labels):
        raise DataError(
            f"{str(path)!r} has {len(files)} files but {len(labels)} labels. Download it again."
        )
    return files, labels


def _class_names(rows: list[tuple[str, int]]) -> tuple[str, ...]:
    """Name label i + 1 by the folder of its files."""
    names: dict[int, str] = {}
    for file, label in rows:
        folder = file.partition("/")[0]
        if names.setdefault(label, folder) != folder:
            raise DataError(
                f"Label {label} stands for both {names[label]!r} and {folder!r} in the lists of "
                "Stanford Dogs. Download them again."
            )
    gaps = sorted(set(range(1, len(names) + 1)) - set(names))
    if gaps:
        raise DataError(f"The lists of Stanford Dogs have no image with label {gaps[0]}.")
    return tuple(names[label] for label in sorted(names))
