"""Our errors, by cause. A message says what was seen, what is allowed and what to do next.

The command line turns any of them into one message on stderr and exit code 2; a server into a 4xx.
"""

import difflib
from collections.abc import Iterable


class PhpqError(Exception):
    """Any mistake that a user can make and fix."""


class ConfigError(PhpqError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class UnknownNameError(PhpqError, LookupError):
    """A name that is in no table; the message lists the known ones."""


class DataError(PhpqError, ValueError):
    """A data set that cannot be used as it stands."""


class BadImageError(DataError):
    """One image that cannot be read, named."""


class FormatError(PhpqError, ValueError):
    """A file that is damaged, or not what it should be."""


class ShapeError(PhpqError, ValueError):
    """An array of the wrong shape or type at a public door."""


class NotTrainedError(PhpqError, RuntimeError):
    """A model or a run that is not ready for what was asked."""


class DivergedError(PhpqError, RuntimeError):
    """A training whose loss or weights are no longer finite."""


class DownloadError(PhpqError, RuntimeError):
    """A download that failed, or whose checksum is wrong."""


class MissingExtraError(PhpqError, ImportError):
    """An optional package that is not installed."""


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
