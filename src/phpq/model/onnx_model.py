"""A model that computes with onnxruntime: no torch, ready in a fraction of a second.

The ONNX files beside the weights hold all that it needs (`export.py` writes them); one that
belongs to other weights than those beside it is refused.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import sys
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from phpq.codes import Codebooks, QueryNorm, Space
from phpq.errors import FormatError, NotTrainedError, unknown_name
from phpq.files import replacing
from phpq.model.checkpoint import (
    GENERAL,
    WEIGHTS,
    ModelCard,
    copy_chances,
    stored_fingerprint,
    write_card,
)
from phpq.model.interface import ENCODER, INT8, ONNX_FILES, Model, load
from phpq.model.onnx_file import check_sealed, read_facts

if TYPE_CHECKING:
    from phpq.model.retrieval import TorchModel

_BATCH = 4  # images per run: more are no faster on a CPU, and take memory


class OnnxModel(Model):
    """The ONNX files of a model folder; sessions are created when first used."""

    def __init__(self, folder: Path, card: ModelCard, *, file: str = ENCODER) -> None:
        self._paths = {**ONNX_FILES, "learned": file}
        self._sessions: dict[Space, Any] = {}
        self._lock = threading.Lock()
        self._facts = {"learned": matching_facts(folder / file, folder / WEIGHTS)}
        facts = self._facts["learned"]
        super().__init__(
            card,
            _codebooks(facts),
            cast(QueryNorm, facts["query_norm"]),
            epochs=int(facts["epochs"]),
            folder=folder,
        )
        self.home = folder

    @property
    def has_general(self) -> bool:
        """Whether there is a general embedding."""
        return (self.home / ONNX_FILES["general"]).is_file()

    def embedding_dim(self, space: Space = "learned") -> int:
        """Return the length of an embedding: D, or E of the general one."""
        return int(self._facts_of(space)["embedding_dim"])

    def fingerprint(self) -> str:
        """Hash of the weights: equal models give equal codes."""
        return self._facts_of("learned")["fingerprint"]

    def general_fingerprint(self) -> str:
        """Hash of the general embedding: equal ones give equal vectors."""
        return self._facts_of("general")["fingerprint"]

    @cached_property
    def with_torch(self) -> TorchModel:
        """The same model on torch, for gradients; a MissingExtraError without torch."""
        return load(self.home, device="cpu", runtime="torch")

    def save(self, folder: str | Path) -> Path:
        """Copy the files of the model to a folder; returns it."""
        path = Path(folder)
        write_card(path, self.card)
        for name in (WEIGHTS, GENERAL, *ONNX_FILES.values(), INT8):
            if (self.home / name).is_file():
                copy_file(self.home / name, path / name)
        copy_chances(self.home, path, self.fingerprint())
        return path

    def _embed(
        self, pixels: NDArray[np.uint8], space: Space, batch_size: int
    ) -> NDArray[np.float32]:
        session = self._session(space)
        step = min(batch_size, _BATCH)
        parts = [
            session.run(["embedding"], {"pixels": pixels[start : start + step]})[0]
            for start in range(0, len(pixels), step)
        ]
        return np.concatenate(parts)

    def _facts_of(self, space: Space) -> dict[str, str]:
        if space not in ONNX_FILES:
            raise unknown_name("space", space, ONNX_FILES)
        if space not in self._facts:
            path = self.home / self._paths[space]
            if not path.is_file():
                raise NotTrainedError(
                    f"{str(self.home)!r} has no {path.name}, which holds its general embedding for "
                    f"onnxruntime. Write it, where phpq[train] is installed, with: phpq export "
                    f"{self.home}"
                )
            self._facts[space] = matching_facts(path, self.home / GENERAL)
        return self._facts[space]

    def _session(self, space: Space) -> Any:
        import onnxruntime

        self._facts_of(space)
        with self._lock:
            if space not in self._sessions:
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = _threads()
                # Waiting threads must not keep cores busy that decoding and search need.
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
                options.log_severity_level = 3
                options.enable_mem_pattern = False  # it keeps memory for every batch size
                path = self.home / self._paths[space]
                check_sealed(path)
                # By path: onnxruntime would keep a copy of bytes.
                self._sessions[space] = onnxruntime.InferenceSession(
                    str(path), options, providers=["CPUExecutionProvider"]
                )
                _trim_memory()
            return self._sessions[space]


def matching_facts(path: Path, weights: Path) -> dict[str, str]:
    """Read the facts of an ONNX file; a FormatError if it belongs to other weights.

    Without weights, as on a machine that only searches, they are not compared.
    """
    if not path.is_file():
        option = " --int8" if path.name == INT8 else ""
        raise NotTrainedError(
            f"{str(path.parent)!r} has no {path.name}. Write it, where phpq[train] is installed, "
            f"with: phpq export {path.parent}{option}"
        )
    facts = read_facts(path)
    if weights.is_file() and facts.get("fingerprint") != stored_fingerprint(weights):
        raise FormatError(
            f"{str(path)!r} does not belong to the {weights.name} beside it. Write it again, where "
            f"phpq[train] is installed, with: phpq export {path.parent}"
        )
    return facts


def codebook_facts(codebooks: Codebooks) -> dict[str, str]:
    """Return codebooks as texts, for the metadata of an ONNX file."""
    words = codebooks.codewords.astype("<f4")
    return {
        "codebooks_shape": json.dumps(words.shape),
        "codebooks": base64.b64encode(words.tobytes()).decode(),
        "codebooks_unit": json.dumps(codebooks.unit),
    }


def _codebooks(facts: dict[str, str]) -> Codebooks:
    words = np.frombuffer(base64.b64decode(facts["codebooks"]), "<f4").astype(np.float32)
    shape = json.loads(facts["codebooks_shape"])
    return Codebooks(words.reshape(shape), unit=json.loads(facts["codebooks_unit"]))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file in one atomic step."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _trim_memory() -> None:
    """Return freed memory to the system, if it can: half of what creating a session took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _threads() -> int:
    """Return the threads to use: one per available core, or OMP_NUM_THREADS if that is less."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) else cores
