"""A text that names a data set in, the opened `Dataset` out; benchmarks in official layouts too.

CUB-200-2011 (5,994 train, 5,794 test images): Wah et al., The Caltech-UCSD Birds-200-2011 Dataset,
2011. The image files may have been converted: another extension than `images.txt` says is found by
the name before it.

Stanford Dogs (12,000 train, 8,580 test images): Khosla et al., Novel Dataset for Fine-Grained Image
Categorization, 2011. The images lie in `images/Images/<class>/` or `Images/<class>/`, the lists in
`lists/` or beside the images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from phpq.data.decode import IMAGE_EXTENSIONS, FileReader
from phpq.data.folder import open_folder
from phpq.data.images import Dataset, LabelledImages, named, split_by_mask
from phpq.data.synthetic.plumage import open_plumage
from phpq.data.table import TABLE_EXTENSIONS, open_table
from phpq.errors import DataError, missing_extra

ACCEPTED = (
    "Accepted: a folder of class folders (with or without train/ and test/), a CSV, TSV or Parquet "
    "file with columns path, label and split, the folder of CUB-200-2011 or Stanford Dogs, "
    "'cub200' or 'dogs120' after a download, or 'plumage' for drawn birds "
    "('plumage:species=20,images=40'). Force a reading with folder:PATH, table:PATH, cub200:PATH "
    "or dogs120:PATH."
)
DOWNLOADABLE = ("cub200", "dogs120")
CUB_FOLDER = "CUB_200_2011"
CUB_TABLES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
DOGS_FOLDERS = ("images/Images", "Images")
DOGS_LISTS = ("train_list.mat", "test_list.mat")


def data_home(home: Path | None = None) -> Path:
    """Return the folder of downloaded data sets: `home`, or `~/.cache/phpq`."""
    return home if home is not None else Path.home() / ".cache" / "phpq"


def find_cub200(root: Path) -> Path | None:
    """Return the folder that holds the tables, `root` or its `CUB_200_2011`, or None."""
    for folder in (root, root / CUB_FOLDER):
        if all((folder / table).is_file() for table in CUB_TABLES):
            return folder
    return None


def open_cub200(root: Path, *, seed: int = 0) -> Dataset:
    """Open CUB-200-2011, from its folder or the one above; the seed is not used.

    Ids are paths relative to `CUB_200_2011`, in the order of `images.txt`.
    """
    del seed
    folder = find_cub200(root)
    if folder is None:
        raise DataError(
            f"{str(root)!r} is not CUB-200-2011: neither it nor its {CUB_FOLDER!r} has the "
            f"files {', '.join(CUB_TABLES)}. Get them with: phpq download cub200"
        )
    classes = _read_table(folder / "classes.txt")
    files = _read_table(folder / "images.txt")
    labels = _column(folder / "image_class_labels.txt", files, allowed=classes)
    is_train = _column(folder / "train_test_split.txt", files, allowed=("0", "1"))

    position = {class_id: index for index, class_id in enumerate(classes)}
    targets = np.array([position[label] for label in labels], dtype=np.int64)
    ids, names = _locate(folder, list(files.values())), tuple(classes.values())
    everything = LabelledImages("cub200", ids, targets, names, FileReader(folder, ids))
    return split_by_mask(everything, np.array(is_train) == "0")


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
    found: list[tuple[PurePosixPath, str | None]] = []
    for wanted in (PurePosixPath("images", file) for file in files):
        names = stems(folder / wanted.parent)
        found.append((wanted, names.get(wanted.name) or names.get(wanted.stem)))
    missing = [str(wanted) for wanted, actual in found if actual is None]
    if missing:
        raise DataError(
            f"{str(folder)!r} lacks {named(missing, 'image')} named in images.txt. "
            "Unpack the archive again, completely."
        )
    return tuple(f"{wanted.parent}/{actual}" for wanted, actual in found)


def _stems(folder: Path) -> dict[str, str]:
    """Map the name of each image in a folder, with and without extension, to the file's name."""
    if not folder.is_dir():
        return {}
    files = sorted(child for child in folder.iterdir() if child.suffix.lower() in IMAGE_EXTENSIONS)
    return {child.stem: child.name for child in files} | {child.name: child.name for child in files}


def find_dogs120(root: Path) -> tuple[Path, Path] | None:
    """Return the folder of class folders and the folder of the lists below `root`, or None."""
    images = next((root / name for name in DOGS_FOLDERS if (root / name).is_dir()), None)
    for lists in (root / "lists", root):
        if images and all((lists / file).is_file() for file in DOGS_LISTS):
            return images, lists
    return None


def open_dogs120(root: Path, *, seed: int = 0) -> Dataset:
    """Open Stanford Dogs; the seed is not used.

    Ids are paths relative to `root`; classes are named by folder, as in "n02085620-Chihuahua".
    """
    del seed
    found = find_dogs120(root)
    if found is None:
        raise DataError(
            f"{str(root)!r} is not Stanford Dogs: it needs {' or '.join(DOGS_FOLDERS)} with the "
            f"class folders, and {' and '.join(DOGS_LISTS)} in lists/ or beside them. "
            "Get them with: phpq download dogs120"
        )
    images, lists = found
    splits = [_read_list(lists / name) for name in DOGS_LISTS]
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
    try:
        from scipy.io import loadmat  # only this data set needs it
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"Reading {path.name!r}") from error

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


LOADERS: dict[str, Callable[..., Dataset]] = {
    "cub200": open_cub200,
    "dogs120": open_dogs120,
    "folder": open_folder,
    "table": open_table,
}


def open_dataset(spec: str | Path, *, seed: int = 0, home: Path | None = None) -> Dataset:
    """Open a data set by a path, a known name, or `kind:PATH`; a `Path` is never a name.

    Images are opened when they are read. The seed draws a missing split, and the plumage.
    """
    if isinstance(spec, str):
        kind, colon, rest = spec.partition(":")
        if kind == "plumage":
            return open_plumage(rest, seed=seed)
        if kind in LOADERS and colon:
            path = Path(rest).expanduser()
            return replace(LOADERS[kind](path, seed=seed), source=f"{kind}:{path.absolute()}")
        if kind in DOWNLOADABLE:
            folder = data_home(home) / kind
            if not folder.is_dir():
                raise DataError(
                    f"{kind!r} is not downloaded: there is no folder {str(folder)!r}. "
                    f"Get it with: phpq download {kind}. If you have it elsewhere, say {kind}:PATH."
                )
            return replace(LOADERS[kind](folder, seed=seed), source=kind)
        if not spec.strip():
            raise DataError(f"The data set is named by an empty text. {ACCEPTED}")
    path = Path(spec).expanduser()
    return replace(_loader(path)(path, seed=seed), source=str(path.absolute()))


def _loader(path: Path) -> Callable[..., Dataset]:
    if not path.exists():
        raise DataError(f"There is no file or folder {str(path)!r}. {ACCEPTED}")
    if path.is_file():
        if path.suffix.lower() in TABLE_EXTENSIONS:
            return open_table
        raise DataError(f"The file {str(path)!r} is not a data set. {ACCEPTED}")
    if find_cub200(path):
        return open_cub200
    return open_dogs120 if find_dogs120(path) else open_folder
