"""The HTTP API and the page of a gallery: an open gallery and settings in, a FastAPI app out.

The names are loaded when they are first used: a decoder process needs neither FastAPI nor Lance.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["ServerSettings", "create_app"]

_HOMES = {"ServerSettings": "phpq.serve.settings", "create_app": "phpq.serve.app"}

if TYPE_CHECKING:
    from phpq.serve.app import create_app
    from phpq.serve.settings import ServerSettings
else:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'phpq.serve' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
