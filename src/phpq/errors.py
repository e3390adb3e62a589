"""The exception tree. A message says what was seen, what is allowed and what to do next.

PhpqError
├── ConfigError (ValueError)        a setting, or a combination of settings, that cannot work
├── UnknownNameError (LookupError)  a name that is in no table; the message lists the known ones
├── DataError (ValueError)          a data set that cannot be used as it stands
│   └── BadImageError               one image that cannot be read, named
├── FormatError (ValueError)        a file that is damaged, or not what it should be
├── ShapeError (ValueError)         an array of the wrong shape or type at a public door
├── NotTrainedError (RuntimeError)  a model or a run that is not ready for what was asked
├── DivergedError (RuntimeError)    a training whose loss or weights are no longer finite
├── DownloadError (RuntimeError)    a download that failed or whose checksum is wrong
└── MissingExtraError (ImportError) an optional package that is not installed

The command line turns any of them into one message on stderr and exit code 2; a server into a 4xx.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PhpqError(Exception):
    """Any mistake that a user can make and fix."""


class ConfigError(PhpqError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class UnknownNameError(PhpqError, LookupError):
    """A name that is in no table."""


class DataError(PhpqError, ValueError):
    """A data set that cannot be used as it stands."""


class BadImageError(DataError):
    """One image that cannot be read."""


class FormatError(PhpqError, ValueError):
    """A file that is damaged, or not what it should be."""


class ShapeError(PhpqError, ValueError):
    """An array of the wrong shape or type."""


class NotTrainedError(PhpqError, RuntimeError):
    """A model or a run that is not ready for what was asked."""


class DivergedError(PhpqError, RuntimeError):
    """A training whose loss or weights are no longer finite."""


class DownloadError(PhpqError, RuntimeError):
    """A download that failed, or whose checksum is wrong."""


class MissingExtraError(PhpqError, ImportError):
    """An optional package that is not installed."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is in no table, with the nearest known name.

    Args:
        kind: What the name should have named, as in "pooling".
        name: What was given.
        known: Every name that would have been accepted.
    """
    names = sorted(known)
    return UnknownNameError(f"Unknown {kind} {name!r}. {nearest_hint(name, names)}")


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """List the known names and, where one is close, ask whether it was meant."""
    names = list(known)
    listed = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", ..."
    close = difflib.get_close_matches(name, names, n=1)
    return f"Known: {listed}." + (f" Did you mean {close[0]!r}?" if close else "")
