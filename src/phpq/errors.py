"""Our errors, by cause. A message says what was seen, what is allowed and what to do next.

The command line turns any of them into one message on stderr and exit code 2; a server into a 4xx.
Each kind has a code, and errors.md a section for each code.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class PhpqError(Exception):
    """Any mistake that a user can make and fix."""

    code: ClassVar[str] = ""  # of its section in errors.md, see `explain_code`


class ConfigError(PhpqError, ValueError):
    """A setting, or a combination of settings, that cannot work."""

    code = "config"


class UnknownNameError(PhpqError, LookupError):
    """A name that is in no table; the message lists the known ones."""

    code = "unknown-name"


class DataError(PhpqError, ValueError):
    """A data set that cannot be used as it stands."""

    code = "data"


class BadImageError(DataError):
    """One image that cannot be read, named."""

    code = "bad-image"


class FormatError(PhpqError, ValueError):
    """A file that is damaged, or not what it should be."""

    code = "format"


class ShapeError(PhpqError, ValueError):
    """An array of the wrong shape or type at a public door."""

    code = "shape"


class NotTrainedError(PhpqError, RuntimeError):
    """A model or a run that is not ready for what was asked."""

    code = "not-trained"


class DivergedError(PhpqError, RuntimeError):
    """A training whose loss or weights are no longer finite."""

    code = "diverged"


class DownloadError(PhpqError, RuntimeError):
    """A download that failed, or whose checksum is wrong."""

    code = "download"


class MissingExtraError(PhpqError, ImportError):
    """An optional package that is not installed."""

    code = "missing-extra"


# Which extra brings a package that `pip install phpq` does not.
_TRAIN = ("torch", "torchvision", "timm", "onnx", "onnxscript", "scipy", "matplotlib")
EXTRAS = dict.fromkeys(_TRAIN, "train")
EXTRAS |= {"faiss": "faiss", "ray": "ray"}


def missing_extra(error: ImportError, task: str, advice: str = "") -> MissingExtraError:
    """Build the error for a `task`, as in "Training", that needs a package which is not there."""
    package = (error.name or "a package").partition(".")[0]
    extra = EXTRAS.get(package, "train")
    command = f"Install it with: pip install 'phpq[{extra}]'"
    return MissingExtraError(
        " ".join(filter(None, (f"{task} needs the package {package!r}. {command}", advice))),
        name=package,
    )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name of some `kind`, as in "pooling", with the nearest known name."""
    return UnknownNameError(f"Unknown {kind} {name!r}. {nearest_hint(name, sorted(known))}")


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """List the known names and, where one is close, ask whether it was meant."""
    names = list(known)
    listed = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", ..."
    close = difflib.get_close_matches(name, names, n=1)
    return f"Known: {listed}." + (f" Did you mean {close[0]!r}?" if close else "")


def error_pages() -> dict[str, str]:
    """Return the Markdown of each code: what the error means, its texts, and what to do."""
    text = Path(__file__).with_suffix(".md").read_text("utf-8")
    code_and_page = re.split(r"^## (\S+)\n", text, flags=re.MULTILINE)[1:]
    return {
        code: page.strip()
        for code, page in zip(code_and_page[::2], code_and_page[1::2], strict=True)
    }


def explain_code(code: str) -> str:
    """Return the Markdown of a code, or of the class of an error, as in "BadImageError"."""
    pages = error_pages()
    classes = {page[2 : page.index(".**")]: page for page in pages.values()}
    found = pages.get(code) or classes.get(code)
    if found is None:
        raise unknown_name("error code", code, pages)
    return found
