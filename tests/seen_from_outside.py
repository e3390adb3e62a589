"""What mypy sees of an installed phpq (py.typed), from a folder that knows nothing of this one.

python tests/seen_from_outside.py PYTHON    the interpreter of an environment with phpq
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_USER = """
import phpq

def first(gallery: phpq.Gallery, photo: str) -> str:
    return gallery.search(photo, top_k=3)[0].id

model = phpq.load("runs/birds")
reveal_type(model.bits)
reveal_type(model.encode("photo.jpg"))
model.encode("photo.jpg", batch_size="many")
"""
# A type that was lost on the way would be Any, and the mistake in the last line would pass.
_WANTED = (
    'Revealed type is "int"',
    "numpy.ndarray",
    'Argument "batch_size" to "encode" of "Model" has incompatible type "str"; expected "int"',
    "Found 1 error in 1 file",
)


def seen(python: str) -> str:
    """Check a program that uses phpq; returns what mypy says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "user.py"
        path.write_text(_USER, "utf-8")
        command = ["-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", folder]
        done = subprocess.run(
            [sys.executable, *command, str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr


if __name__ == "__main__":
    said = seen(sys.argv[1])
    missing = [text for text in _WANTED if text not in said]
    if missing:
        raise SystemExit(f"{said}\nmypy does not say: {missing}")
    print("phpq is typed for who installs it")  # noqa: T201
