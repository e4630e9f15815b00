"""Calls from threads: channels, and the base of stubs."""

from __future__ import annotations

import contextvars
import itertools
import os
import threading
from types import TracebackType
from typing import Any, Generic, Iterable, Iterator, Optional, Tuple, Type, TypeVar, Union

from tollgate import _core
from tollgate._session import (
    DEFAULT_RETRIES,
    DEFAULT_SPIN,
    Handles,
    close_session,
    complain,
    inherited,
    is_a_signals,
    open_session,
    outgoing,
    said_by,
)
from tollgate._status import Metadata, MetadataLike, RpcError, StatusCode

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)


class Channel:
    """A connection to this host's daemon, with the target of its calls. Made by `tollgate.channel`;
    any thread may use it."""

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
            on_loop=False,
        )
        self._target = target
        self._handles = Handles()
        self._binding = threading.Lock()

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

    def close(self) -> None:
        """Ends the connection; calls in flight end with CANCELLED. Received messages stay readable."""
        close_session(self._session, "channel")

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _handle(self, service: Any, method: Any) -> int:
        handle = self._handles.find(service, method)
        if handle is not None:
            return handle
        with self._binding:
            handle = self._handles.find(service, method)
            if handle is None:
                bound = self._session.bind(service.descriptor_set, service.name, self._target)
                self._handles.learn(service, bound)
                handle = self._handles.find(service, method)
        assert handle is not None, "it was learned above"
        return handle


class Call:
    """A call, ended or in flight: its metadata and status."""

    def __init__(self) -> None:
        self._initial: Optional[Metadata] = None
        self._trailing: Metadata = ()
        self._status: Optional[Tuple[StatusCode, str]] = None

    def initial_metadata(self) -> Metadata:
        """The responses' metadata; waits until metadata, a first response or the end has come."""
        return self._initial or ()

    def trailing_metadata(self) -> Metadata:
        """The trailers; empty before the end."""
        return self._trailing

    def code(self) -> Optional[StatusCode]:
        """The status code of the call; None before all responses were read."""
        return self._status[0] if self._status else None

    def details(self) -> Optional[str]:
        """The message of the status."""
        return self._status[1] if self._status else None

    def is_active(self) -> bool:
        """Whether the call's end hasn't been seen yet."""
        return self._status is None

    def _failed(self, error: RpcError) -> None:
        if self._status is None:
            self._trailing = error.trailing_metadata()
            self._status = (error.code(), error.details())

    def _ended_well(self, trailing: Metadata) -> None:
        if self._status is None:
            self._trailing = trailing
            self._status = (StatusCode.OK, "")


class StreamCall(Call, Generic[Response]):
    """The responses of a call as they come. Dropping it cancels the call, if it hasn't ended."""

    def __init__(self, sender: _core.Sender, receiver: _core.Receiver) -> None:
        super().__init__()
        self._sender = sender
        self._receiver = receiver
        self._error: Optional[RpcError] = None

    def __iter__(self) -> Iterator[Response]:
        return self

    def __next__(self) -> Response:
        if self._error is not None:
            raise self._error
        if self._status is not None:
            raise StopIteration
        try:
            response = self._receiver.next()
        except RpcError as error:
            self.initial_metadata()
            self._fail(error)
            assert self._error is not None, "the error was set above, or earlier by the canceller"
            raise self._error
        if response is None:
            self.initial_metadata()
            self._ended_well(self._receiver.trailers())
            raise StopIteration
        return response  # type: ignore[no-any-return]

    def initial_metadata(self) -> Metadata:
        if self._initial is None and self._status is None:
            try:
                self._initial = self._receiver.metadata()
            except RpcError as error:
                self._fail(error)
        return super().initial_metadata()

    def cancel(self) -> bool:
        """Ends the call with CANCELLED, unless it has ended. Callable from any thread."""
        return self._end(StatusCode.CANCELLED, "the caller cancelled the call")

    def _end(self, code: StatusCode, details: str) -> bool:
        if self._status is not None:
            return False
        # In this order, a waiting reader gets the reason for the missing response.
        self._fail(RpcError(code, details))
        self._receiver.cancel(code, details)
        self._sender.cancel()
        return True

    def _fail(self, error: RpcError) -> None:
        if self._error is None:
            self._error = error
        self._failed(error)


class Future(Generic[Response]):
    """The response of a call that runs in the background."""

    def __init__(self, call: StreamCall[Response]) -> None:
        self._call = call
        self._result: Optional[Response] = None
        self._waiting = threading.Lock()

    def result(self) -> Response:
        """Waits for the response. RpcError if there is none."""
        with self._waiting:
            if self._result is None:
                self._result = _only(self._call)
            return self._result

    def exception(self) -> Optional[RpcError]:
        """Waits for the end. Returns the error, if there was one."""
        try:
            self.result()
        except RpcError as error:
            return error
        return None

    def cancel(self) -> bool:
        """Ends the call with CANCELLED, unless it has ended."""
        return self._call.cancel()

    def code(self) -> Optional[StatusCode]:
        """Waits for the end. Returns the call's status code."""
        self.exception()
        return self._call.code()

    def details(self) -> Optional[str]:
        """Waits for the end. Returns the message of the status."""
        self.exception()
        return self._call.details()

    def initial_metadata(self) -> Metadata:
        """The response's metadata."""
        return self._call.initial_metadata()

    def trailing_metadata(self) -> Metadata:
        """Waits for the end. Returns the trailers."""
        self.exception()
        return self._call.trailing_metadata()


def _only(call: StreamCall[Response]) -> Response:
    """The one response of a call."""
    try:
        responses = list(itertools.islice(call, 2))
    except BaseException:
        call.cancel()
        raise
    if len(responses) != 1:
        call.cancel()
        what = "the server ended the call without a reply"
        if responses:
            what = "the server answered with several messages instead of one"
        raise RpcError(StatusCode.INTERNAL, what)
    return responses[0]


def _feed(call: StreamCall[Any], sender: _core.Sender, requests: Iterable[Any]) -> None:
    """Sends an iterator's requests until the iterator or the call ends."""
    try:
        for request in requests:
            sender.send(request)
        sender.finish()
    except RpcError as error:
        # The call is over, which the responses report; or a request can't be sent.
        if error.code() is not StatusCode.CANCELLED:
            call._end(error.code(), error.details())
        sender.cancel()
    except BaseException as error:
        complain(error, "the requests of a call ended with an exception")
        call._end(StatusCode.UNKNOWN, f"Exception iterating requests: {said_by(error)}")
        sender.cancel()
        if is_a_signals(error):
            raise


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

    def _bind(self) -> int:
        self._handle = self._channel._handle(self._service, self._method)
        return self._handle

    def _open(
        self, first: Any, is_last: bool, timeout: Optional[float], metadata: Optional[MetadataLike]
    ) -> StreamCall[Response]:
        handle = self._handle if self._handle is not None else self._bind()
        opened = self._session.open_stream(
            handle, self._request, self._reply, first, is_last, inherited(timeout), outgoing(metadata)
        )
        return StreamCall(*opened)

    def _open_fed(
        self, requests: Iterable[Any], timeout: Optional[float], metadata: Optional[MetadataLike]
    ) -> StreamCall[Response]:
        call = self._open(None, False, timeout, metadata)
        # The iterator runs in the caller's context, for example with its current span.
        run = contextvars.copy_context().run
        feeder = threading.Thread(target=run, args=(_feed, call, call._sender, requests), daemon=True)
        feeder.start()
        return call


class UnaryUnary(_Callable[Request, Response]):
    """Calls a method with one request and one response."""

    def __call__(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> Response:
        """Returns the response. RpcError if the call fails or takes longer than `timeout` seconds."""
        handle = self._handle
        if handle is None:
            handle = self._bind()
        return self._session.call(  # type: ignore[no-any-return]
            handle, self._request, self._reply, request, inherited(timeout), outgoing(metadata), False
        )

    def with_call(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> Tuple[Response, Call]:
        """Returns the response and the ended call, which has its metadata."""
        handle = self._handle if self._handle is not None else self._bind()
        response, initial, trailing = self._session.call(
            handle, self._request, self._reply, request, inherited(timeout), outgoing(metadata), True
        )
        call = Call()
        call._initial = initial
        call._ended_well(trailing)
        return response, call

    def future(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> Future[Response]:
        """Starts a call that runs in the background."""
        return Future(self._open(request, True, timeout, metadata))


class UnaryStream(_Callable[Request, Response]):
    """Calls a method that answers with a stream."""

    def __call__(
        self, request: Request, timeout: Optional[float] = None, metadata: Optional[MetadataLike] = None
    ) -> StreamCall[Response]:
        """The responses as they come."""
        return self._open(request, True, timeout, metadata)


class StreamUnary(_Callable[Request, Response]):
    """Calls a method that takes a stream."""

    def __call__(
        self,
        request_iterator: Iterable[Request],
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> Response:
        """Returns the response. A thread of its own reads an iterator that isn't a list or tuple."""
        return self.with_call(request_iterator, timeout, metadata)[0]

    def with_call(
        self,
        request_iterator: Iterable[Request],
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> Tuple[Response, Call]:
        """Returns the response and the ended call, which has its metadata."""
        call: StreamCall[Response]
        if isinstance(request_iterator, (list, tuple)):
            call = self._open(None, False, timeout, metadata)
            _feed(call, call._sender, request_iterator)
        else:
            call = self._open_fed(request_iterator, timeout, metadata)
        response = _only(call)
        call.initial_metadata()
        return response, call

    def future(
        self,
        request_iterator: Iterable[Request],
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> Future[Response]:
        """Starts a call that runs in the background."""
        return Future(self._open_fed(request_iterator, timeout, metadata))


class StreamStream(_Callable[Request, Response]):
    """Calls a method with streams both ways."""

    def __call__(
        self,
        request_iterator: Iterable[Request],
        timeout: Optional[float] = None,
        metadata: Optional[MetadataLike] = None,
    ) -> StreamCall[Response]:
        """Returns the responses as they come. A thread of its own reads the requests."""
        return self._open_fed(request_iterator, timeout, metadata)
