"""Rows are found by their texts, in any order of the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_up_galleries import make_record, make_store
from phpq.gallery.part import read_part
from phpq.serve.shards.names import Names, number_labels

LABELS = ("wren", None, "owl", "finch", "wren")


@pytest.mark.parametrize("parts", [1, 3])
def test_rows_are_found_by_text(tmp_path: Path, parts: int) -> None:
    store = make_store(tmp_path / "g")
    store.put([make_record(f"i{n}", n, label=LABELS[n % 5]) for n in range(30)])
    store.put([make_record(f"i{n}", n, label=LABELS[n % 5]) for n in (3, 17)])  # moves them
    expected = store.fetch(store.read_codes().rows)
    for number in range(parts):
        part = read_part(store, number, parts)
        names = Names(part, "id")
        own = expected[part.first : part.first + len(part.rows)]
        for place, record in enumerate(own):
            assert place in names.candidates(record.id).tolist()
        assert not len(names.candidates("none"))
        labels, label_of = number_labels(part)
        assert labels == tuple(sorted({r.label for r in own if r.label is not None}))
        assert [labels[n] if n >= 0 else None for n in label_of] == [r.label for r in own]
        assert names.memory_bytes() == 12 * len(own)


def test_no_rows_have_no_names(tmp_path: Path) -> None:
    part = read_part(make_store(tmp_path / "g"))
    assert not len(Names(part, "id").candidates("a"))
    labels, label_of = number_labels(part)
    assert labels == ()
    assert np.array_equal(label_of, np.empty(0, np.int32))
