"""CUB-200-2011 in its official layout in, a `Dataset` out (5,994 train, 5,794 test images).

Wah et al., The Caltech-UCSD Birds-200-2011 Dataset, 2011. The image files may have been converted:
another extension than `images.txt` says is found by the name before it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from phpq.data.decode import IMAGE_EXTENSIONS, FileReader
from phpq.data.images import Dataset, LabelledImages, split_by_mask
from phpq.data.split import named
from phpq.errors import DataError

FOLDER = "CUB_200_2011"
TABLES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def find_cub200(root: Path) -> Path | None:
    """Return the folder that holds the tables, `root` or its `CUB_200_2011`, or None."""
    for folder in (root, root / FOLDER):
        if all((folder / table).is_file() for table in TABLES):
            return folder
    return None


def open_cub200(root: Path, *, seed: int = 0) -> Dataset:
    """Open CUB-200-2011, from its folder or the one above, with its official split.

    The seed is not used.

    Returns:
        A data set whose ids are paths relative to `CUB_200_2011`, in the order of `images.txt`.

    Raises:
        DataError: If a table is missing or inconsistent, or an image file is missing.
    """
    del seed
    folder = find_cub200(root)
    if folder is None:
        raise DataError(
            f"{str(root)!r} is not CUB-200-2011: neither it nor its {FOLDER!r} has the files "
            f"{', '.join(TABLES)}. Get them with: phpq download cub200"
        )
    classes = _read_table(folder / "classes.txt")
    files = _read_table(folder / "images.txt")
    labels = _column(folder / "image_class_labels.txt", files, allowed=classes)
    is_train = _column(folder / "train_test_split.txt", files, allowed=("0", "1"))

    position = {class_id: index for index, class_id in enumerate(classes)}
    targets = np.array([position[label] for label in labels], dtype=np.int64)
    ids = _locate(folder, list(files.values()))
    everything = LabelledImages(
        "cub200", ids, targets, tuple(classes.values()), FileReader(folder, ids)
    )
    in_test = np.array([flag == "0" for flag in is_train], dtype=np.bool_)
    return split_by_mask(everything, in_test)


def _read_table(path: Path) -> dict[str, str]:
    """Read lines of "<id> <value>" into a mapping in file order."""
    rows: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value or key in rows:
            wrong = "repeats an id" if key in rows else "is not '<id> <value>'"
            raise DataError(f"Line {number} of {str(path)!r} {wrong}: {line!r}. Download it again.")
        rows[key] = value.strip()
    return rows


def _column(
    path: Path, files: dict[str, str], *, allowed: dict[str, str] | tuple[str, ...]
) -> list[str]:
    """Read the value of each image, in the order of `files`."""
    values = _read_table(path)
    missing = [image for image in files if image not in values]
    if missing:
        raise DataError(f"{str(path)!r} lacks {named(missing, 'image id')} of images.txt.")
    for image in files:
        if values[image] not in allowed:
            raise DataError(
                f"{str(path)!r} gives image {image!r} the value {values[image]!r}; known: "
                f"{', '.join(list(allowed)[:10])}{', ...' if len(allowed) > 10 else ''}."
            )
    return [values[image] for image in files]


def _locate(folder: Path, files: list[str]) -> tuple[str, ...]:
    """Return the path of each image relative to `folder`, with the extension it really has."""
    stems = cache(_stems)
    found: list[str] = []
    missing: list[str] = []
    for file in files:
        wanted = PurePosixPath("images", file)
        names = stems(folder / wanted.parent)
        actual = names.get(wanted.name) or names.get(wanted.stem)
        if actual is None:
            missing.append(str(wanted))
        else:
            found.append(f"{wanted.parent}/{actual}")
    if missing:
        raise DataError(
            f"{str(folder)!r} lacks {named(missing, 'image')} named in images.txt. "
            "Unpack the archive again, completely."
        )
    return tuple(found)


def _stems(folder: Path) -> dict[str, str]:
    """Map the name of each image in a folder, with and without extension, to the file's name."""
    if not folder.is_dir():
        return {}
    files = sorted(child for child in folder.iterdir() if child.suffix.lower() in IMAGE_EXTENSIONS)
    return {child.stem: child.name for child in files} | {child.name: child.name for child in files}
