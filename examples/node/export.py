"""Write what search.mjs reads: codes, codebooks and ids of a gallery, and a photo as pixels.

    python export.py GALLERY PHOTO FOLDER

The encoder itself is `encoder.onnx` in the gallery's model folder; no Python runs after this.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import phpq
from phpq.data import decode_square


def main(gallery_folder: str, photo: str, out: str) -> None:
    gallery, folder = phpq.Gallery.open(gallery_folder), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    gallery.export(folder / "gallery.parquet")
    table = pq.read_table(folder / "gallery.parquet")
    codes = np.array(table["code"].to_pylist(), np.uint8)
    words = gallery.codebooks.codewords
    pixels = decode_square(Path(photo), gallery.model.card.config.data)
    codes.tofile(folder / "codes.u8")
    words.astype("<f4").tofile(folder / "codebooks.f32")
    pixels.tofile(folder / "photo.u8")
    facts = {
        "ids": table["id"].to_pylist(),
        "codebooks": words.shape,
        "side": pixels.shape[-1],
        "unit": gallery.manifest.query_norm == "unit",
    }
    (folder / "facts.json").write_text(json.dumps(facts), "utf-8")
    encoder = gallery.path / "model" / "encoder.onnx"
    (folder / "encoder.onnx").write_bytes(encoder.read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
