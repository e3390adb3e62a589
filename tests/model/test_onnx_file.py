from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from phpq.errors import FormatError
from phpq.model.onnx_file import check_sealed, read_facts, seal

FACTS = {"bits": "32", "class_names": '["Möwe", "wren"]', "codebooks": "A" * 3_000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that doubles its input, sealed."""
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    two = helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0])
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["y"])], "twice", sides[:1], sides[1:], [two]
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    model.metadata_props.add(key="exporter", value="another program")
    onnx.save(model, tmp_path / "twice.onnx")
    seal(tmp_path / "twice.onnx", FACTS)
    return tmp_path / "twice.onnx"


def test_a_sealed_file_runs_and_says_what_it_is_to_any_program(path: Path) -> None:
    check_sealed(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (doubled,) = session.run(None, {"x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(doubled, [2, 4])
    assert read_facts(path) == FACTS
    assert session.get_modelmeta().custom_metadata_map.items() >= FACTS.items()
    onnx.checker.check_model(onnx.load(str(path)))


def test_every_changed_byte_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    start = whole.index(b"codebooks")
    places = [
        *range(0, start, 7),
        start + 20,
        start + 2_900,
        *range(len(whole) - 250, len(whole)),
    ]
    for place in places:
        for bit in (1, 2, 64):
            changed = bytearray(whole)
            changed[place] ^= bit
            path.write_bytes(changed)
            with pytest.raises(FormatError, match="phpq export"):
                check_sealed(path)


@pytest.mark.parametrize("kept", [0, 1, 20, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused(path: Path, kept: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    with pytest.raises(FormatError, match="phpq export"):
        read_facts(path)


def test_files_of_other_programs_are_refused(path: Path, tmp_path: Path) -> None:
    plain = onnx.load(str(path))
    del plain.metadata_props[:]
    onnx.save(plain, tmp_path / "plain.onnx")
    with pytest.raises(FormatError, match="no seal"):
        read_facts(tmp_path / "plain.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(FormatError, match="no seal"):
        read_facts(tmp_path / "text.onnx")
