"""`phpq serve`: starts, answers, stops; and says what is wrong before it loads a model."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import refused
from phpq.client import Client
from served_galleries import TOKEN, shared_gallery


def test_a_gallery_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n", "utf-8")
    command = [sys.executable, "-c", "from phpq.cli import main; main()", "serve"]
    options = ["--port", "0", "--writable", "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(
        [*command, str(shared_gallery()), *options, "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("page http"):
            break
    assert "24 images, writable with the token" in said[0]
    with Client(said[-1].split()[1]) as client:
        assert client.info()["writable"] is True
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 130)
    assert "Traceback" not in rest


def test_a_taken_port_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("serve", tmp_path / "none", "--port", str(port))
    assert f"Port {port} of 127.0.0.1 is taken by another program" in message
    assert "--port 0" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--writable",), "writable=True needs a token"),
        (("--token-file", "no/such/file"), "--token-file 'no/such/file' cannot be read"),
        (("--host", "no.such.host.invalid"), "is no address of this machine"),
        (("--host", "192.0.2.1"), "cannot be used"),
        (("--port", "0"), "does not exist"),
    ],
)
def test_mistakes_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: str
) -> None:
    monkeypatch.delenv("PHPQ_TOKEN", raising=False)
    assert expected in refused("serve", tmp_path / "none.gallery", *options)


def test_the_token_of_the_environment_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_TOKEN", "short")
    message = refused("serve", tmp_path / "none.gallery", "--writable")
    assert "The token has 5 characters" in message
    assert "short" not in message
