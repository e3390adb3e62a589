"""Python loops compiled by numba: what was compiled once on a machine is not compiled again there.

numba keeps compiled code beside the source, so that every new copy of the package compiles anew.
Here it is kept in the user's cache, by the content of the source.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Tried in this order; the others are numba's own, for users without a cache of their own.
_LOCATORS = f"{__name__}.Shared,InTreeCacheLocator,UserWideCacheLocator"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called; keep the result on disk; release the GIL."""
    import numba

    config = numba.config
    asked = getattr(config, "CACHE_LOCATOR_CLASSES", "")  # the user's wish
    if not asked and not config.CACHE_DIR:
        config.CACHE_LOCATOR_CLASSES = _LOCATORS
    result: Callable[..., Any] = numba.njit(function, nogil=True)
    try:
        result.enable_caching()  # type: ignore[attr-defined]
    except RuntimeError:
        pass  # no folder can be written to: it is compiled in every process
    finally:
        config.CACHE_LOCATOR_CLASSES = asked
    return result


class Shared:
    """Says where numba keeps the code of a function (`numba.core.caching._CacheLocator`).

    Functions of a package call each other, and the callee's code is part of the caller's: so the
    folder is named by all files of the package.
    """

    def __init__(self, function: Any, file: str) -> None:
        self._py_file = file  # numba asks for it by this name
        self._line = function.__code__.co_firstlineno
        digest = hashlib.sha256()
        for path in sorted(Path(file).parent.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        self._stamp = digest.hexdigest()

    @classmethod
    def from_function(cls, function: Any, file: str) -> Shared | None:
        """Return where a function of a file is kept; None where nothing can be."""
        try:
            place = cls(function, file)
            place.ensure_cache_path()
        except (OSError, RuntimeError):  # the latter where there is no home
            return None
        return place

    def ensure_cache_path(self) -> None:
        """Make the folder; an OSError if nothing can be written there."""
        path = self.get_cache_path()
        Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()

    def get_cache_path(self) -> str:
        """Return the folder."""
        named = os.environ.get("XDG_CACHE_HOME")
        home = Path(named) if named else Path.home() / ".cache"
        return str(home / "phpq" / "compiled" / self._stamp[:16])

    def get_source_stamp(self) -> str:
        """Return what changes with the source."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Tell functions of one name apart."""
        return str(self._line)
