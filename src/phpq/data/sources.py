"""A text that names a data set in, the opened `Dataset` out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from phpq.data.benchmarks import find_cub200, find_dogs120, open_cub200, open_dogs120
from phpq.data.folder import open_folder
from phpq.data.images import Dataset
from phpq.data.synthetic.plumage import open_plumage
from phpq.data.table import TABLE_EXTENSIONS, open_table
from phpq.errors import DataError

ACCEPTED = (
    "Accepted: a folder of class folders (with or without train/ and test/), a CSV, TSV or Parquet "
    "file with columns path, label and split, the folder of CUB-200-2011 or Stanford Dogs, "
    "'cub200' or 'dogs120' after a download, or 'plumage' for drawn birds "
    "('plumage:species=20,images=40'). Force a reading with folder:PATH, table:PATH, cub200:PATH "
    "or dogs120:PATH."
)

LOADERS: dict[str, Callable[..., Dataset]] = {
    "cub200": open_cub200,
    "dogs120": open_dogs120,
    "folder": open_folder,
    "table": open_table,
}
DOWNLOADABLE = ("cub200", "dogs120")


def data_home(home: Path | None = None) -> Path:
    """Return the folder of downloaded data sets: `home`, or `~/.cache/phpq`."""
    return home if home is not None else Path.home() / ".cache" / "phpq"


def open_dataset(spec: str | Path, *, seed: int = 0, home: Path | None = None) -> Dataset:
    """Open a data set by what names it; its images are opened when they are read.

    Args:
        spec: A path, a known name, or `kind:PATH`; a `Path` is never taken for a name.
        seed: Decides the split where the source has none, and draws the plumage.
        home: Where downloads are kept; by default `data_home()`.
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
