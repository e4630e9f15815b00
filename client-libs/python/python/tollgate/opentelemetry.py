"""Applications' own spans as parents: of their calls, and of what their handlers do. For OpenTelemetry's API.

    tollgate.opentelemetry.instrument()  # where the program begins; wants tollgate[opentelemetry]

    with tracer.start_as_current_span("book"):
        stub.Reserve(request)  # a child of that, and what its handler does is below it

The daemons make the client's and the server's span of every call, and carry the context from one to the other. From `instrument` on, all
channels and servers of the process, of both kinds, tell them the parent of the first, and make the second one the parent of what a handler
does:

- W3C's trace context is written and read whatever the application has set up, since daemons know no other. Further fields, such as baggage,
  go by the application's propagators (`opentelemetry.propagate`).
- A context that isn't sampled is passed on as one that isn't. Without a current span nothing is sent.
- What a call's metadata has already stays: who gives a `traceparent` of his own means it. No call fails for its trace: what metadata has no
  room for isn't sent.
- A handler's context is what came with its call and nothing else: no span that was current where the server was started, and none if what came
  is malformed.

Absent: spans of calls, which are the daemons'.
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
        f"tollgate.opentelemetry wants the package opentelemetry-api ({error}): pip install 'tollgate[opentelemetry]'",
        name=error.name,
    ) from error

_W3C = TraceContextTextMapPropagator()


class _Came(Getter[Mapping[str, List[str]]]):
    """Reads metadata, whose keys are lower case."""

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
        # A state goes with its parent, or not at all.
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
    """From now on calls of this process are children of the span that is current where they are begun, and handlers run in the context that
    came with their call."""
    trace_with(_Tracing())


def uninstrument() -> None:
    """As it was before."""
    trace_with(None)


__all__ = ["instrument", "uninstrument"]
