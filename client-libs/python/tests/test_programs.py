"""The examples, the README's snippets, and the types of all programs."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Dict, Iterator, List

import pytest
from conftest import LIBRARY, program

STUBS = pathlib.Path(os.environ["TOLLGATE_STUBS"])
EXAMPLES = LIBRARY / "examples"

# The output of the examples that are one program.
PRINTED = {
    "streaming": [
        "collected 10",
        "spread [0, 1, 2, 3, 4]",
        "chatted [0, 2, 4, 6, 8]",
        "stopped True",
        "goes on 2",
    ],
    "metadata": [
        "beside the response: (('greeting', 'hello Ada'),)",
        r"behind it: (('trace-bin', b'\x00\xff'),)",
    ],
    "errors": [
        "INVALID_ARGUMENT: room_count is 0; book at least one room {} b''",
        r"FAILED_PRECONDITION: full {'rooms': '9'} b'\x08\t\x12\x04full'",
        "UNKNOWN: Exception calling application: integer division or modulo by zero {} b''",
        "UNIMPLEMENTED: hotel.Reservation/CheckAvailability isn't implemented",
    ],
    "zero_copy": ["[1, 2]"] * 3,
    "cancellation": [
        "DEADLINE_EXCEEDED",
        "the handler saw the deadline",
        "the handler saw that the caller gave up: StatusCode.CANCELLED",
    ],
}
# The output of clients with their servers, except numbers.
ANSWERED = {
    "hello": ["hello, world"],
    "hotel": ["reservation 1", "reservation 2", "2 calls in # s", "ritz: 4 rooms left"],
}


def environment(*paths: pathlib.Path) -> Dict[str, str]:
    """Children import this process's packages, and the stubs."""
    found = [str(path) for path in paths] + [path for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


def run(script: pathlib.Path, *arguments: str) -> List[str]:
    """The output of a program that succeeds and prints no warnings."""
    command = [sys.executable, "-W", "error", str(script), *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert (child.returncode, child.stderr) == (0, ""), child.stdout
    return child.stdout.splitlines()


@pytest.fixture
def served(hosts: Any) -> Iterator[Any]:
    """Starts servers on the second host."""
    children = []

    def start(script: pathlib.Path) -> None:
        command = [sys.executable, "-W", "error", str(script), hosts[1].socket, hosts[1].token]
        # The leash ends it when this process dies, for any reason.
        leashed = [program("leash"), str(os.getpid()), *command]
        child = subprocess.Popen(leashed, stdout=subprocess.PIPE, text=True, env=environment())
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "serving\n"

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("name", PRINTED)
def test_examples(hosts: Any, name: str) -> None:
    assert run(EXAMPLES / f"{name}.py", hosts[0].socket, hosts[0].token) == PRINTED[name]


@pytest.mark.parametrize("name", ANSWERED)
def test_examples_of_two_programs(hosts: Any, served: Any, name: str) -> None:
    served(EXAMPLES / f"{name}_server.py")
    arguments = [hosts[0].socket, hosts[0].token, hosts[1].listen]
    lines = run(EXAMPLES / f"{name}_client.py", *arguments, *(["2"] if name == "hotel" else []))
    assert [re.sub(r"\d+\.\d+", "#", line) for line in lines] == ANSWERED[name]


def test_every_example_is_run() -> None:
    of_two = {f"{name}_{part}" for name in ANSWERED for part in ("server", "client")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTED) | of_two


def snippets(language: str) -> List[str]:
    """The README's blocks in a language."""
    text = (LIBRARY / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_readme(hosts: Any, tmp_path: pathlib.Path) -> None:
    """Its proto, server and client are written to files and run as it describes."""
    (tmp_path / "greeter.proto").write_text(snippets("proto")[0])
    generate = next(line for block in snippets("sh") for line in block.splitlines() if "tollgate gen" in line)
    subprocess.run([program("tollgate"), *generate.split()[1:]], cwd=tmp_path, check=True)
    server, client, aio, large, traced = snippets("python")

    def script(name: str, text: str) -> List[str]:
        path = tmp_path / name
        path.write_text(text.replace('"SOCKET"', repr(hosts[0].socket)))
        return [sys.executable, "-W", "error", str(path)]

    leash = [program("leash"), str(os.getpid())]
    command = [*leash, *script("server.py", server)]
    env = {**environment(tmp_path), "TOLLGATE_TOKEN": hosts[0].token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None and child.stdout.readline() == "serving\n"
        clients = {"client.py": client, "aio_client.py": aio, "large.py": large, "traced.py": traced}
        for name, text in clients.items():
            ran = subprocess.run(script(name, text), capture_output=True, text=True, timeout=60, env=env)
            assert (ran.returncode, ran.stderr) == (0, ""), name
            assert ran.stdout.splitlines() == re.findall(r"# prints: (.*)", text), name
        child.kill()


def test_types() -> None:
    """mypy --strict of the package, of generated code, the examples and the programs for interoperability."""
    # The options are the project's.
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(LIBRARY / "pyproject.toml"), "--cache-dir", str(STUBS / "mypy")]
    env = {**os.environ, "MYPYPATH": f"{STUBS}{os.pathsep}{LIBRARY / 'python'}"}
    scripts = [*EXAMPLES.glob("*.py"), *(LIBRARY / "interop").glob("*.py")]
    for what in (["-p", "tollgate"], ["-p", "stubs"], ["--scripts-are-modules", *map(str, scripts)]):
        checked = subprocess.run([*mypy, *what], capture_output=True, text=True, env=env)
        assert checked.returncode == 0, checked.stdout + checked.stderr
