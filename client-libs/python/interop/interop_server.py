"""Serves interop.Semantics and everything.Everything, like conformance/src/interop.rs: requests have the instructions.

    interop_server.py SOCKET TOKEN

Prints `serving` once it is bound, and serves until it is killed.
"""

from __future__ import annotations

import sys
import time
from typing import Iterator, List, Sequence, Tuple

import tollgate
from stubs.everything_tollgate import All, AllView, EverythingServicer, add_EverythingServicer_to_server
from stubs.interop_tollgate import (
    Answer,
    Ask,
    AskView,
    SemanticsServicer,
    add_SemanticsServicer_to_server,
)


def answers(ask: Ask) -> Iterator[Answer]:
    """The answers to one request."""
    for number in range(ask.number, ask.number + ask.responses):
        yield Answer(number=number, payload=bytes([number % 256]) * ask.response_bytes)


def picked(keys: Sequence[str], context: tollgate.ServicerContext) -> List[Tuple[str, tollgate.MetadataValue]]:
    """The caller's metadata with these keys, key by key."""
    return [pair for key in keys for pair in context.invocation_metadata() if pair[0] == key]


def end(ask: Ask, context: tollgate.ServicerContext) -> None:
    """Ends the call with the request's status, unless that is OK."""
    if ask.code != 0:
        code = tollgate.StatusCode(ask.code)
        context.set_trailing_metadata(picked(ask.echo_as_trailers, context))
        context.abort_with_status(tollgate.Status(code, ask.message, status_details=ask.details))


def pause(ask: Ask) -> None:
    """Waits before an answer."""
    if ask.delay_ms:
        time.sleep(ask.delay_ms / 1000)


class Semantics(SemanticsServicer):
    """Follows the instructions in requests."""

    def Unary(self, request: AskView, context: tollgate.ServicerContext) -> Answer:
        ask: Ask = request.to_owned()
        pause(ask)
        end(ask, context)
        self.echo(ask, context)
        return next(answers(ask), Answer())

    def Collect(self, request_iterator: Iterator[AskView], context: tollgate.ServicerContext) -> Answer:
        total, last = Answer(), Ask()
        for request in request_iterator:
            last = request.to_owned()
            pause(last)
            end(last, context)
            total.number += last.number
            total.payload += last.payload
        self.echo(last, context)
        return total

    def Spread(self, request: AskView, context: tollgate.ServicerContext) -> Iterator[Answer]:
        ask: Ask = request.to_owned()
        pause(ask)
        self.echo(ask, context)
        yield from answers(ask)
        end(ask, context)

    def Chat(self, request_iterator: Iterator[AskView], context: tollgate.ServicerContext) -> Iterator[Answer]:
        # No request has named the keys to echo yet: everything is echoed.
        context.send_initial_metadata(context.invocation_metadata())
        context.set_trailing_metadata(context.invocation_metadata())
        for request in request_iterator:
            ask: Ask = request.to_owned()
            pause(ask)
            yield from answers(ask)
            end(ask, context)

    @staticmethod
    def echo(ask: Ask, context: tollgate.ServicerContext) -> None:
        """Returns the metadata that the request names."""
        metadata = picked(ask.echo, context)
        if metadata:
            context.send_initial_metadata(metadata)
        context.set_trailing_metadata(picked(ask.echo_as_trailers, context))


class Everything(EverythingServicer):
    """Echoes."""

    def Swap(self, request: AllView, context: tollgate.ServicerContext) -> All:
        everything: All = request.to_owned()
        return everything


def main() -> None:
    socket, token = sys.argv[1:]
    heap = 32 << 20
    server = tollgate.server(socket, token, max_workers=64, send_heap_bytes=heap, receive_heap_bytes=heap)
    add_SemanticsServicer_to_server(Semantics(), server)
    add_EverythingServicer_to_server(Everything(), server)
    server.start()
    print("serving", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
