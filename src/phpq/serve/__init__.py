"""The HTTP API and the page of a gallery: an open gallery and settings in, a FastAPI app out.

The names are loaded when they are first used: a decoder process needs neither FastAPI nor Lance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = ["ServerSettings", "create_app"]

if TYPE_CHECKING:
    from phpq.serve.app import create_app
    from phpq.serve.settings import ServerSettings
else:
    __getattr__ = exports(
        __name__, {"phpq.serve.app": "create_app", "phpq.serve.settings": "ServerSettings"}
    )
