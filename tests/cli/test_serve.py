"""`phpq serve`: starts, answers, stops; and says what is wrong before it loads a model."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import phpq, refused
from phpq.client import Client
from served_galleries import TOKEN, ids, shared_gallery


def started(*options: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start a server; returns it when it is there, and what it said."""
    command = [sys.executable, "-c", "from phpq.cli import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, str(shared_gallery()), "--port", "0", "--device", "cpu", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("page http"):
            break
    return process, said


def interrupted(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Stop a server; returns what it said to that."""
    assert process.stderr is not None
    process.send_signal(number)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 130, 143)
    return rest


def test_a_gallery_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n", "utf-8")
    process, said = started("--writable", "--token-file", str(tmp_path / "token"))
    assert "24 images, writable with the token" in said[0]
    with Client(said[-1].split()[1]) as client:
        assert client.info()["writable"] is True
    assert "Traceback" not in interrupted(process, signal.SIGINT)


@pytest.mark.slow
def test_shards_are_started_and_stopped_with_the_server() -> None:
    process, said = started("--ray", "local", "--shards", "2")
    assert "starting 2 processes for 2 shards on the Ray cluster local" in said[0]
    children = descendants(process.pid)
    assert any("shard-1" in name for name in children.values())
    with Client(said[-1].split()[1]) as client:
        assert client.info()["images"] == 24
        assert len(client.search_id(ids()[0], top_k=30)) == 23
    rest = interrupted(process, signal.SIGINT)
    assert "Traceback" not in rest
    end = time.monotonic() + 30
    while left := {pid for pid in children if Path(f"/proc/{pid}").exists()}:
        assert time.monotonic() < end, left
        time.sleep(0.1)


def descendants(parent: int) -> dict[int, str]:
    """Return the processes that a process started, and those that they started, by name."""
    parents, names = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text("utf-8")
            names[int(process.name)] = (process / "cmdline").read_text("utf-8", errors="replace")
        except OSError:
            continue
        parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
    found, new = set[int](), {parent}
    while new := {pid for pid, above in parents.items() if above in new} - found:
        found |= new
    return {pid: names[pid] for pid in found}


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
        (("--shards", "2"), "--shards is for shards on a Ray cluster: add --ray"),
        (("--replicas", "2"), "--replicas is for shards on a Ray cluster"),
        (("--retry", "3"), "--retry is for shards on a Ray cluster"),
        (("--ray", "local", "--shards", "0"), "--shards 0 is not allowed: it must be 1 to"),
        (("--ray", "local", "--replicas", "-1"), "--replicas -1 is not allowed"),
        (("--ray", "ray://head:10001"), "--ray 'ray://head:10001' cannot be used"),
        (("--ray=birds/",), "--ray 'birds/' cannot be used"),
    ],
)
def test_mistakes_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: str
) -> None:
    monkeypatch.delenv("PHPQ_TOKEN", raising=False)
    assert expected in refused("serve", tmp_path / "none.gallery", *options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--timeout", "100000"),
        ("--max-waiting", "1000000"),
        ("--rate", "1e9"),
        ("--retry", "0"),
        ("--max-upload", "5000"),
    ],
)
def test_limits_are_named_as_their_options_are(tmp_path: Path, option: str, value: str) -> None:
    outcome = phpq("serve", tmp_path / "none.gallery", "--ray", "local", option, value)
    assert outcome.code == 2
    assert re.search(f"Invalid value for .*{option}", outcome.err)


def test_the_token_of_the_environment_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHPQ_TOKEN", "short")
    message = refused("serve", tmp_path / "none.gallery", "--writable")
    assert "The token has 5 characters" in message
    assert "short" not in message
