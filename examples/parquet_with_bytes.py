"""One Parquet file that holds the bytes of its images, as data sets of the Hugging Face hub do.

    pip install phpq
    python parquet_with_bytes.py FOLDER FILE.parquet     a folder of class folders into one file
    phpq index birds.gallery FILE.parquet --model RUN    which may also be hf://, s3://, https://

A column `image` (a struct of `bytes` and `path`, or bytes alone) is shown to the model; `label` is
the label, and all other columns are metadata to filter by. phpq reads it a few rows at a time.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def pack(folder: Path, file: Path) -> int:
    """Write the images of a folder into a file; returns their number."""
    images = sorted(path for path in folder.rglob("*") if path.is_file())
    table = pa.table(
        {
            "image": [{"bytes": image.read_bytes(), "path": image.name} for image in images],
            "id": [image.relative_to(folder).as_posix() for image in images],
            "label": [image.parent.name for image in images],
            "size": [image.stat().st_size for image in images],
        }
    )
    pq.write_table(table, file, row_group_size=100)
    return len(images)


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2])), "images")
