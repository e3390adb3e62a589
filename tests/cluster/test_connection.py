from __future__ import annotations

import builtins
import socket
import subprocess
import sys
from typing import Any

import pytest

from phpq.cluster import connection
from phpq.cluster.connection import connected, import_ray, import_serve, is_address
from phpq.errors import ConfigError, MissingExtraError


@pytest.mark.parametrize(
    "text", ["auto", "local", "10.0.0.1:6379", "head:6379", "ray://head:10001", "[::1]:6379"]
)
def test_these_are_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text", ["", "birds", "birds/", "head", "head:port", "auto ", "photos/1.jpg", "http://a:1"]
)
def test_these_are_not(text: str) -> None:
    assert not is_address(text)


def test_a_wrong_address_is_named_with_what_is_allowed() -> None:
    with (
        pytest.raises(ConfigError, match=r"'birds/' is not the address.*HOST:PORT"),
        connected("birds/"),
    ):
        pass


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError("No module named 'ray'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"--ray needs the package 'ray'.*phpq\[ray\]"):
        import_ray()


def test_serve_is_imported_without_a_word() -> None:
    assert callable(import_serve().deployment)  # warnings are errors here


def test_options_are_for_a_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**options: Any) -> None:
            seen.append(options)

        @staticmethod
        def shutdown() -> None: ...

    monkeypatch.setattr(connection, "import_ray", lambda: Ray)
    for address in ("local", "auto"):
        with connected(address, num_cpus=3):
            pass
    assert seen[0]["num_cpus"] == 3
    assert "num_cpus" not in seen[1]


def test_the_module_does_not_import_ray() -> None:
    program = f"import sys, {connection.__name__}; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_process_that_is_connected_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected:
        @staticmethod
        def is_initialized() -> bool:
            return True

    monkeypatch.setattr(connection, "import_ray", lambda: Connected)
    with connected("auto") as ray:  # neither init nor shutdown: there are none
        assert ray is Connected


def test_an_address_without_a_cluster_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreachable:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: object) -> None:
            raise ConnectionError("Could not find any running Ray instance. More\nlines")

    monkeypatch.setattr(connection, "import_ray", lambda: Unreachable)
    with (
        pytest.raises(ConfigError, match=r"'auto': Could not find.*ray start --head"),
        connected("auto"),
    ):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_where_nobody_listens_is_said_at_once(scheme: str) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"no Ray cluster.*refused"), connected(address):
            pass
