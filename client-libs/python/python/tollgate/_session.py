"""Common code of channels and servers of both kinds: opening a session, binding, closing."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any, ContextManager, Dict, Optional, Protocol, Tuple, Union

from tollgate import _core
from tollgate._status import Metadata, MetadataLike, RpcError, StatusCode

# How long a waiting thread spins before it sleeps, in seconds. Measured with unary calls on 2 busy
# cores, calls/s and the client's CPU per call: no spin, 15,400 at 16.2 us; 3 us, 21,600 at 14.6 us;
# 10 us, 23,200 at 16.6 us; 30 us, 22,700 at 20.1 us.
DEFAULT_SPIN = 3e-6
# The number of retries of an idempotent call that ended UNAVAILABLE.
DEFAULT_RETRIES = 2

# The same for a server: all its callers wait for its wake-ups. The measurements above used this
# value.
DEFAULT_SERVER_SPIN = 10e-6

# How long a stopping server waits for the daemon to take its last answers, and how often it checks;
# both in seconds.
LAST_ANSWERS = 1.0
LAST_ANSWERS_CHECK = 0.001

os.register_at_fork(after_in_child=_core.after_fork)

_log = logging.getLogger("tollgate")


def open_session(
    socket: Union[str, os.PathLike[str]],
    token: str,
    *,
    app: str,
    label: str,
    send_heap_bytes: int,
    receive_heap_bytes: int,
    spin: float,
    reconnect: bool,
    retries: int = DEFAULT_RETRIES,
    on_loop: bool,
) -> _core.Session:
    """Connects to the daemon. RpcError: UNAVAILABLE if none answers, UNAUTHENTICATED for an unknown
    token.

    With `reconnect`, the session reopens by itself after its daemon has gone: calls in flight
    end UNAVAILABLE, services are served again, and channels and servers stay valid. Without it,
    the session ends with the daemon. A call with one request and one response that ended
    UNAVAILABLE is retried up to `retries` times, at most 10, if its method is marked idempotent
    in the schema (`idempotency_level`). Pauses between retries are 50 ms to 1 s and respect the
    call's timeout.
"""
    return _core.Session(
        os.fspath(socket),
        token,
        app=app or _program() or "python",
        label=label,
        send_heap_bytes=send_heap_bytes,
        receive_heap_bytes=receive_heap_bytes,
        spin=spin,
        reconnect=reconnect,
        retries=retries,
        on_loop=on_loop,
    )


def _program() -> str:
    """The program's name; bytes that aren't UTF-8 are shown as escapes."""
    return os.path.basename(sys.argv[0] if sys.argv else "").encode("utf-8", "backslashreplace").decode()


def close_session(session: _core.Session, what: str) -> None:
    """Closes a session, and warns about received messages that are still held."""
    session.close()
    if session.held:
        # Exceptions and the frames that they passed form cycles.
        gc.collect()
    held = session.held
    if held:
        warnings.warn(
            f"{held} received messages of a {what} are still held while it is closed: "
            "views and memoryviews keep shared memory; use to_owned() or bytes() for what is to last",
            ResourceWarning,
            stacklevel=3,
        )


def said_by(error: BaseException) -> str:
    """The text of a program's exception, with its type if the text alone would be unclear."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        return name
    if not text:
        return name
    return text if isinstance(error, Exception) else f"{name}: {text}"


def complain(error: BaseException, text: str, *values: object) -> None:
    """Logs a program's exception. An exception in logging itself is ignored."""
    try:
        _log.error(text, *values, exc_info=error)
    except BaseException as worse:
        if is_a_signals(worse):
            raise


def is_a_signals(error: BaseException) -> bool:
    """Whether a signal's handler raised this within the program's code. Then it is meant for the
    program (Ctrl-C, or a SIGTERM that exits), and is raised again after the call was answered.
    Only the main thread handles signals. Python's own SIGINT handler leaves no trace, so while
    it is installed every KeyboardInterrupt counts."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [handler.func if isinstance(handler, functools.partial) else handler for handler in handlers]
    codes = {getattr(function, "__code__", None) for function in functions}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


# The deadline of the current handler's caller, by the clock time.monotonic.
_deadline: contextvars.ContextVar[Optional[float]] = contextvars.ContextVar("tollgate deadline", default=None)


def inherit(left: Optional[float]) -> None:
    """Calls that begin in this context from now on end after this many seconds, or at their own
    earlier timeout."""
    _deadline.set(None if left is None else time.monotonic() + left)


def inherited(timeout: Optional[float]) -> Optional[float]:
    """The effective timeout of a call that begins now."""
    deadline = _deadline.get()
    if deadline is None:
        return timeout
    left = max(deadline - time.monotonic(), 0.0)
    return left if timeout is None else min(timeout, left)


class Tracing(Protocol):
    """The interface for passing traces through this process; `tollgate.opentelemetry` implements
    it."""

    def outgoing(self, metadata: Optional[MetadataLike]) -> Optional[MetadataLike]: ...
    def handling(self, metadata: Metadata) -> ContextManager[None]: ...


_tracing: Optional[Tracing] = None


def trace_with(tracing: Optional[Tracing]) -> None:
    """Sets the tracing of all channels and servers of this process."""
    global _tracing
    _tracing = tracing


def outgoing(metadata: Optional[MetadataLike]) -> Optional[MetadataLike]:
    """The metadata of a call that begins here, with the trace."""
    return metadata if _tracing is None else _tracing.outgoing(metadata)


def handling(incoming: _core.Incoming) -> ContextManager[None]:
    """The context manager in which a call is handled."""
    return contextlib.nullcontext() if _tracing is None else _tracing.handling(incoming.metadata)


class Handles:
    """The method handles of one channel, by service and method."""

    def __init__(self) -> None:
        self._known: Dict[str, Dict[str, Tuple[int, Optional[str]]]] = {}

    def learn(self, service: Any, bound: Any) -> None:
        """Stores the result of binding a service."""
        self._known[service.name] = {name: (handle, refused) for name, handle, refused in bound}

    def find(self, service: Any, method: Any) -> Optional[int]:
        """The handle of a method; None if the service isn't bound yet."""
        bound = self._known.get(service.name)
        if bound is None:
            return None
        handle, _ = bound.get(method.name, (None, None))
        if handle is None:
            text = f"the daemon bound {service.name} without its method {method.name}"
            raise RpcError(StatusCode.UNIMPLEMENTED, text)
        return handle
