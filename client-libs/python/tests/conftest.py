"""Real daemons, and the stubs of conformance/proto.

The programs are found where TOLLGATE_PROGRAMS says, or in target/debug; see .ci/python, which builds and runs all of this.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any, Callable, Iterator, List

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LIBRARY = HERE.parent
PROTOS = ROOT / "conformance" / "proto"


def program(name: str) -> str:
    """The path of a built program."""
    directory = pathlib.Path(os.environ.get("TOLLGATE_PROGRAMS", ROOT / "target" / "debug"))
    path = directory / name
    assert path.exists(), f"{path} is not built; run .ci/python, or cargo build and set TOLLGATE_PROGRAMS"
    return str(path)


def pytest_configure(config: pytest.Config) -> None:
    """Test modules import stubs, so they are generated first."""
    directory = pathlib.Path(os.environ["TOLLGATE_STUBS"])
    health = ROOT / "client-libs" / "rust" / "health" / "proto" / "grpc" / "health" / "v1" / "health.proto"
    for proto in (*(PROTOS / f"{name}.proto" for name in ("hotel", "interop", "everything")), health):
        run = [program("tollgate"), "gen", "--lang", "python", "--out", str(directory / "stubs")]
        subprocess.run([*run, str(proto)], check=True)
    sys.path.insert(0, str(directory))


class Daemon:
    """A running tollgated."""

    def __init__(self, directory: pathlib.Path, name: str) -> None:
        self.socket = str(directory / f"{name}.sock")
        self.arguments = ["--name", name, "--listen", "127.0.0.1:0", "--socket", self.socket, "--state", str(directory / f"{name}.state")]
        self.arguments += ["--unauthenticated-loopback", "--open-targets"]
        self.start()
        add = [program("tollgate"), "--socket", self.socket, "tenant", "add", "acme"]
        self.token = subprocess.run(add, check=True, capture_output=True, text=True).stdout.strip()

    def start(self) -> None:
        # The leash ends it when this process dies, for any reason.
        self.process = subprocess.Popen(
            [program("leash"), str(os.getpid()), program("tollgated"), *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if " ready " in line:
                self.listen = line.split("listen=")[1].split()[0]
                break
        else:
            raise AssertionError("tollgated ended before it was ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[List[Daemon]]:
    """Two hosts. Callers are on the first, servers on the second."""
    directory = tmp_path_factory.mktemp("hosts")
    daemons = [Daemon(directory, "a"), Daemon(directory, "b")]
    yield daemons
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A host for this test alone, to be killed."""
    daemon = Daemon(tmp_path, "own")
    yield daemon
    # The process may be dead, but its output is still open.
    daemon.kill()


@pytest.fixture
def serve(hosts: List[Daemon]) -> Iterator[Callable[..., Any]]:
    """Serves on the second host, until the test is over."""
    import tollgate

    servers = []

    def start(add: Any, servicer: Any, **options: Any) -> tollgate.Server:
        server = tollgate.server(hosts[1].socket, hosts[1].token, **options)
        servers.append(server)
        add(servicer, server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop(grace=5).wait()


@pytest.fixture
def channel(hosts: List[Daemon]) -> Iterator[Any]:
    """Calls from the first host to the second."""
    import tollgate

    with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
        yield channel
