from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from made_up_galleries import FakeModel
from phpq.data.origins import Origin, RemoteFile, content_hash
from phpq.gallery.encoding import Encoded, encode_again, encode_items
from phpq.gallery.records import Record
from phpq.gallery.sources import Item
from picture_files import write_image


def colour_item(number: int) -> Item:
    colour = tuple(64 * (number // 4**book % 4) + 5 for book in range(3))
    return Item(str(number), Image.new("RGB", (3, 3), colour))


def encode(
    items: Sequence[Item],
    stored: Mapping[str, Record] | None = None,
    model: FakeModel | None = None,
    *,
    keep_embeddings: bool = False,
) -> list[Encoded]:
    known = stored or {}
    found = [replace(item, stored=known.get(item.id)) for item in items]
    fake = (model or FakeModel()).model
    batches = encode_items(found, fake, batch_size=4, keep_embeddings=keep_embeddings)
    return [encoded for batch in batches for encoded in batch]


def test_order_and_codes_do_not_depend_on_threads() -> None:
    done = encode([colour_item(number) for number in range(30)])
    assert [encoded.item.id for encoded in done] == [str(number) for number in range(30)]
    for number, encoded in enumerate(done):
        assert encoded.record is not None
        assert encoded.record.code.tolist() == [number // 4**book % 4 for book in range(3)]
        assert encoded.record.embedding is None


def test_bad_files_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    good = write_image(tmp_path / "good.png", (10, 70, 140))
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    Image.new("RGB", (9, 9)).save(tmp_path / "postscript.jpg", "EPS")
    names = ["good.png", "bad.jpg", "none.png", "postscript.jpg"]
    done = encode([Item(name, tmp_path / name) for name in names], keep_embeddings=True)
    assert done[0].record is not None
    assert done[0].record.sha256 == content_hash(good)[0]
    assert done[0].record.code.tolist() == [0, 1, 2]
    assert done[0].record.embedding is not None
    assert done[0].record.embedding.dtype == np.float16
    reasons = ("not an image", "No such file", "looks like EPS. Opened are JPEG")
    for encoded, reason in zip(done[1:], reasons, strict=True):
        assert encoded.record is None
        assert encoded.reason is not None
        assert reason in encoded.reason
        assert str(tmp_path) in encoded.reason


def test_known_content_is_not_encoded_again() -> None:
    items = [colour_item(number) for number in range(10)]
    stored = {e.record.id: e.record for e in encode(items) if e.record}
    model = FakeModel()
    assert all(e.record is None for e in encode(items, stored, model))
    assert model.batches == []
    told = [
        Item("0", items[0].image, "wren"),
        Item("1", items[1].image, None, {"year": 3}),
        Item("2", items[2].image, None, {"year": None}),
        Item("3", items[4].image),
    ]
    first, second, third, fourth = encode(told, stored, model)
    assert model.batches == [1]  # only the one with other content
    assert first.record is not None
    assert first.record.label == "wren"
    assert first.record.code is stored["0"].code
    assert second.record is not None
    assert second.record.metadata == {"year": 3}
    assert third.record is None
    assert fourth.record is not None
    assert fourth.record.code.tolist() == stored["4"].code.tolist()


def test_batches_are_stretches_of_the_source_whatever_is_stored(tmp_path: Path) -> None:
    items = [colour_item(number) for number in range(18)]
    items[5] = Item("5", tmp_path / "none.png")
    whole = encode(items)
    known = {e.record.id: e.record for e in whole[:9] if e.record}  # all but 5; the third batch cut
    for stored, wanted in (({}, [4, 3, 4, 4, 2]), (known, [3, 4, 2])):
        model = FakeModel()
        encode(items, stored, model)
        assert model.batches == wanted


def test_images_from_everywhere_have_the_same_codes(tmp_path: Path) -> None:
    file = write_image(tmp_path / "x.png", (10, 70, 140))
    origins: list[Origin] = [file, RemoteFile(f"file://{file}"), file.read_bytes()]
    done = encode([Item(str(n), origin) for n, origin in enumerate(origins)])
    records = [e.record for e in done if e.record]
    assert [record.code.tolist() for record in records] == [[0, 1, 2]] * 3
    assert len({record.sha256 for record in records}) == 1
    assert [record.uri for record in records] == [str(file), f"file://{file}", None]


def test_items_are_read_only_a_little_ahead() -> None:
    taken = 0

    def items() -> Iterator[Item]:
        nonlocal taken
        for number in range(100_000):
            taken += 1
            yield colour_item(number % 64)

    batches = encode_items(items(), FakeModel().model, batch_size=4)
    assert len(next(batches)) == 4
    batches.close()
    assert taken <= 12


def test_a_stored_image_is_encoded_again_from_its_file(tmp_path: Path) -> None:
    file = write_image(tmp_path / "x.png", (10, 70, 140))
    (made,) = encode([Item("x", file)], keep_embeddings=True)
    assert made.record is not None
    lost = replace(made.record, code=np.zeros(3, np.uint8))
    gone = replace(lost, uri=str(tmp_path / "none.png"))
    changed = replace(lost, sha256=bytes(32))
    nowhere = replace(lost, uri=None)
    again, *others = encode_again(FakeModel().model, [lost, gone, changed, nowhere])
    assert again is not None
    assert again.code.tolist() == [0, 1, 2]
    assert again.embedding is not None
    assert made.record.embedding is not None
    assert np.array_equal(again.embedding, made.record.embedding)
    assert others == [None, None, None]
