from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from made_up_galleries import FakeEncoder, make_codebooks, make_store
from phpq.gallery.encoding import Encoded, Encoder, Find
from phpq.gallery.engine import Engine, LocalEngine
from phpq.gallery.ingest import Ingest
from phpq.gallery.live import LiveCodes
from phpq.gallery.sources import Item


class Watched(LocalEngine):
    """This process, with a count of what it is asked for."""

    def __init__(self) -> None:
        self.encoded = self.written = 0

    def encode(
        self, items: Iterable[Item], find: Find, encoder: Encoder, *, keep_embeddings: bool = False
    ) -> Generator[list[Encoded], None, None]:
        for batch in super().encode(items, find, encoder, keep_embeddings=keep_embeddings):
            self.encoded += len(batch)
            yield batch

    def write(self, table: Any, dataset: Any) -> list[Any]:
        self.written += table.num_rows
        return super().write(table, dataset)


def test_an_engine_does_all_the_work(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    engine = Watched()
    kept: Engine = engine  # it is one
    work = Ingest(store, LiveCodes(store, make_codebooks()), FakeEncoder(), engine=kept)
    rows = [{"id": str(n), "image": Image.new("RGB", (2, 2), (n, 0, 0))} for n in range(10)]
    assert work.run(rows, metadata={}).added == 10
    assert (engine.encoded, engine.written, len(store)) == (10, 10, 10)
