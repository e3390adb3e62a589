"""What tests of the page share: a gallery of drawn birds, a server that can go away, gestures."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.sync_api import Page

from phpq.data import write_plumage
from phpq.gallery import Gallery
from tiny_runs import tiny_birds, tiny_config, tiny_train

QUERY = "test"  # the folder of birds beside the gallery that are not in it
PLACES = ("garden", "marsh", "old orchard")


def find_chromium() -> str | None:
    """Return the program named in PHPQ_CHROMIUM, or a Chromium or Chrome of the system."""
    named = os.environ.get("PHPQ_CHROMIUM")
    names = ("chromium", "chromium-browser", "google-chrome")
    return named or next(filter(None, map(shutil.which, names)), None)


def make_gallery(folder: Path, **settings: Any) -> Path:
    """Make `birds.gallery` with metadata, beside `birds/test` with other pictures of them."""
    birds = write_plumage(folder / "birds", tiny_birds(images_per_species=10))
    files = sorted((birds / "train").rglob("*.png"))
    items = [
        {
            "path": str(file),
            "id": f"{file.parent.name}/{file.name}",
            "label": file.parent.name,
            "year": 2019 + number % 5,
            "place": PLACES[number % 3],
            "ringed": number % 4 == 0,
            "note": "<img src=x onerror=alert(1)>",
        }
        for number, file in enumerate(files)
    ]
    model = tiny_train(folder / "run", tiny_config())
    gallery = Gallery.create(folder / "birds.gallery", model, **settings)
    gallery.add(items)
    return folder / "birds.gallery"


def labels_of(gallery: Path) -> list[str]:
    """Return the species."""
    return sorted(folder.name for folder in (gallery.parent / "birds" / "train").iterdir())


def query_file(gallery: Path, species: int = 0) -> Path:
    """Return a picture that is not in the gallery."""
    folder = gallery.parent / "birds" / QUERY / labels_of(gallery)[species]
    return min(folder.iterdir())


class Site:
    """A server on loopback, in a thread; it can go away and come back at the same address."""

    def __init__(
        self, gallery: Path, *, max_upload_bytes: int = 2_000_000, token: str | None = None
    ) -> None:
        self.gallery = gallery
        self._token = token  # writable with it
        self._limit = max_upload_bytes
        self._port = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        import uvicorn

        from phpq.serve.app import create_app
        from phpq.serve.settings import ServerSettings

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        settings = ServerSettings(
            port=self._port,
            max_upload_bytes=self._limit,
            decoders=1,
            rate=0.0,
            token=self._token,
            writable=self._token is not None,
        )
        app = create_app(Gallery.open(self.gallery, device="cpu"), settings)
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        until = time.monotonic() + 60
        while not self._server.started:
            assert self._thread.is_alive(), "the server ended at its start"
            assert time.monotonic() < until, "the server did not start in a minute"
            time.sleep(0.02)
        self._listener = listener

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._listener.close()


def spoken_errors(page: Page) -> list[str]:
    """Collect script errors and breaches of the content security policy from now on."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    return errors


def until(page: Page, expression: str, *, seconds: float = 15) -> None:
    """Wait for an expression to be true; Playwright's own way needs eval, which the policy bars."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(30)


_GIVE = """([kind, name, type, content]) => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type }));
    const target = document.body;
    if (kind === "paste") {
        target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    } else {
        const one = { dataTransfer: data, bubbles: true, cancelable: true };
        target.dispatchEvent(new DragEvent("dragenter", one));
        target.dispatchEvent(new DragEvent("dragover", one));
        if (kind === "drop") target.dispatchEvent(new DragEvent("drop", one));
    }
}"""


def give(page: Page, kind: str, file: Path, media_type: str = "image/png") -> None:
    """Drop or paste a file; "hover" holds it over the page."""
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    page.evaluate(_GIVE, [kind, file.name, media_type, content])
