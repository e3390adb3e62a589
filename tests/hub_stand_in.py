"""A small stand-in of the Hugging Face hub: repositories are made, uploaded to and fetched from."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlsplit

_SHA = "0123456789abcdef0123456789abcdef01234567"  # of the one commit that there is


class HubStandIn:
    """Serves at `address` while the context is open; keeps what was uploaded in `files`."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}  # by repository and name
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []

        class Handler(_Handler):
            hub = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[HubStandIn]

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, content: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, content: Any) -> None:
        self._answer(json.dumps(content).encode(), Content_Type="application/json")

    def _missing(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        self.hub.asked.append(f"POST {path}")
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
            self.hub.files.setdefault(name, {})
            self.hub.private[name] = wanted.get("visibility") == "private"
            self._json({"url": f"{self.hub.address}/{name}"})
        elif path.endswith("/preupload/main"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif path.endswith("/commit/main"):
            name = path.removeprefix("/api/models/").removesuffix("/commit/main")
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.files[name][line["value"]["path"]] = content
            url = f"{self.hub.address}/{name}/commit/{_SHA}"
            self._json({"success": True, "commitOid": _SHA, "commitUrl": url, "hookOutput": ""})
        else:  # the hub checks the head of a card
            self._json({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        name, _, rest = path.removeprefix("/api/models").lstrip("/").partition("/")
        owner, (name, _, rest) = name, rest.partition("/")
        files = self.hub.files.get(f"{owner}/{name}")
        if files is None:
            self._missing()
        elif not path.startswith("/api/"):
            content = files[rest.removeprefix("resolve/").partition("/")[2]]
            tag = f'"{hashlib.sha1(content, usedforsecurity=False).hexdigest()}"'
            self._answer(content, ETag=tag, X_Repo_Commit=_SHA)
        elif rest.startswith("tree/"):
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": _SHA}
                for name, content in files.items()
            ]
            self._json(rows)
        else:
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": f"{owner}/{name}", "sha": _SHA, "siblings": siblings})

    do_HEAD = do_GET
