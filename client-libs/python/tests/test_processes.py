"""Processes: signals, forks, and daemons that are missing or die."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

import pytest
import tollgate
from semantics import Context, Given, echo_numbers
from stubs.interop_tollgate import Answer, Ask, AskView, SemanticsStub, add_SemanticsServicer_to_server
from tollgate import StatusCode

Serve = Callable[..., tollgate.Server]
add = add_SemanticsServicer_to_server

WAITS = """
import signal, sys, threading
import tollgate
from stubs.interop_tollgate import Ask, SemanticsStub
# As at a terminal, even if the parent ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
channel = tollgate.channel(*sys.argv[2:])
stub = SemanticsStub(channel)
def requests():
    threading.Event().wait()
    yield Ask()
waits = {
    "unary": lambda: stub.Unary(Ask()),
    "future": lambda: stub.Unary.future(Ask()).result(),
    "collect": lambda: stub.Collect(requests()),
    "chat": lambda: next(stub.Chat(requests())),
}
try:
    print("waiting", flush=True)
    waits[sys.argv[1]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
# The session still works.
try:
    stub.Unary(Ask(number=1))
except tollgate.RpcError as error:
    print(error.details())
"""


@pytest.mark.parametrize("what", ["unary", "future", "collect", "chat"])
def test_ctrl_c_ends_a_wait(hosts: Any, serve: Serve, what: str) -> None:
    began, over = threading.Semaphore(0), threading.Semaphore(0)

    def wait(request: Any, context: Context) -> Any:
        if isinstance(request, AskView) and request.number == 1:
            context.abort(StatusCode.NOT_FOUND, "still here")
        context.add_callback(over.release)
        began.release()
        while context.is_active():
            time.sleep(0.01)
        return Answer()

    serve(add, Given(unary=wait, collect=wait, chat=wait))
    arguments = [what, hosts[0].socket, hosts[0].token, hosts[1].listen]
    child = subprocess.Popen([sys.executable, "-c", WAITS, *arguments], stdout=subprocess.PIPE, text=True, env=environment())
    with child:
        assert child.stdout is not None and child.stdout.readline() == "waiting\n"
        assert began.acquire(timeout=30)
        time.sleep(0.2)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert child.stdout.readline() == "still here\n"
    assert child.returncode == 0
    assert over.acquire(timeout=30), "the call was cancelled"


def environment() -> Any:
    """Children import from the same paths as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_a_signal_handler_that_returns_ends_no_wait(serve: Serve, channel: tollgate.Channel) -> None:
    go_on = threading.Event()

    def unary(request: AskView, context: Context) -> Answer:
        if request.number == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert go_on.wait(30)
        return Answer(number=request.number)

    serve(add, Given(unary=unary))
    stub = SemanticsStub(channel)
    seen = []

    def handler(number: int, frame: Any) -> None:
        # Calls are made from here while another thread waits.
        seen.append(stub.Unary(Ask(number=5)).number)
        go_on.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert stub.Unary(Ask(number=7)).number == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [5]


def test_a_fork_is_told_and_harms_nobody(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    def unary(request: AskView, context: Context) -> Answer:
        return Answer(number=request.number, payload=bytes(request.payload))

    serve(add, Given(unary=unary, chat=echo_numbers))
    stub = SemanticsStub(channel)
    reply = stub.Unary(Ask(payload=b"abc"))
    call = stub.Chat(iter([Ask(number=1)]))
    assert next(call).number == 1
    buffer = channel.buffer(5000)
    child = os.fork() if sys.version_info < (3, 12) else fork_quietly()
    if child == 0:
        code = 1
        try:
            for use in (
                lambda: stub.Unary(Ask()),
                lambda: next(call),
                lambda: channel.buffer(10),
                lambda: channel.tenant,
                channel.close,
            ):
                with pytest.raises(RuntimeError, match="this process was forked from the one that opened"):
                    use()
            # A drop in the child must not return the parent's memory.
            del reply, call, buffer
            with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as own:
                assert SemanticsStub(own).Unary(Ask(number=3)).number == 3
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert reply.payload == b"abc"
    assert stub.Unary(Ask(number=2)).number == 2
    assert next(call, None) is None
    del reply, call, buffer


def fork_quietly() -> int:
    """Newer versions warn about forks of processes with threads, which this tests."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def test_a_daemon_that_is_not_there_is_named(hosts: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(tollgate.RpcError, match="no daemon answers at") as caught:
        tollgate.channel(tmp_path / "none.sock", "token")
    assert caught.value.code() is StatusCode.UNAVAILABLE
    with pytest.raises(tollgate.RpcError) as caught:
        tollgate.channel(hosts[0].socket, "no token")
    assert caught.value.code() is StatusCode.UNAUTHENTICATED
    with tollgate.channel(hosts[0].socket, hosts[0].token, "127.0.0.1:1") as channel:
        assert channel.tenant == "acme" and channel.max_message_bytes > 1 << 20
        with pytest.raises(tollgate.RpcError) as caught:
            SemanticsStub(channel).Unary(Ask(), timeout=20)
        assert caught.value.code() is StatusCode.UNAVAILABLE


def test_a_daemon_that_comes_back_is_found_again(daemon: Any) -> None:
    def unary(request: AskView, context: Context) -> Answer:
        return Answer(number=request.number)

    server = tollgate.server(daemon.socket, daemon.token)
    add(Given(unary=unary), server)
    server.start()
    with tollgate.channel(daemon.socket, daemon.token) as channel:
        stub = SemanticsStub(channel)
        for number in (101, 102, 103):
            until = time.monotonic() + 30
            while True:
                try:
                    assert stub.Unary(Ask(number=number)).number == number
                    break
                except tollgate.RpcError as error:
                    assert error.code() is StatusCode.UNAVAILABLE and time.monotonic() < until, error
                    time.sleep(0.01)
            if number < 103:
                daemon.kill()
                daemon.start()
    server.stop().wait()


def test_a_daemon_that_dies_ends_everything(daemon: Any) -> None:
    over = threading.Semaphore(0)

    def chat(requests: Iterator[AskView], context: Context) -> Iterator[Answer]:
        context.add_callback(over.release)
        yield Answer(number=next(requests).number)
        with pytest.raises(tollgate.RpcError):
            next(requests)

    server = tollgate.server(daemon.socket, daemon.token, reconnect=False)
    add(Given(chat=chat), server)
    server.start()
    channel = tollgate.channel(daemon.socket, daemon.token, reconnect=False)
    stub = SemanticsStub(channel)
    go_on = threading.Event()

    def requests() -> Iterator[Ask]:
        yield Ask(number=1)
        go_on.wait(30)

    call = stub.Chat(requests())
    assert next(call).number == 1
    threading.Timer(0.3, daemon.kill).start()
    for wait in (lambda: next(call), lambda: stub.Unary(Ask())):
        with pytest.raises(tollgate.RpcError) as caught:
            wait()
        assert caught.value.code() is StatusCode.UNAVAILABLE
    go_on.set()
    assert over.acquire(timeout=30)
    assert not server.wait_for_termination(timeout=30)
    server.stop().wait()
    channel.close()
