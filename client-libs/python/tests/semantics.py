"""A servicer of interop.Semantics whose methods are given."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import tollgate
from stubs.interop_tollgate import Answer, AskView, SemanticsServicer

Context = tollgate.ServicerContext


class Given(SemanticsServicer):
    """Each method runs the given function, and is UNIMPLEMENTED without one."""

    def __init__(
        self,
        unary: Optional[Callable[[AskView, Context], Any]] = None,
        collect: Optional[Callable[[Iterator[AskView], Context], Answer]] = None,
        spread: Optional[Callable[[AskView, Context], Iterator[Answer]]] = None,
        chat: Optional[Callable[[Iterator[AskView], Context], Iterator[Answer]]] = None,
    ) -> None:
        for name, handler in (("Unary", unary), ("Collect", collect), ("Spread", spread), ("Chat", chat)):
            if handler is not None:
                setattr(self, name, handler)


def echo_numbers(requests: Iterator[AskView], context: Context) -> Iterator[Answer]:
    """A chat that answers each request with its number and payload."""
    for request in requests:
        yield Answer(number=request.number, payload=bytes(request.payload))
