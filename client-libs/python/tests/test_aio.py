"""The same with asyncio: calls, handlers on the event loop, cancellation both ways."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, AsyncIterator, Awaitable, Callable, List, Tuple

import pytest
import tollgate
import tollgate.aio
from stubs.interop_tollgate import (
    Answer,
    Ask,
    AskView,
    SemanticsAsyncServicer,
    SemanticsAsyncStub,
    SemanticsStub,
    add_SemanticsServicer_to_server,
)
from tollgate import StatusCode
from tollgate._session import is_a_signals
from tollgate.aio import EOF

Context = tollgate.aio.ServicerContext


class Servicer(SemanticsAsyncServicer):
    """The calls that the tests make."""

    def __init__(self) -> None:
        self.over: List[str] = []
        self.cancelled = asyncio.Event()
        self.began = asyncio.Event()

    async def Unary(self, request: AskView, context: Context) -> Answer:
        context.add_done_callback(lambda context: self.over.append("done"))
        context.add_callback(lambda: self.over.append("callback"))
        self.began.set()
        number = request.number
        if number == 1:
            await context.abort(StatusCode.NOT_FOUND, "no such thing", (("tail", "x"),))
        if number == 2:
            await context.abort_with_status(tollgate.Status(StatusCode.ABORTED, "no", (), b"\x08\x0a"))
        if number == 3:
            raise KeyError("oh")
        if number == 4:
            context.set_code(StatusCode.DATA_LOSS)
        if number == 5:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert context.cancelled() and context.done() and not context.add_callback(print)
                self.cancelled.set()
                raise
        if number == 6:
            await context.send_initial_metadata((("head", "1"),))
            context.set_trailing_metadata(context.invocation_metadata())
        await asyncio.sleep(request.delay_ms / 1000)
        return Answer(number=number, payload=bytes(request.payload))

    async def Collect(self, request_iterator: AsyncIterator[AskView], context: Context) -> Answer:
        total = Answer()
        async for request in request_iterator:
            if request.code:
                await context.abort(StatusCode(request.code), "enough")
            total.number += request.number
        return total

    async def Spread(self, request: AskView, context: Context) -> AsyncIterator[Answer]:
        try:
            for number in range(request.responses):
                yield Answer(number=number, payload=bytes(request.response_bytes))
            if request.code:
                await context.abort(StatusCode(request.code), "after that")
        finally:
            self.cancelled.set()

    def Chat(self, request_iterator: AsyncIterator[AskView], context: Context) -> Any:
        return self.chat(context)

    async def chat(self, context: Context) -> None:
        """With read and write instead of iterators."""
        while True:
            request = await context.read()
            if request is EOF:
                return
            await context.write(Answer(number=request.number))


Test = Callable[[SemanticsAsyncStub, Servicer], Awaitable[None]]


def on_loop(test: Test) -> Any:
    """Runs a test between a channel on the first host and a server on the second."""

    @functools.wraps(test)
    def run(hosts: Any) -> None:
        async def main() -> None:
            servicer = Servicer()
            server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
            add_SemanticsServicer_to_server(servicer, server)
            await server.start()
            async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
                await asyncio.wait_for(test(SemanticsAsyncStub(channel), servicer), 50)
            await server.stop(grace=5)
            assert not await server.wait_for_termination()

        asyncio.run(main())

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@on_loop
async def test_unary_calls(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    reply = await stub.Unary(Ask(number=7, payload=b"x" * 5000), timeout=30)
    assert reply.number == 7 and reply.payload == b"x" * 5000
    del reply
    calls = [stub.Unary(Ask(number=100 + n, delay_ms=200)) for n in range(50)]
    began = time.monotonic()
    assert [reply.number for reply in await asyncio.gather(*calls)] == list(range(100, 150))
    assert time.monotonic() - began < 8, "they went on at once"
    while len(servicer.over) < 102:
        await asyncio.sleep(0.01)
    assert servicer.over.count("done") == servicer.over.count("callback") == 51
    del calls


@on_loop
async def test_metadata_and_status(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    metadata = (("user", "Ada"), ("trace-bin", b"\0\xff"))
    call = stub.Unary(Ask(number=6), metadata=metadata)
    assert (await call).number == 6
    assert await call.initial_metadata() == (("head", "1"),)
    assert await call.trailing_metadata() == metadata
    assert await call.code() is StatusCode.OK and await call.details() == "" and call.done() and not call.cancel()
    del call
    with pytest.raises(ValueError, match="must be text or bytes"):
        await stub.Unary(Ask(), metadata=(("user", 1),))  # type: ignore[arg-type]


@on_loop
async def test_errors(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    logging.disable()
    try:
        for n, code, text in (
            (1, StatusCode.NOT_FOUND, "no such thing"),
            (2, StatusCode.ABORTED, "no"),
            (3, StatusCode.UNKNOWN, "Exception calling application: 'oh'"),
            (4, StatusCode.DATA_LOSS, ""),
        ):
            call = stub.Unary(Ask(number=n))
            with pytest.raises(tollgate.RpcError) as caught:
                await call
            assert (caught.value.code(), caught.value.details()) == (code, text)
            assert (await call.code(), await call.details()) == (code, text)
            assert caught.value.trailing_metadata() == await call.trailing_metadata() == ((("tail", "x"),) if n == 1 else ())
            assert tollgate.status_details(caught.value) == (b"\x08\x0a" if n == 2 else b"")
    finally:
        logging.disable(logging.NOTSET)
    stream = stub.Spread(Ask(responses=3, code=9))
    assert [answer.number async for answer in take(stream, 3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(tollgate.RpcError, match="after that"):
            await stream.read()
    assert await stream.code() is StatusCode.FAILED_PRECONDITION
    for requests in ([Ask(code=11)] * 3000, several([Ask(code=11)] * 3000)):
        with pytest.raises(tollgate.RpcError, match="enough"):
            await stub.Collect(requests)


async def take(call: Any, count: int) -> AsyncIterator[Any]:
    """The next few responses."""
    for _ in range(count):
        yield await call.read()


async def several(asks: List[Ask]) -> AsyncIterator[Ask]:
    """Requests, with a pause now and then."""
    for number, ask in enumerate(asks):
        if number % 20 == 0:
            await asyncio.sleep(0)
        yield ask


@on_loop
async def test_streams(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    asks = [Ask(number=n) for n in range(300)]
    for requests in (asks, several(asks)):
        assert (await stub.Collect(requests)).number == sum(range(300))
    spread = stub.Spread(Ask(responses=300, response_bytes=1000))
    assert [answer.number async for answer in spread] == list(range(300))
    assert await spread.code() is StatusCode.OK and await spread.read() is EOF and not EOF
    assert [answer.number async for answer in stub.Chat(several(asks))] == list(range(300))
    chat = stub.Chat()
    for n in range(300):
        await chat.write(Ask(number=n))
        answer = await chat.read()
        assert not isinstance(answer, tollgate.aio._EndOfStream) and answer.number == n
    await chat.done_writing()
    assert await chat.read() is EOF and await chat.initial_metadata() == await chat.trailing_metadata() == ()
    del answer


@on_loop
async def test_deadlines(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    # Long enough for them to reach their handlers.
    chat = stub.Chat(timeout=2)
    for call in (stub.Unary(Ask(number=5), timeout=2), chat.read()):
        with pytest.raises(tollgate.RpcError) as caught:
            await call
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(servicer.cancelled.wait(), 30)
    assert await chat.code() is StatusCode.DEADLINE_EXCEEDED


def test_deadlines_pass_to_the_calls_that_a_handler_makes(hosts: Any) -> None:
    class Behind(SemanticsAsyncServicer):
        async def Unary(self, request: AskView, context: Context) -> Answer:
            return Answer(number=round((context.time_remaining() or 0) * 1000))

        async def Spread(self, request: AskView, context: Context) -> AsyncIterator[Answer]:
            yield Answer(number=round((context.time_remaining() or 0) * 1000))

    class Front(SemanticsAsyncServicer):
        def __init__(self, further: SemanticsAsyncStub) -> None:
            self.further = further

        async def Unary(self, request: AskView, context: Context) -> Answer:
            # Tasks that the handler starts inherit it, too.
            one, other = await asyncio.gather(self.further.Unary(Ask()), self.further.Unary(Ask(), timeout=1000))
            return Answer(number=max(one.number, other.number))

        async def Spread(self, request: AskView, context: Context) -> AsyncIterator[Answer]:
            async for answer in self.further.Spread(Ask()):
                yield Answer(number=answer.number)

    async def main() -> None:
        behind = tollgate.aio.server(hosts[0].socket, hosts[0].token)
        add_SemanticsServicer_to_server(Behind(), behind)
        await behind.start()
        front = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        inner = tollgate.aio.channel(hosts[0].socket, hosts[0].token)
        add_SemanticsServicer_to_server(Front(SemanticsAsyncStub(inner)), front)
        await front.start()
        async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
            stub = SemanticsAsyncStub(channel)
            for seconds in (20, 200):
                assert 0 < (await stub.Unary(Ask(), timeout=seconds)).number <= seconds * 1000
                async for answer in stub.Spread(Ask(), timeout=seconds):
                    assert 0 < answer.number <= seconds * 1000
                del answer
            assert (await stub.Unary(Ask())).number > 200_000
        await front.stop()
        await inner.close()
        await behind.stop()

    asyncio.run(main())


@on_loop
async def test_callers_give_up_and_handlers_are_cancelled(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    async def given_up(end: Callable[[Any], None]) -> None:
        servicer.began.clear()
        servicer.cancelled.clear()
        call = stub.Unary(Ask(number=5))
        await asyncio.wait_for(servicer.began.wait(), 30)
        end(call)
        await asyncio.wait_for(servicer.cancelled.wait(), 30)

    def cancel(call: Any) -> None:
        assert call.cancel() and not call.cancel()

    await given_up(cancel)

    async def wait_for() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stub.Unary(Ask(number=5)), 2)

    servicer.cancelled.clear()
    await wait_for()
    await asyncio.wait_for(servicer.cancelled.wait(), 30)
    # A stream, with and without a waiting reader.
    servicer.cancelled.clear()
    stream = stub.Spread(Ask(responses=2**31, response_bytes=1000))
    assert (await stream.initial_metadata()) == ()
    assert stream.cancel() and not stream.cancel()
    with pytest.raises(tollgate.RpcError) as caught:
        await stream.read()
    assert caught.value.code() is StatusCode.CANCELLED
    await asyncio.wait_for(servicer.cancelled.wait(), 30)
    chat = stub.Chat()
    reading = asyncio.ensure_future(chat.read())
    await asyncio.sleep(0.1)
    assert chat.cancel()
    with pytest.raises(tollgate.RpcError) as caught:
        await reading
    assert caught.value.code() is StatusCode.CANCELLED
    with pytest.raises(tollgate.RpcError):
        await chat.write(Ask())
    code = await stub.Unary(Ask(number=7)).code()
    assert code is StatusCode.OK


@on_loop
async def test_requests_that_end_with_an_exception_end_the_call(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    async def broken() -> AsyncIterator[Ask]:
        yield Ask(number=1)
        raise KeyError("oh")

    logging.disable()
    try:
        with pytest.raises(tollgate.RpcError, match="Exception iterating requests: 'oh'"):
            await stub.Collect(broken())
        chat = stub.Chat(broken())
        with pytest.raises(tollgate.RpcError, match="Exception iterating requests: 'oh'"):
            while await chat.read() is not EOF:
                pass
    finally:
        logging.disable(logging.NOTSET)


@on_loop
async def test_a_slow_reader_stops_its_writer_and_nobody_else(stub: SemanticsAsyncStub, servicer: Servicer) -> None:
    made = 0

    async def endless() -> AsyncIterator[Ask]:
        nonlocal made
        while True:
            made += 1
            yield Ask(number=made)

    async def settled() -> int:
        before = -1
        while made != before:
            before = made
            await asyncio.sleep(0.3)
            # Every task involved has had its turn.
            for _ in range(50):
                await stub.Unary(Ask(number=9))
        return before

    call = stub.Chat(endless())
    stuck = await settled()
    assert 0 < stuck < 2000
    assert (await stub.Unary(Ask(number=9))).number == 9
    assert await settled() == stuck
    async for answer in take(call, 3000):
        assert answer.number
    assert made > stuck
    del answer
    call.cancel()


def test_a_server_that_stops_finishes_what_it_has_begun(hosts: Any) -> None:
    async def main() -> None:
        for grace, delay_ms, outcome in ((30, 300, "5"), (None, 60_000, "CANCELLED")):
            servicer = Servicer()
            server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
            add_SemanticsServicer_to_server(servicer, server)
            assert not await server.wait_for_termination(), "it hasn't started"
            await server.start()
            assert await server.wait_for_termination(timeout=0.05)
            async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
                call = SemanticsAsyncStub(channel).Unary(Ask(number=50, delay_ms=delay_ms))
                await asyncio.wait_for(servicer.began.wait(), 30)
                await server.stop(grace)
                try:
                    answered = str((await call).number)
                except tollgate.RpcError as error:
                    answered = error.code().name
                assert answered.startswith(outcome)
                del call

    asyncio.run(main())


def test_other_servers_take_over_from_one_that_stops(hosts: Any) -> None:
    async def main() -> None:
        async def start() -> tollgate.aio.Server:
            server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
            add_SemanticsServicer_to_server(Servicer(), server)
            await server.start()
            return server

        answered, over = 0, False

        async def call(stub: SemanticsAsyncStub) -> None:
            nonlocal answered
            while not over:
                assert (await stub.Unary(Ask(number=150))).number == 150
                answered += 1

        server = await start()
        async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
            stub = SemanticsAsyncStub(channel)
            callers = [asyncio.ensure_future(call(stub)) for _ in range(6)]
            for _ in range(5):
                successor, before, until = await start(), answered, time.monotonic() + 30
                while answered < before + 50 and not any(caller.done() for caller in callers):
                    assert time.monotonic() < until, "calls go on"
                    await asyncio.sleep(0.001)
                await server.stop(grace=30)
                server = successor
            over = True
            await asyncio.gather(*callers)
        await server.stop()

    asyncio.run(main())


def test_a_channel_belongs_to_one_loop(hosts: Any) -> None:
    channel = tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen)
    stub = SemanticsAsyncStub(channel)

    async def call() -> None:
        with pytest.raises(tollgate.RpcError):
            await stub.Unary(Ask(), timeout=5)

    asyncio.run(call())

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="can be used only on the event loop of its first use"):
            await stub.Unary(Ask())

    asyncio.run(elsewhere())
    channel._loop.close("channel")


def test_a_daemon_that_dies_ends_everything(daemon: Any) -> None:
    async def main() -> None:
        server = tollgate.aio.server(daemon.socket, daemon.token, reconnect=False)
        servicer = Servicer()
        add_SemanticsServicer_to_server(servicer, server)
        await server.start()
        channel = tollgate.aio.channel(daemon.socket, daemon.token, reconnect=False)
        stub = SemanticsAsyncStub(channel)
        waiting = asyncio.ensure_future(stub.Unary(Ask(number=5)))
        chat = stub.Chat()
        await chat.write(Ask(number=1))
        await chat.read()
        await asyncio.wait_for(servicer.began.wait(), 30)
        daemon.kill()
        for call in (waiting, chat.read()):
            with pytest.raises(tollgate.RpcError) as caught:
                await call
            assert caught.value.code() is StatusCode.UNAVAILABLE
        await asyncio.wait_for(servicer.cancelled.wait(), 30)
        assert not await server.wait_for_termination(timeout=30)
        await server.stop()
        await channel.close()

    asyncio.run(main())


def test_a_daemon_that_comes_back_is_found_again(daemon: Any) -> None:
    async def main() -> None:
        server = tollgate.aio.server(daemon.socket, daemon.token)
        add_SemanticsServicer_to_server(Servicer(), server)
        await server.start()
        async with tollgate.aio.channel(daemon.socket, daemon.token) as channel:
            stub = SemanticsAsyncStub(channel)
            for number in (101, 102, 103):
                until = time.monotonic() + 30
                while True:
                    try:
                        assert (await stub.Unary(Ask(number=number))).number == number
                        break
                    except tollgate.RpcError as error:
                        assert error.code() is StatusCode.UNAVAILABLE and time.monotonic() < until, error
                        await asyncio.sleep(0.01)
                if number < 103:
                    daemon.kill()
                    await asyncio.get_running_loop().run_in_executor(None, daemon.start)
        await server.stop()

    asyncio.run(main())


def test_threads_call_what_a_loop_serves(hosts: Any) -> None:
    async def main() -> None:
        server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        add_SemanticsServicer_to_server(Servicer(), server)
        await server.start()

        def calls() -> None:
            with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
                stub = SemanticsStub(channel)
                for n in range(100, 200):
                    assert stub.Unary(Ask(number=n)).number == n
                assert stub.Collect(Ask(number=n) for n in range(10)).number == 45

        await asyncio.get_running_loop().run_in_executor(None, calls)
        await server.stop()

    asyncio.run(main())


class Unspeakable(Exception):
    """Its text raises one more exception."""

    def __str__(self) -> str:
        raise GeneratorExit("from __str__")


# Exceptions of handlers, and the status of their calls. asyncio's loop has its own SIGINT handler
# since Python 3.11; before, a KeyboardInterrupt looks like Ctrl-C.
ANYTHING: List[Tuple[Callable[[], BaseException], StatusCode, str]] = [
    (lambda: SystemExit(3), StatusCode.UNKNOWN, "SystemExit: 3"),
    (lambda: GeneratorExit("enough"), StatusCode.UNKNOWN, "GeneratorExit: enough"),
    (lambda: BaseException("odd"), StatusCode.UNKNOWN, "BaseException: odd"),
    (Unspeakable, StatusCode.UNKNOWN, "Unspeakable"),
    (asyncio.CancelledError, StatusCode.CANCELLED, "the handler was cancelled"),
]
if sys.version_info >= (3, 11):
    ANYTHING.append((KeyboardInterrupt, StatusCode.UNKNOWN, "KeyboardInterrupt"))


class Raising(SemanticsAsyncServicer):
    """Each method raises the exception that the request's number names."""

    async def Unary(self, request: AskView, context: Context) -> Answer:
        number = request.number
        if number < len(ANYTHING):
            make = ANYTHING[number][0]

            def leave(context: Context) -> None:
                raise make()

            context.add_done_callback(leave)
            await asyncio.sleep(0)
            raise make()
        return Answer(number=number)

    async def Collect(self, request_iterator: AsyncIterator[AskView], context: Context) -> Answer:
        return [await self.Unary(request, context) async for request in request_iterator][0]

    async def Spread(self, request: AskView, context: Context) -> AsyncIterator[Answer]:
        yield Answer()
        yield await self.Unary(request, context)

    async def Chat(self, request_iterator: AsyncIterator[AskView], context: Context) -> AsyncIterator[Answer]:
        async for request in request_iterator:
            yield Answer()
            yield await self.Unary(request, context)


def test_whatever_a_handler_raises_the_loop_goes_on(hosts: Any) -> None:
    async def main() -> None:
        server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        add_SemanticsServicer_to_server(Raising(), server)
        await server.start()
        async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
            stub = SemanticsAsyncStub(channel)

            async def read(call: Any) -> None:
                async for _ in call:
                    pass

            for number, (_, code, text) in enumerate(ANYTHING):
                for call in (
                    stub.Unary(Ask(number=number), timeout=30),
                    stub.Collect([Ask(number=number)], timeout=30),
                    stub.Spread(Ask(number=number), timeout=30),
                    stub.Chat([Ask(number=number)], timeout=30),
                ):
                    with pytest.raises(tollgate.RpcError) as caught:
                        await (read(call) if hasattr(call, "__aiter__") else call)
                    assert caught.value.code() is code
                    assert caught.value.details() in (text, f"Exception calling application: {text}")
            reply = await stub.Unary(Ask(number=100), timeout=30)
            assert reply.number == 100
            del reply, call

            async def broken(error: BaseException) -> AsyncIterator[Ask]:
                yield Ask(number=100)
                raise error

            for make, code, text in ANYTHING:
                with pytest.raises(tollgate.RpcError) as caught:
                    await read(stub.Chat(broken(make()), timeout=30))
                assert caught.value.code() is code
                if code is StatusCode.UNKNOWN:
                    assert caught.value.details() == f"Exception iterating requests: {text}"
        await server.stop(grace=5)

    logging.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), 100))
    finally:
        logging.disable(logging.NOTSET)


def test_a_signal_that_ends_the_program_does_so_from_within_a_handler(hosts: Any) -> None:
    class Busy(SemanticsAsyncServicer):
        async def Unary(self, request: AskView, context: Context) -> Answer:
            os.kill(os.getpid(), signal.SIGUSR1)
            while True:
                time.sleep(0.01)

    def leave(number: int, frame: Any) -> None:
        sys.exit(5)

    caught: List[tollgate.RpcError] = []

    def ask() -> None:
        with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
            try:
                SemanticsStub(channel).Unary(Ask(), timeout=30)
            except tollgate.RpcError as error:
                caught.append(error)

    async def main() -> None:
        server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        add_SemanticsServicer_to_server(Busy(), server)
        await server.start()
        thread.start()
        try:
            await asyncio.sleep(60)
        finally:
            await server.stop()

    thread = threading.Thread(target=ask)
    before = signal.signal(signal.SIGUSR1, leave)
    logging.disable()
    try:
        with pytest.raises(SystemExit) as exit:
            asyncio.run(main())
        assert exit.value.code == 5
    finally:
        signal.signal(signal.SIGUSR1, before)
        logging.disable(logging.NOTSET)
    thread.join(30)
    assert [error.details() for error in caught] == ["Exception calling application: SystemExit: 5"]


def test_signals_are_told_from_what_a_handler_raises() -> None:
    def leave(number: int, frame: Any) -> None:
        raise BaseException("by a signal")

    def told(error: BaseException) -> bool:
        try:
            raise error
        except BaseException as raised:
            return is_a_signals(raised)

    def interrupted() -> bool:
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(30)
        except BaseException as raised:
            return is_a_signals(raised)
        return False

    before = [signal.signal(signal.SIGUSR1, leave), signal.signal(signal.SIGINT, signal.default_int_handler)]
    try:
        assert interrupted() and told(KeyboardInterrupt())
        assert not told(SystemExit()) and not told(ValueError())
        signal.signal(signal.SIGUSR1, functools.partial(leave))
        signal.signal(signal.SIGINT, leave)
        assert interrupted() and not told(KeyboardInterrupt())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        elsewhere: List[bool] = []
        thread = threading.Thread(target=lambda: elsewhere.append(told(KeyboardInterrupt())))
        thread.start()
        thread.join()
        assert elsewhere == [False]
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGINT, before[1])
