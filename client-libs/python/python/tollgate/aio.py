"""The same API for asyncio: channels, and servers whose handlers run on the event loop.

A channel or server belongs to the loop of its first use. The loop watches a descriptor, which
wakes it when something has come; there is no polling.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from types import TracebackType
from typing import (
    Any,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Generator,
    Generic,
    Iterable,
    List,
    NoReturn,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from tollgate import _core
from tollgate._server import Aborted, ContextBase
from tollgate._session import (
    DEFAULT_SERVER_SPIN,
    DEFAULT_RETRIES,
    DEFAULT_SPIN,
    LAST_ANSWERS,
    LAST_ANSWERS_CHECK,
    Handles,
    close_session,
    complain,
    handling,
    inherit,
    inherited,
    is_a_signals,
    open_session,
    outgoing,
    said_by,
)
from tollgate._status import Metadata, MetadataLike, RpcError, Status, StatusCode

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)
# Valid streams of requests.
Requests = Union[AsyncIterable[Request], Iterable[Request]]


class _EndOfStream:
    """The result of `read` after the last message."""

    def __repr__(self) -> str:
        return "EOF"

    def __bool__(self) -> bool:
        return False


EOF = _EndOfStream()


class _Loop:
    """A session's event loop."""

    def __init__(self, session: _core.Session) -> None:
        self.session = session
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def attach(self) -> asyncio.AbstractEventLoop:
        """The loop; the first call sets it. RuntimeError on another loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self.session.attach(loop.create_future)
            loop.add_reader(self.session.fileno(), self.session.run)
        elif self._loop is not loop:
            raise RuntimeError("a channel or server of tollgate.aio can be used only on the event loop of its first use")
        return loop

    def close(self, what: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            # Reports calls that have ended by now.
            self._loop.remove_reader(self.session.fileno())
        try:
            close_session(self.session, what)
        finally:
            if self._loop is not None and not self._loop.is_closed():
                self.session.run()


async def _done(op: Any) -> Any:
    """The result of an operation of the session. If the waiting task is cancelled, so is the
    operation."""
    if not isinstance(op, _core.Op):
        return op
    try:
        return await op.future
    except asyncio.CancelledError:
        op.cancel()
        raise


class Channel:
    """A connection to this host's daemon, with the target of its calls. Made by
    `tollgate.aio.channel`; opening it needs no loop and blocks for a moment."""

    def __init__(
        self,
        socket: Union[str, os.PathLike[str]],
        token: str = "",
        target: str = "",
        *,
        app: str = "",
        label: str = "",
        send_heap_bytes: int = 0,
        receive_heap_bytes: int = 0,
        spin: float = DEFAULT_SPIN,
        reconnect: bool = True,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        self._session = open_session(
            socket,
            token,
            app=app,
            label=label,
            send_heap_bytes=send_heap_bytes,
            receive_heap_bytes=receive_heap_bytes,
            spin=spin,
            reconnect=reconnect,
            retries=retries,
            on_loop=True,
        )
        self._target = target
        self._loop = _Loop(self._session)
        self._handles = Handles()
        self._binding: Dict[str, asyncio.Lock] = {}

    @property
    def tenant(self) -> str:
        """The tenant that the token belongs to."""
        return self._session.tenant

    @property
    def max_message_bytes(self) -> int:
        """The longest message that may be sent."""
        return self._session.max_message_bytes

    def buffer(self, size: int) -> _core.SendBuffer:
        """Memory in the send heap for a large value: fill `.view`, then put the result of
        `.freeze()` into a message."""
        return self._session.buffer(size)

    def unary_unary(self, service: Any, method: Any) -> UnaryUnary[Any, Any]:
        """The caller of a method; for stubs."""
        return UnaryUnary(self, service, method)

    def unary_stream(self, service: Any, method: Any) -> UnaryStream[Any, Any]:
        """Like `unary_unary`, for a method that answers with a stream."""
        return UnaryStream(self, service, method)

    def stream_unary(self, service: Any, method: Any) -> StreamUnary[Any, Any]:
        """Like `unary_unary`, for a method that takes a stream."""
        return StreamUnary(self, service, method)

    def stream_stream(self, service: Any, method: Any) -> StreamStream[Any, Any]:
        """Like `unary_unary`, for a method with streams both ways."""
        return StreamStream(self, service, method)

    async def close(self) -> None:
        """Ends the connection; calls in flight end with CANCELLED. Received messages stay readable."""
        # Lets the loop drop the task that it ran last, with its result.
        await asyncio.sleep(0)
        self._loop.close("channel")

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _handle(self, service: Any, method: Any) -> int:
        lock = self._binding.setdefault(service.name, asyncio.Lock())
        async with lock:
            handle = self._handles.find(service, method)
            if handle is None:
                bound = await _done(self._session.bind(service.descriptor_set, service.name, self._target))
                self._handles.learn(service, bound)
                handle = self._handles.find(service, method)
        assert handle is not None, "it was learned above"
        return handle


class _Callable(Generic[Request, Response]):
    """One method of one service, through one channel."""

    def __init__(self, channel: Channel, service: Any, method: Any) -> None:
        self._channel = channel
        self._session = channel._session
        self._service = service
        self._method = method
        self._handle: Optional[int] = None
        self._request: _core.Tables = method.request()._TABLES
        self._reply: _core.Tables = method.reply()._TABLES

    async def _bound(self) -> int:
        if self._handle is None:
            self._handle = await self._channel._handle(self._service, self._method)
        return self._handle


class _Call:
    """The status and metadata of a call."""

    def __init__(self) -> None:
        self._status: Optional[Tuple[StatusCode, str]] = None
        self._trailing: Metadata = ()

    def done(self) -> bool:
        """Whether the call's end has been seen."""
        return self._status is not None

    def _end(self, code: StatusCode, details: str, trailing: Metadata) -> None:
        if self._status is None:
            self._status, self._trailing = (code, details), trailing


class UnaryCall(_Call, Generic[Response]):
    """A call with one response: await it."""

    def __init__(self, begin: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._initial: Metadata = ()
        self._task: asyncio.Future[Any] = loop.create_task(self._run(begin))

    async def _run(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        try:
            response, self._initial, trailing = await begin()
        except RpcError as error:
            self._end(error.code(), error.details(), error.trailing_metadata())
            raise
        except asyncio.CancelledError:
            self._end(StatusCode.CANCELLED, "the caller cancelled the call", ())
            raise
        self._end(StatusCode.OK, "", trailing)
        return response

    def __await__(self) -> Generator[Any, None, Response]:
        return self._task.__await__()

    def cancel(self) -> bool:
        """Ends the call with CANCELLED, unless it has ended. An awaiting task gets a
        CancelledError."""
        if self._status is not None:
            return False
        self._end(StatusCode.CANCELLED, "the caller cancelled the call", ())
        return self._task.cancel()

    async def _ended(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            # Marks the exception as retrieved.
            self._task.exception()

    async def code(self) -> StatusCode:
        """Waits for the end. Returns the call's status code."""
        await self._ended()
        return self._status[0] if self._status else StatusCode.UNKNOWN

    async def details(self) -> str:
        """Waits for the end. Returns the message of the status."""
        await self._ended()
        return self._status[1] if self._status else ""

    async def initial_metadata(self) -> Metadata:
        """Waits for the response. Returns its metadata."""
        await self._ended()
        return self._initial

    async def trailing_metadata(self) -> Metadata:
        """Waits for the end. Returns the trailers."""
        await self._ended()
        return self._trailing


class StreamCall(_Call, Generic[Request, Response]):
    """A call with streams: iterate over it, or use `read`. If it was begun without requests, use
    `write` and `done_writing`."""

    def __init__(
        self,
        callable: _Callable[Any, Any],
        first: Any,
        is_last: bool,
        requests: Optional[Requests[Any]],
        timeout: Optional[float],
        metadata: Optional[MetadataLike],
    ) -> None:
        super().__init__()
        self._callable = callable
        self._requests = requests
        self._error: Optional[RpcError] = None
        self._feeding: Optional[asyncio.Task[None]] = None
        self._initial: Optional[Metadata] = None
        self._halves: Optional[Tuple[_core.Sender, _core.Receiver]] = None
        loop = callable._channel._loop.attach()
        self._opening = loop.create_task(self._open(first, is_last, timeout, metadata))

    async def _open(self, first: Any, is_last: bool, timeout: Optional[float], metadata: Optional[MetadataLike]) -> None:
        callable = self._callable
        try:
            handle = await callable._bound()
            self._halves = await _done(
                callable._session.open_stream(
                    handle, callable._request, callable._reply, first, is_last, inherited(timeout), outgoing(metadata)
                )
            )
        except RpcError as error:
            self._fail(error)
            return
        if self._requests is not None:
            self._feeding = asyncio.get_running_loop().create_task(self._feed(self._requests))

    async def _open_halves(self) -> Tuple[_core.Sender, _core.Receiver]:
        if self._halves is None:
            await asyncio.shield(self._opening)
        if self._halves is None:
            assert self._error is not None, "opening ends with halves or an error"
            raise self._error
        return self._halves

    async def _feed(self, requests: Requests[Any]) -> None:
        sender, _ = await self._open_halves()
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await _done(sender.send(request))
            else:
                for request in requests:
                    await _done(sender.send(request))
            sender.finish()
        except RpcError as error:
            # The call is over, which the responses report; or a request can't be sent.
            if error.code() is not StatusCode.CANCELLED:
                self._abandon(error)
            sender.cancel()
        except asyncio.CancelledError:
            # Cancelled by the end of the call, which is recorded by now, or by the program.
            self._abandon(RpcError(StatusCode.CANCELLED, "the requests of the call were cancelled"))
            raise
        except BaseException as error:
            # Catches SystemExit and the like, too; they would end the event loop.
            if self._abandon(RpcError(StatusCode.UNKNOWN, f"Exception iterating requests: {said_by(error)}")):
                complain(error, "the requests of a call ended with an exception")
            if is_a_signals(error):
                raise

    def _fail(self, error: RpcError) -> None:
        if self._error is None:
            self._error = error
        self._end(error.code(), error.details(), error.trailing_metadata())

    def _abandon(self, error: RpcError) -> bool:
        if self._status is not None:
            return False
        self._fail(error)
        if self._halves is not None:
            sender, receiver = self._halves
            # In this order, a waiting reader gets the reason for the missing response.
            receiver.cancel(int(error.code()), error.details())
            sender.cancel()
        else:
            self._opening.cancel()
        return True

    def cancel(self) -> bool:
        """Ends the call with CANCELLED, unless it has ended."""
        if self._feeding is not None:
            self._feeding.cancel()
        return self._abandon(RpcError(StatusCode.CANCELLED, "the caller cancelled the call"))

    async def read(self) -> Union[Response, _EndOfStream]:
        """Returns the next response, or `EOF` after the last. RpcError if the call failed."""
        if self._error is not None:
            raise self._error
        if self._status is not None:
            return EOF
        try:
            _, receiver = await self._open_halves()
            response = await _done(receiver.next())
        except RpcError as error:
            await self.initial_metadata()
            self._fail(error)
            self._stop_feeding()
            assert self._error is not None, "the error was set above, or earlier by the canceller"
            raise self._error
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            self.cancel()
            raise
        if response is None:
            await self.initial_metadata()
            self._end(StatusCode.OK, "", receiver.trailers())
            self._stop_feeding()
            return EOF
        return response  # type: ignore[no-any-return]

    def _stop_feeding(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()

    async def write(self, request: Request) -> None:
        """Sends a request, once its reader has room for it."""
        sender, _ = await self._open_halves()
        await _done(sender.send(request))

    async def done_writing(self) -> None:
        """Ends the requests."""
        sender, _ = await self._open_halves()
        sender.finish()

    def __aiter__(self) -> AsyncIterator[Response]:
        return self

    async def __anext__(self) -> Response:
        response = await self.read()
        if isinstance(response, _EndOfStream):
            raise StopAsyncIteration
        return response

    async def initial_metadata(self) -> Metadata:
        """The responses' metadata; waits until metadata, a first response or the end has come."""
        if self._initial is None:
            try:
                _, receiver = await self._open_halves()
                self._initial = await _done(receiver.metadata())
            except RpcError as error:
                self._fail(error)
        return self._initial or ()

    async def _seen(self) -> None:
        """Waits for the end, which is known once the responses are read."""
        while self._status is None:
            try:
                await self.read()
            except RpcError:
                pass

    async def code(self) -> StatusCode:
        """Reads the remaining responses. Returns the call's status code."""
        await self._seen()
        return self._status[0] if self._status else StatusCode.UNKNOWN

    async def details(self) -> str:
        """Reads the remaining responses. Returns the message of the status."""
        await self._seen()
        return self._status[1] if self._status else ""

    async def trailing_metadata(self) -> Metadata:
        """Reads the remaining responses. Returns the trailers."""
        await self._seen()
        return self._trailing


class UnaryUnary(_Callable[Request, Response]):
    """Calls a method with one request and one response."""

    def __call__(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> UnaryCall[Response]:
        """Returns an awaitable call. RpcError if it fails or takes longer than `timeout` seconds."""

        async def begin() -> Any:
            handle = self._handle if self._handle is not None else await self._bound()
            op = self._session.call(handle, self._request, self._reply, request, inherited(timeout), outgoing(metadata), True)
            return await _done(op)

        return UnaryCall(begin, self._channel._loop.attach())


class UnaryStream(_Callable[Request, Response]):
    """Calls a method that answers with a stream."""

    def __call__(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> StreamCall[Request, Response]:
        """The responses as they come."""
        return StreamCall(self, request, True, None, timeout, metadata)


class StreamUnary(_Callable[Request, Response]):
    """Calls a method that takes a stream."""

    def __call__(
        self,
        request_iterator: Requests[Request],
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> UnaryCall[Response]:
        """Returns an awaitable call, like `UnaryUnary`."""

        async def begin() -> Any:
            call: StreamCall[Request, Response]
            call = StreamCall(self, None, False, request_iterator, timeout, metadata)
            try:
                response = await call.read()
                if response is EOF:
                    raise RpcError(StatusCode.INTERNAL, "the server ended the call without a reply")
                if await call.read() is not EOF:
                    raise RpcError(StatusCode.INTERNAL, "the server answered with several messages instead of one")
                return response, await call.initial_metadata(), await call.trailing_metadata()
            finally:
                call.cancel()

        return UnaryCall(begin, self._channel._loop.attach())


class StreamStream(_Callable[Request, Response]):
    """Calls a method with streams both ways."""

    def __call__(
        self,
        request_iterator: Optional[Requests[Request]] = None,
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> StreamCall[Request, Response]:
        """Returns the responses as they come. Without an iterator of requests, use `write`."""
        return StreamCall(self, None, False, request_iterator, timeout, metadata)


class ServicerContext(ContextBase):
    """The handler's view of its call: metadata, deadline and status."""

    def __init__(self, incoming: _core.Incoming) -> None:
        super().__init__(incoming)
        self._callbacks: List[Callable[[ServicerContext], None]] = []

    async def send_initial_metadata(self, initial_metadata: MetadataLike) -> None:
        """Sends the responses' metadata now, before the first of them."""
        await _done(self._incoming.send_metadata(initial_metadata))

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: MetadataLike = ()) -> NoReturn:
        """Ends the call with an error, and the handler with an exception."""
        self._set_status(code, details)
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        raise Aborted(f"{code.name}: {details}")

    async def abort_with_status(self, status: Status) -> NoReturn:
        """Like `abort`, with details and trailers."""
        self._set_whole(status)
        raise Aborted(f"{status.code.name}: {status.details}")

    async def read(self) -> Any:
        """Returns the next request of a stream, or `EOF` after the last."""
        try:
            request = await _done(self._incoming.next())
        except RpcError as error:
            raise self._tell(error)
        return EOF if request is None else request

    async def write(self, message: Any) -> None:
        """Sends a response of a stream, once its reader has room for it."""
        try:
            await _done(self._incoming.respond(message, self._take_initial()))
        except RpcError as error:
            raise self._tell(error)

    async def _reply(self, message: Any) -> None:
        try:
            await _done(self._incoming.reply(message, self._take_initial(), self._trailing))
        except RpcError as error:
            raise self._tell(error)

    def is_active(self) -> bool:
        """Whether the caller still waits for the answer."""
        return self._incoming.is_active()

    def cancelled(self) -> bool:
        """Whether the caller has cancelled the call."""
        return not self.is_active()

    def done(self) -> bool:
        """Whether the call is over."""
        return not self.is_active()

    def add_done_callback(self, callback: Callable[[ServicerContext], None]) -> None:
        """Registers a callback for the end of the call."""
        self._callbacks.append(callback)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """The same under its name in the API for threads. False if the call is over already."""
        if not self.is_active():
            return False
        self._callbacks.append(lambda _: callback())
        return True

    def _over(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                complain(error, "a callback of a call's end raised an exception")
                if is_a_signals(error):
                    raise


class _Incoming:
    """The requests of a call as they come; RpcError if the caller cancels."""

    def __init__(self, context: ServicerContext) -> None:
        self._context = context

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await self._context.read()
        if request is EOF:
            raise StopAsyncIteration
        return request


class Server:
    """Serves services on the event loop, each call in its own task. Made by `tollgate.aio.server`."""

    def __init__(
        self,
        socket: Union[str, os.PathLike[str]],
        token: str = "",
        *,
        app: str = "",
        label: str = "",
        send_heap_bytes: int = 0,
        receive_heap_bytes: int = 0,
        spin: float = DEFAULT_SERVER_SPIN,
        reconnect: bool = True,
    ) -> None:
        self._session = open_session(
            socket,
            token,
            app=app,
            label=label,
            send_heap_bytes=send_heap_bytes,
            receive_heap_bytes=receive_heap_bytes,
            spin=spin,
            reconnect=reconnect,
            on_loop=True,
        )
        self._acceptor = self._session.acceptor()
        self._loop = _Loop(self._session)
        self._services: List[Tuple[Any, Tuple[Any, ...]]] = []
        self._tasks: Dict[int, asyncio.Task[None]] = {}
        self._accepting: Optional[asyncio.Task[None]] = None
        self._stopping = False
        self._health: List[_core.Health] = []
        # Set while calls that still come are refused.
        self._refusing = False
        self._stopped: Optional[asyncio.Event] = None

    def add_service(self, service: Any, handlers: Tuple[Any, ...]) -> None:
        """Registers the handlers of a service's methods; for generated code."""
        self._services.append((service, handlers))

    def _add_health(self, health: _core.Health) -> None:
        self._health.append(health)

    async def start(self) -> None:
        """Binds the services and starts handling calls."""
        loop = self._loop.attach()
        self._stopped = asyncio.Event()
        self._accepting = loop.create_task(self._accept())
        for service, _ in self._services:
            classes = [(method.request(), method.reply()) for method in service.methods]
            await _done(self._acceptor.bind(service.descriptor_set, service.name, classes))
        for health in self._health:
            await _done(self._session.serve_health(health))

    async def stop(self, grace: Optional[float] = None) -> None:
        """Stops serving. For `grace` seconds, other servers get new calls, and calls in flight are
        handled; calls that are unanswered after that end. Without `grace` they end now."""
        if self._stopping:
            await self.wait_for_termination()
            return
        self._stopping = True
        for health in self._health:
            health.shut_down()
        end = time.monotonic() + (grace or 0)
        if grace and self._accepting is not None:
            await self._drain(grace)
        self._refusing = True
        tasks = list(self._tasks.values())
        if tasks and grace:
            await asyncio.wait(tasks, timeout=max(0, end - time.monotonic()))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del tasks
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        until = time.monotonic() + LAST_ANSWERS
        while self._session.has_unsent() and time.monotonic() < until:
            await asyncio.sleep(LAST_ANSWERS_CHECK)
        self._acceptor.close()
        self._loop.close("server")
        if self._stopped is not None:
            self._stopped.set()

    async def _drain(self, grace: float) -> None:
        try:
            await asyncio.wait_for(_done(self._session.drain()), grace)
        except (RpcError, asyncio.TimeoutError):
            # The grace is over; or the daemon is gone, or its version can't drain: calls that still
            # come are refused here.
            pass

    async def wait_for_termination(self, timeout: Optional[float] = None) -> bool:
        """Waits until the server has stopped or its daemon has gone. True if `timeout` seconds
        passed first."""
        if self._stopped is None:
            return False
        try:
            await asyncio.wait_for(self._stopped.wait(), timeout)
        except asyncio.TimeoutError:
            return True
        return False

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            news = await _done(self._acceptor.news())
            if news is None:
                break
            incoming, cancelled = news
            for call in incoming:
                self._tasks[call.id] = loop.create_task(self._serve(call))
            for number in cancelled:
                task = self._tasks.get(number)
                if task is not None:
                    task.cancel()
            # Views are returned before the wait for the next calls.
            del news, incoming, cancelled
        for task in list(self._tasks.values()):
            task.cancel()
        if self._stopped is not None:
            self._stopped.set()

    async def _serve(self, incoming: _core.Incoming) -> None:
        context = ServicerContext(incoming)
        try:
            if self._refusing:
                context._fail(StatusCode.UNAVAILABLE, "the server is stopping")
            else:
                with handling(incoming):
                    await self._handle(incoming, context)
        except asyncio.CancelledError:
            # Cancelled by the caller, which is gone, or by the end of the server, which the caller
            # learns.
            context._fail(StatusCode.CANCELLED, "the handler was cancelled")
        except BaseException as error:
            if is_a_signals(error):
                raise
            complain(error, "a call can't be answered")
        finally:
            self._tasks.pop(incoming.id, None)
            context._over()
            # Exceptions keep the frames that they passed, with received messages.
            context._told = None

    async def _handle(self, incoming: _core.Incoming, context: ServicerContext) -> None:
        service, handlers = self._services[incoming.service]
        method, handler = service.methods[incoming.method], handlers[incoming.method]
        inherit(incoming.time_remaining())
        try:
            argument = _Incoming(context) if method.client_streaming else await _done(incoming.next())
            if argument is None:
                context._fail(StatusCode.INTERNAL, "the caller ended its requests without one")
                return
            result = handler(argument, context)
            if method.server_streaming and hasattr(result, "__aiter__"):
                try:
                    async for message in result:
                        await context.write(message)
                finally:
                    # Runs the handler's own `finally` now, not when the generator is collected.
                    if hasattr(result, "aclose"):
                        await result.aclose()
            elif inspect.isawaitable(result):
                result = await result
            if context._has_failed():
                context._fail(StatusCode.UNKNOWN, "")
            elif method.server_streaming:
                incoming.finish(context._trailing)
            else:
                await context._reply(result)
        except Aborted:
            context._fail(StatusCode.UNKNOWN, "")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Catches SystemExit and the like, too; they would end the event loop.
            context._failed_with(error, method.full_name)
            if is_a_signals(error):
                raise


# As functions, which gRPC's users know.
channel = Channel
insecure_channel = Channel
server = Server

__all__ = [
    "EOF",
    "Channel",
    "Server",
    "ServicerContext",
    "StreamCall",
    "StreamStream",
    "StreamUnary",
    "UnaryCall",
    "UnaryStream",
    "UnaryUnary",
    "channel",
    "insecure_channel",
    "server",
]
