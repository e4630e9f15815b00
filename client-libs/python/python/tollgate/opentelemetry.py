"""Makes an application's own spans the parents of its calls and of its handlers' work, with OpenTelemetry's API.

    tollgate.opentelemetry.instrument()  # where the program begins; needs tollgate[opentelemetry]

    with tracer.start_as_current_span("book"):
        stub.Reserve(request)  # a child of "book"; its handler's work is below it

The daemons make the client span and the server span of every call, and carry the context from one to the other.
After `instrument`, all channels and servers of the process, of both kinds, set the parent of the client span, and
make the server span the parent of the handler's work:

- W3C's trace context is written and read whatever propagators the application has, since daemons know no other
  format. Further fields, such as baggage, use the application's propagators (`opentelemetry.propagate`).
- A context that isn't sampled is passed on as not sampled. Without a current span nothing is sent.
- Metadata that the call already has stays: an explicit `traceparent` takes precedence. No call fails because of its
  trace: a field without room in the metadata isn't sent.
- A handler's context is the one that came with its call and no other: never a span that was current where the
  server was started. If the context that came is malformed, there is none.

Absent: spans of calls, which the daemons make.
"""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator, List, Mapping, Optional

from tollgate import _core
from tollgate._session import trace_with
from tollgate._status import Metadata, MetadataLike

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"tollgate.opentelemetry needs the package opentelemetry-api ({error}): pip install 'tollgate[opentelemetry]'",
        name=error.name,
    ) from error

_W3C = TraceContextTextMapPropagator()


class _Came(Getter[Mapping[str, List[str]]]):
    """Reads metadata, whose keys are in lower case."""

    def get(self, carrier: Mapping[str, List[str]], key: str) -> Optional[List[str]]:
        return carrier.get(key.lower())

    def keys(self, carrier: Mapping[str, List[str]]) -> List[str]:
        return list(carrier)


_CAME = _Came()


class _Tracing:
    def outgoing(self, metadata: Optional[MetadataLike]) -> Optional[MetadataLike]:
        parent: Dict[str, str] = {}
        _W3C.inject(parent)
        others: Dict[str, str] = {}
        propagate.inject(others)
        # A state is sent with its parent, or not at all.
        groups = [[*parent.items()], *([(key.lower(), value)] for key, value in others.items() if key not in _W3C.fields)]
        if not any(groups):
            return metadata
        return _core.extended(metadata, groups)

    @contextlib.contextmanager
    def handling(self, metadata: Metadata) -> Iterator[None]:
        came: Dict[str, List[str]] = {}
        for key, value in metadata:
            if isinstance(value, str):
                came.setdefault(key, []).append(value)
        others = propagate.extract(came, contexts.Context(), _CAME)
        token = contexts.attach(_W3C.extract(came, others, _CAME))
        try:
            yield
        finally:
            contexts.detach(token)


def instrument() -> None:
    """Makes calls of this process children of the span that is current where they begin, and runs
    handlers in the context that came with their call."""
    trace_with(_Tracing())


def uninstrument() -> None:
    """Undoes `instrument`."""
    trace_with(None)


__all__ = ["instrument", "uninstrument"]
