"""Serving from threads."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple, Union

from tollgate import _core
from tollgate._session import (
    DEFAULT_SERVER_SPIN,
    LAST_ANSWERS,
    LAST_ANSWERS_CHECK,
    close_session,
    complain,
    handling,
    inherit,
    open_session,
    said_by,
)
from tollgate._status import (
    STATUS_DETAILS,
    Metadata,
    MetadataLike,
    MetadataValue,
    RpcError,
    Status,
    StatusCode,
)

# The default number of threads that run handlers.
DEFAULT_MAX_WORKERS = 10


class Aborted(Exception):
    """Ends a handler that has called `abort`."""


class ContextBase:
    """The handler's view of its call: metadata, deadline and status."""

    def __init__(self, incoming: _core.Incoming) -> None:
        self._incoming = incoming
        self._initial: Optional[MetadataLike] = None
        self._trailing: List[Tuple[str, MetadataValue]] = []
        self._status_details = b""
        self._code: Optional[StatusCode] = None
        self._details = ""
        # The call's own error, if the handler got one: the handler isn't the cause.
        self._told: Optional[RpcError] = None

    def invocation_metadata(self) -> Metadata:
        """The caller's metadata."""
        return self._incoming.metadata

    def time_remaining(self) -> Optional[float]:
        """Seconds until the caller's deadline; None without one."""
        return self._incoming.time_remaining()

    def set_code(self, code: StatusCode) -> None:
        """Sets the status code with which the call ends when the handler returns."""
        self._code = StatusCode(code)

    def set_details(self, details: str) -> None:
        """Sets the message of that status."""
        self._details = details

    def code(self) -> Optional[StatusCode]:
        """The value from `set_code`."""
        return self._code

    def details(self) -> str:
        """The value from `set_details`."""
        return self._details

    def set_trailing_metadata(self, trailing_metadata: MetadataLike) -> None:
        """Sets the trailers."""
        pairs = list(trailing_metadata)
        self._trailing = [pair for pair in pairs if pair[0] != STATUS_DETAILS]
        for key, value in pairs:
            if key == STATUS_DETAILS and isinstance(value, bytes):
                self._status_details = value

    def trailing_metadata(self) -> List[Tuple[str, MetadataValue]]:
        """The value from `set_trailing_metadata`."""
        return self._trailing

    def set_status_details(self, status_details: bytes) -> None:
        """Sets a serialized google.rpc.Status for the end of the call, if that is an error."""
        self._status_details = status_details

    def _tell(self, error: RpcError) -> RpcError:
        """Records an error of the call itself that the handler gets."""
        self._told = error
        return error

    def _take_initial(self) -> Optional[MetadataLike]:
        initial, self._initial = self._initial, None
        return initial

    def _set_status(self, code: StatusCode, details: str) -> None:
        if code is StatusCode.OK:
            raise ValueError("abort needs an error code, not OK")
        self._code, self._details = StatusCode(code), details

    def _set_whole(self, status: Status) -> None:
        self._set_status(status.code, status.details)
        if status.trailing_metadata:
            self.set_trailing_metadata(status.trailing_metadata)
        if status.status_details:
            self._status_details = status.status_details

    def _fail(self, code: StatusCode, details: str) -> None:
        """Ends the call with the handler's status, or with this one."""
        if self._code is not None and self._code is not StatusCode.OK:
            code, details = self._code, self._details or details
        try:
            try:
                self._incoming.fail(int(code), details, self._status_details, self._trailing)
            except (TypeError, ValueError) as error:
                text = f"the handler's status and trailers can't be sent: {error}"
                self._incoming.fail(int(StatusCode.INTERNAL), text, b"", None)
        except RpcError:
            # The call was answered already.
            pass

    def _failed_with(self, error: BaseException, full_name: str) -> None:
        """Ends the call of a handler that raised an exception."""
        unimplemented = f"{full_name} isn't implemented"
        if isinstance(error, NotImplementedError) and said_by(error) == unimplemented:
            self._fail(StatusCode.UNIMPLEMENTED, unimplemented)
            return
        if isinstance(error, RpcError) and error is self._told:
            # The cause that keeps the call from continuing, such as a response that is too long,
            # takes precedence over the handler's exception.
            self._fail(error.code(), error.details())
            return
        if self._incoming.is_active():
            complain(error, "the handler of %s raised an exception", full_name)
        self._fail(StatusCode.UNKNOWN, f"Exception calling application: {said_by(error)}")

    def _has_failed(self) -> bool:
        return self._code is not None and self._code is not StatusCode.OK


class ServicerContext(ContextBase):
    """The handler's view of its call: metadata, deadline and status."""

    def __init__(self, incoming: _core.Incoming) -> None:
        super().__init__(incoming)
        self._lock = threading.Lock()
        # None once the call is over.
        self._callbacks: Optional[List[Callable[[], None]]] = []

    def send_initial_metadata(self, initial_metadata: MetadataLike) -> None:
        """Sends the responses' metadata now, before the first of them."""
        self._incoming.send_metadata(initial_metadata)

    def _respond(self, message: Any) -> None:
        try:
            self._incoming.respond(message, self._take_initial())
        except RpcError as error:
            raise self._tell(error)

    def _reply(self, message: Any) -> None:
        try:
            self._incoming.reply(message, self._take_initial(), self._trailing)
        except RpcError as error:
            raise self._tell(error)

    def abort(self, code: StatusCode, details: str) -> NoReturn:
        """Ends the call with an error, and the handler with an exception."""
        self._set_status(code, details)
        raise Aborted(f"{code.name}: {details}")

    def abort_with_status(self, status: Status) -> NoReturn:
        """Like `abort`, with details and trailers."""
        self._set_whole(status)
        raise Aborted(f"{status.code.name}: {status.details}")

    def is_active(self) -> bool:
        """Whether the caller still waits for the answer."""
        return self._incoming.is_active()

    def cancel(self) -> None:
        """Ends the call with CANCELLED."""
        self._code, self._details = StatusCode.CANCELLED, "the handler cancelled the call"
        self._fail(StatusCode.CANCELLED, "")

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Registers a callback for the end of the call. False if the call is over already."""
        with self._lock:
            if self._callbacks is None or not self.is_active():
                return False
            self._callbacks.append(callback)
            return True

    def _over(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback()
            except BaseException as error:
                complain(error, "a callback of a call's end raised an exception")


class _Requests:
    """The requests of a call as they come; RpcError if the caller cancels."""

    def __init__(self, context: ServicerContext) -> None:
        self._context = context

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            request = self._context._incoming.next()
        except RpcError as error:
            raise self._context._tell(error)
        if request is None:
            raise StopIteration
        return request


class Server:
    """Serves services, each call on one of `max_workers` threads. Made by `tollgate.server`."""

    def __init__(
        self,
        socket: Union[str, os.PathLike[str]],
        token: str = "",
        max_workers: int = DEFAULT_MAX_WORKERS,
        *,
        app: str = "",
        label: str = "",
        send_heap_bytes: int = 0,
        receive_heap_bytes: int = 0,
        spin: float = DEFAULT_SERVER_SPIN,
        reconnect: bool = True,
    ) -> None:
        if max_workers < 1:
            raise ValueError(f"a server needs a worker, and max_workers is {max_workers}")
        self._session = open_session(
            socket,
            token,
            app=app,
            label=label,
            send_heap_bytes=send_heap_bytes,
            receive_heap_bytes=receive_heap_bytes,
            spin=spin,
            reconnect=reconnect,
            on_loop=False,
        )
        self._acceptor = self._session.acceptor()
        self._max_workers = max_workers
        self._services: List[Tuple[Any, Tuple[Any, ...]]] = []
        self._contexts: Dict[int, ServicerContext] = {}
        self._change = threading.Condition()
        self._stopping = False
        self._health: List[_core.Health] = []
        # Set while calls that still come are refused.
        self._refusing = False
        self._stopped = threading.Event()

    def add_service(self, service: Any, handlers: Tuple[Any, ...]) -> None:
        """Registers the handlers of a service's methods; for generated code."""
        self._services.append((service, handlers))

    def _add_health(self, health: _core.Health) -> None:
        self._health.append(health)

    def start(self) -> None:
        """Binds the services and starts handling calls."""
        for number in range(self._max_workers):
            name = f"tollgate-worker-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        threading.Thread(target=self._watch, name="tollgate-cancelled", daemon=True).start()
        for service, _ in self._services:
            classes = [(method.request(), method.reply()) for method in service.methods]
            self._acceptor.bind(service.descriptor_set, service.name, classes)
        for health in self._health:
            self._session.serve_health(health)

    def stop(self, grace: Optional[float] = None) -> threading.Event:
        """Stops serving. For `grace` seconds, other servers get new calls, and calls in flight are
        handled; calls that are unanswered after that end. Without `grace` they end now. The
        event is set at the end."""
        with self._change:
            if self._stopping:
                return self._stopped
            self._stopping = True
        for health in self._health:
            health.shut_down()
        threading.Thread(target=self._stop, args=(grace,), daemon=True).start()
        return self._stopped

    def _stop(self, grace: Optional[float]) -> None:
        end = time.monotonic() + (grace or 0)
        if grace:
            drained = threading.Event()
            threading.Thread(target=self._drain, args=(drained,), daemon=True).start()
            drained.wait(grace)
        with self._change:
            self._refusing = True
            self._change.wait_for(lambda: not self._contexts, timeout=max(0, end - time.monotonic()))
        until = time.monotonic() + LAST_ANSWERS
        while self._session.has_unsent() and time.monotonic() < until:
            time.sleep(LAST_ANSWERS_CHECK)
        close_session(self._session, "server")
        self._acceptor.close()
        self._stopped.set()

    def _drain(self, drained: threading.Event) -> None:
        try:
            self._session.drain()
        except RpcError:
            # The daemon is gone, or its version can't drain: calls that still come are refused
            # here.
            pass
        drained.set()

    def wait_for_termination(self, timeout: Optional[float] = None) -> bool:
        """Waits until the server has stopped or its daemon has gone. True if `timeout` seconds
        passed first."""
        return not self._stopped.wait(timeout)

    def _watch(self) -> None:
        """Tells contexts about the end of their calls, until no more calls come."""
        while True:
            number = self._acceptor.next_cancelled()
            if number is None:
                self._stopped.set()
                return
            context = self._contexts.get(number)
            if context is not None:
                context._over()

    def _work(self) -> None:
        """Handles calls until no more come. No exception of a handler ends the thread: nothing
        would replace it."""
        while True:
            incoming = self._acceptor.next_call()
            if incoming is None:
                return
            context = ServicerContext(incoming)
            with self._change:
                self._contexts[incoming.id] = context
                refused = self._refusing
            try:
                if refused:
                    context._fail(StatusCode.UNAVAILABLE, "the server is stopping")
                elif incoming.is_active():
                    with handling(incoming):
                        self._handle(incoming, context)
            except BaseException as error:
                complain(error, "a call can't be answered")
            finally:
                number = incoming.id
                context._over()
                # Exceptions keep the frames that they passed. Received messages are returned before
                # anyone learns of the call's end.
                context._told = None
                del incoming, context
                with self._change:
                    del self._contexts[number]
                    self._change.notify_all()

    def _handle(self, incoming: _core.Incoming, context: ServicerContext) -> None:
        service, handlers = self._services[incoming.service]
        method, handler = service.methods[incoming.method], handlers[incoming.method]
        inherit(incoming.time_remaining())
        try:
            argument = _Requests(context) if method.client_streaming else incoming.next()
            if argument is None:
                context._fail(StatusCode.INTERNAL, "the caller ended its requests without one")
                return
            result = handler(argument, context)
            if method.server_streaming:
                try:
                    for message in result:
                        context._respond(message)
                finally:
                    # Runs the handler's own `finally` now, not when the generator is collected.
                    if hasattr(result, "close"):
                        result.close()
            if context._has_failed():
                context._fail(StatusCode.UNKNOWN, "")
            elif method.server_streaming:
                incoming.finish(context._trailing)
            else:
                context._reply(result)
        except Aborted:
            context._fail(StatusCode.UNKNOWN, "")
        except BaseException as error:
            # Catches SystemExit and the like, too: the server owns the handler's thread.
            context._failed_with(error, method.full_name)
