"""`phpq serve`: a gallery or an evaluated run in, a web page and an HTTP API out, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phpq.cli._console import Device, Runtime, Searchable, messages
from phpq.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from phpq.gallery import Gallery
    from phpq.gallery.shards import Shards
    from phpq.serve import ServerSettings
    from phpq.serve.settings import Sharding

TOKEN = "PHPQ_TOKEN"  # the variable of the environment


def serve(
    folder: Searchable,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to the whole network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8000,
    writable: Annotated[
        bool,
        typer.Option(
            "--writable/--read-only",
            help=f"Let those who have the token ({TOKEN} or --token-file) add and delete images.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the token, in one line.")
    ] = None,
    max_upload: Annotated[
        float,
        typer.Option(metavar="MB", min=0.01, max=1000, help="Largest image that may be uploaded."),
    ] = 20.0,
    workers: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=256, help="Threads that search; 0: by the cores."),
    ] = 0,
    rate: Annotated[
        float,
        typer.Option(
            metavar="N", min=0, max=1e8, help="Requests per second of one client; 0: no limit."
        ),
    ] = 100.0,
    max_waiting: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=100_000, help="Requests that may wait; more are refused."
        ),
    ] = 64,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=86_400,
            help="Time limit of a request, waiting included.",
        ),
    ] = 30.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name that the server may be reached by."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A web page that may call the API.")
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    device: Device = "auto",
    runtime: Runtime = "auto",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Search on a Ray cluster: local (on this machine), auto or HOST:PORT.",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="With --ray: parts that the gallery is cut into [1].")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="With --ray: processes for each shard [1].")
    ] = None,
    retry: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=86_400,
            help="With --ray: to ask a shard that fails again [10].",
        ),
    ] = None,
) -> None:
    """Serve a gallery: a page to search with photos, and an HTTP API (/docs)."""
    from phpq.serve.settings import ServerSettings

    sharding = _sharding(ray, shards=shards, replicas=replicas, retry_seconds=retry)
    settings = ServerSettings(
        host=host,
        port=port,
        token=_token(token_file),
        writable=writable,
        max_upload_bytes=round(max_upload * 1e6),
        workers=workers,
        rate=rate,
        max_waiting=max_waiting,
        request_seconds=timeout,
        burst=max(1, round(4 * rate)),
        allowed_hosts=tuple(allow_host or ()),
        cors_origins=tuple(allow_origin or ()),
    )
    with (
        listen(settings) as listener,  # before the model is loaded: a taken port shows at once
        _gallery_and_shards(folder, sharding, device, runtime) as (gallery, parts),
    ):
        path = "/" if open_page else None
        run(gallery, settings, listener, path=path, shards=parts)


def _sharding(ray: str | None, **options: Any) -> Sharding | None:
    """Return how the gallery is cut; None serves it from this process."""
    from phpq.serve.settings import Sharding

    given = {name: value for name, value in options.items() if value is not None}
    if ray is not None:
        return Sharding(address=ray, **given)
    if given:
        flag = f"--{next(iter(given)).removesuffix('_seconds')}"
        raise ConfigError(
            f"{flag} is for shards on a Ray cluster: add --ray, for one on this machine, or "
            f"--ray HOST:6379. Without --ray this process holds the whole gallery."
        )
    return None


@contextmanager
def _gallery_and_shards(
    folder: Path, sharding: Sharding | None, device: str, runtime: str
) -> Iterator[tuple[Gallery, Shards | None]]:
    """Open a gallery, and start its shards if there are to be some."""
    # Before torch is loaded: threads of the model that wait for each other must not keep the cores
    # busy that decoders and searches need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from phpq.gallery import Gallery

    gallery = Gallery.open(folder, device=device, runtime=runtime)
    if sharding is None:
        yield gallery, None
        return
    from phpq.serve.ray_shards import ray_shards

    messages().print(
        f"starting {sharding.processes} processes for {sharding.shards} shards on the Ray cluster "
        f"{sharding.address} ...",
        markup=False,
    )
    with ray_shards(gallery.path, gallery.model.codebooks, sharding) as shards:
        # The default ends the process at once, and would leave the shards behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        yield gallery, shards


def run(
    gallery: Gallery,
    settings: ServerSettings,
    listener: socket.socket,
    *,
    path: str | None = None,
    shards: Shards | None = None,
) -> None:
    """Serve a gallery until Ctrl-C; a browser is opened at `path`, if there is one."""
    import uvicorn

    from phpq.serve import create_app

    app = create_app(gallery, settings, shards=shards)
    port = listener.getsockname()[1]
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    shown = "localhost" if settings.host in ("0.0.0.0", "::") else name
    address = f"http://{shown}:{port}"
    console = messages()
    mode = "writable with the token" if settings.writable else "read-only"
    console.print(f"{gallery.path}: {len(gallery):,} images, {mode}", markup=False)
    if not settings.on_loopback:
        console.print(
            "Everybody on the network can search here; there is no encryption.", style="yellow"
        )
    console.print(f"page {address}   API {address}/docs   stop with Ctrl-C", markup=False)
    if path is not None:
        import webbrowser

        if not webbrowser.open(address + path):
            console.print(f"open {address}{path}", markup=False, soft_wrap=True)
    uvicorn.Server(uvicorn_settings(app)).run(sockets=[listener])


def uvicorn_settings(app: Any) -> Any:
    """Return how uvicorn runs an app: quiet, one process, no unlimited waiting."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=5,
        limit_concurrency=2000,
        h11_max_incomplete_event_size=64 * 1024,
        ws="none",
    )


def listen(settings: ServerSettings) -> socket.socket:
    """Open the port."""
    import errno
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"--host {settings.host!r} is no address of this machine ({error.strerror}). Use "
            "127.0.0.1 for this machine alone, or 0.0.0.0 for the network."
        ) from error
    # asyncio sends small answers at once (TCP_NODELAY) only where the protocol is named.
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # there it would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "is taken by another program" if taken else f"cannot be used: {error.strerror}"
        raise ConfigError(
            f"Port {settings.port} of {settings.host} {reason}. Choose another one with "
            "--port, or a free one with --port 0."
        ) from error
    return listener


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--token-file {str(file)!r} cannot be read: {reason}. Give a text file that holds "
            f"the token in one line, or set {TOKEN}."
        ) from error
