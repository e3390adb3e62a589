"""Files of tensors: exact round trips, and a message for every kind of damage."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import phpq.model.weights as module
from phpq.errors import FormatError
from phpq.model.weights import read_safetensors, read_tensors, write_safetensors


def some_tensors(value: float = 1.0) -> dict[str, Tensor]:
    return {
        "a": torch.full((2, 3), value),
        "b": torch.arange(5),
        "c": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
        "d": torch.tensor(7.0, dtype=torch.float16),
    }


def test_a_round_trip_changes_no_bit(tmp_path: Path) -> None:
    path, tensors = tmp_path / "w.safetensors", some_tensors()
    write_safetensors(path, tensors, {"epoch": "3"})
    loaded, metadata = read_safetensors(path)
    assert metadata == {"epoch": "3"}
    assert loaded.keys() == tensors.keys() == read_tensors(path).keys()
    for key, value in tensors.items():
        assert loaded[key].dtype == value.dtype
        assert torch.equal(loaded[key], value)


def test_tensors_that_need_gradients_or_share_memory_are_written(tmp_path: Path) -> None:
    whole = torch.arange(6.0, requires_grad=True)
    write_safetensors(tmp_path / "w.safetensors", {"x": whole, "y": whole[::2]}, {})
    loaded = read_tensors(tmp_path / "w.safetensors")
    assert loaded["y"].tolist() == [0, 2, 4]


def test_a_crash_while_writing_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, some_tensors(1.0), {})

    def half(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
        file.write_bytes(b"half of a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        write_safetensors(path, some_tensors(2.0), {})
    assert torch.equal(read_tensors(path)["a"], torch.ones(2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"not a file of tensors", b"\xff" * 100],
    ids=["empty", "text", "noise"],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_foreign_content_is_refused(tmp_path: Path, suffix: str, damage: bytes) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(damage)
    with pytest.raises(FormatError, match=rf"w\{suffix}"):
        read_tensors(path)


def test_a_flipped_header_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, some_tensors(), {})
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FormatError, match="is damaged or not a safetensors file"):
        read_tensors(path)


class Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code of the file was run",)


def test_pickled_code_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.ones(1), "b": Payload()}, tmp_path / "w.pth")
    with pytest.raises(FormatError, match="holds tensors only"):
        read_tensors(tmp_path / "w.pth")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [torch.ones(3), [1, 2], {"a": "text"}], ids=str)
def test_files_without_a_dictionary_of_tensors_are_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(FormatError, match="does not hold a dictionary of tensors"):
        read_tensors(tmp_path / "w.pth")


def test_a_folder_and_a_plain_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="There is no weights file"):
        read_tensors(tmp_path)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "hello")
    (tmp_path / "w.pth").write_bytes(archive.getvalue())
    with pytest.raises(FormatError, match="cannot be read as a file of weights"):
        read_tensors(tmp_path / "w.pth")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_value_that_is_not_finite_is_refused(tmp_path: Path, suffix: str, value: float) -> None:
    tensors = some_tensors()
    tensors["c"][1, 2, 0, 1] = value
    path = tmp_path / f"w{suffix}"
    plain = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(plain, path) if suffix == ".safetensors" else torch.save(plain, path)
    expected = rf"w\{suffix}' cannot be used: 'c' has 1 values of 48 that are not finite\. Restore"
    with pytest.raises(FormatError, match=expected):
        read_tensors(path)


def test_a_value_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_safetensors(path, some_tensors(1.0), {})
    with pytest.raises(FormatError, match=r"not written: 'a' has 6 values of 6 .*learning_rate"):
        write_safetensors(path, some_tensors(float("nan")), {})
    assert torch.equal(read_tensors(path)["a"], torch.ones(2, 3))
