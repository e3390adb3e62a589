"""The trained encoder as one ONNX file: stored squares in, codes and embeddings out.

The general embedding has a file of its own, without codes: these belong to a gallery.

Resizing, pixel statistics, mirror averaging and codebooks are inside, so that a program in any
language can encode squares of RGB bytes. Before the file gets its name it is checked against the
model: codes must be identical. Its metadata hold what `OnnxModel` needs.
"""

from __future__ import annotations

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq._version import __version__
from phpq.config import DataConfig, RunConfig, to_dict
from phpq.errors import ConfigError, FormatError, MissingExtraError, missing_extra
from phpq.files import replacing
from phpq.model.general import GeneralEmbedding
from phpq.model.interface import ONNX_FILES
from phpq.model.method import Method
from phpq.model.onnx_file import check_sealed, read_facts, seal
from phpq.model.onnx_model import codebook_facts, copy_file

if TYPE_CHECKING:
    from phpq.codes import Space
    from phpq.model.retrieval import TorchModel

CHECKED_IMAGES = 6


class OnnxEncoder(nn.Module):
    """The exported module: (N, 3, S, S) uint8 to codes (N, M) uint8 and embeddings (N, D).

    That of a general embedding returns embeddings (N, E) only.
    """

    def __init__(self, network: Method | GeneralEmbedding, config: DataConfig) -> None:
        super().__init__()
        self.network = network
        self.mirrored = config.eval_flip
        side = config.store_size
        kept = max(1, round(side * config.eval_crop))
        start = (side - kept) // 2
        self.window = slice(start, start + kept)
        # Resizing is linear along each axis. A matrix is exact, while the antialiasing of resize
        # operators differs between runtimes.
        self.register_buffer("resize", _resize_matrix(kept, config.eval_size))
        if isinstance(network, Method):
            self.register_buffer("codewords", torch.tensor(network.export().codewords))

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` returns."""
        return ["codes", "embedding"] if isinstance(self.network, Method) else ["embedding"]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Encode stored squares."""
        images = pixels[..., self.window, self.window].float() / 255
        resize = cast(Tensor, self.resize)
        images = (resize @ images @ resize.T).clamp(0, 1)
        if not isinstance(self.network, Method):
            return (self.network(images),)
        embedding = self.network.embed(images, mirrored=self.mirrored)
        codewords = cast(Tensor, self.codewords)
        parts = embedding.view(-1, codewords.shape[0], codewords.shape[2])
        products = torch.einsum("bmd,mkd->bmk", parts, codewords)
        return products.argmax(-1).to(torch.uint8), embedding


def _resize_matrix(source: int, target: int) -> Tensor:
    """Return (target, source) weights of antialiased bilinear resizing along one axis."""
    if source == target:
        return torch.eye(source)
    # The response to each source pixel alone is a column of the matrix.
    pulses = torch.eye(source).view(source, 1, 1, source)
    rows = F.interpolate(
        pulses, size=(1, target), mode="bilinear", align_corners=False, antialias=True
    )
    return rows.view(source, target).T.contiguous()


def export_onnx(model: TorchModel, path: str | Path, *, space: Space = "learned") -> Path:
    """Write the encoder of a model as ONNX and check it with onnxruntime.

    The name must end in .onnx. Input `pixels`: (N, 3, S, S) uint8 RGB squares, N free,
    S = data.store_size. Outputs `codes`: (N, M) uint8 and `embedding`: (N, D) float32; of the space
    "general" only `embedding`: (N, E). The file's metadata hold settings, classes, codebooks and
    the fingerprint of the weights. The model's device is kept.
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise ConfigError(f"{str(target)!r} must end in .onnx.")
    if not target.parent.is_dir():
        raise ConfigError(f"There is no folder {str(target.parent)!r} to write to. Make it first.")
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra(error, "Writing ONNX files") from error
    config = model.card.config.data
    general = space == "general"
    encoder = OnnxEncoder(model.general if general else model.network, config).cpu().eval()
    try:
        with replacing(target) as temporary:
            _trace(encoder, config.store_size, temporary)
            _check(encoder, temporary, config.store_size)
            seal(temporary, _facts(model, space))
    finally:
        encoder.network.to(model.device)
    return target


def _facts(model: TorchModel, space: Space) -> dict[str, str]:
    """Return the metadata of the file: all that a program without torch needs."""
    facts = {
        "phpq_version": __version__,
        "space": space,
        "embedding_dim": str(model.embedding_dim(space)),
        "dataset": model.card.dataset,
        "class_names": json.dumps(list(model.class_names)),
        "config": json.dumps(to_dict(model.card.config)),
        "epochs": str(model.epochs),
    }
    if space == "general":
        return facts | {"fingerprint": model.general_fingerprint()}
    return facts | {
        "fingerprint": model.fingerprint(),
        "bits": str(model.bits),
        "num_codebooks": str(model.codebooks.num_codebooks),
        "query_norm": model.query_norm,
        **codebook_facts(model.codebooks),
    }


def write_onnx(model: TorchModel, folder: Path) -> str:
    """Write the ONNX files of a model that its folder lacks, if `training.onnx` is set.

    Returns why that failed, or an empty text. Files of the folder that the model was read from are
    copied, since an export takes seconds.
    """
    if not model.card.config.training.onnx:
        return ""
    spaces: tuple[Space, ...] = ("learned", "general") if model.has_general else ("learned",)
    for space in spaces:
        name = ONNX_FILES[space]
        own = model.general_fingerprint() if space == "general" else model.fingerprint()
        if _has_fingerprint(folder / name, own):
            continue
        if model.folder is not None and _has_fingerprint(model.folder / name, own):
            copy_file(model.folder / name, folder / name)
            continue
        try:
            export_onnx(model, folder / name, space=space)
        except (MissingExtraError, FormatError) as error:
            return str(error)
    return ""


def lacks_onnx(folder: Path, config: RunConfig) -> bool:
    """Tell whether a finished run lacks ONNX files that can be written here."""
    possible = all(find_spec(name) for name in ("onnx", "onnxscript"))
    there = all((folder / name).is_file() for name in ONNX_FILES.values())
    return config.training.onnx and possible and not there


def _has_fingerprint(path: Path, fingerprint: str) -> bool:
    """Tell whether a valid ONNX file of the weights with this fingerprint exists."""
    try:
        check_sealed(path)
        return read_facts(path)["fingerprint"] == fingerprint
    except (FormatError, OSError, KeyError):
        return False


def _trace(encoder: OnnxEncoder, side: int, path: Path) -> None:
    # Hide the warnings and log lines of the exporter.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                encoder,
                (torch.zeros(2, 3, side, side, dtype=torch.uint8),),
                str(path),
                input_names=["pixels"],
                output_names=encoder.outputs,
                dynamic_shapes={"pixels": {0: torch.export.Dim("images", min=1, max=4096)}},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise FormatError(f"This network cannot be written as ONNX: {reason}.") from error


def _check(encoder: OnnxEncoder, path: Path, side: int) -> None:
    """Check that the file and torch give identical codes for noise of several contrasts."""
    import onnxruntime

    noise = np.random.default_rng(0).integers(0, 256, (CHECKED_IMAGES, 3, side, side))
    contrast = np.linspace(0.1, 1, CHECKED_IMAGES).reshape(-1, 1, 1, 1)
    pixels = (127 + (noise - 127) * contrast).astype(np.uint8)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    *codes, embedding = session.run(None, {"pixels": pixels})
    with torch.inference_mode():
        *wanted_codes, wanted = encoder(torch.from_numpy(pixels))
    apart = float(np.abs(embedding - wanted.numpy()).max())
    pairs = zip(codes, wanted_codes, strict=True)
    differing = sum(int((found != expected.numpy()).sum()) for found, expected in pairs)
    if differing or apart > 1e-2:
        raise FormatError(
            f"The ONNX file does not reproduce the model: {differing} "
            f"code bytes differ and embeddings are up to {apart:.2g} apart. Nothing was written."
        )
