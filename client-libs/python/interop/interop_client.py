"""Calls interop.Semantics and everything.Everything with the cases on standard input, one JSON object per line, and writes the result of each.

    interop_client.py SOCKET TOKEN TARGET
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

import tollgate
from stubs.everything_tollgate import All, EverythingStub
from stubs.interop_tollgate import AnswerView, Ask, SemanticsStub

Json = Dict[str, Any]


def ask(request: Json) -> Ask:
    """The message of a case's request."""
    payload = bytes([request.get("payload_byte", 0)]) * request.get("payload_len", 0)
    same = ("number", "responses", "response_bytes", "code", "message", "delay_ms", "echo", "echo_as_trailers")
    fields = {name: request[name] for name in same if name in request}
    return Ask(payload=payload, details=base64.b64decode(request.get("details", "")), **fields)


def given(metadata: List[List[str]]) -> List[Tuple[str, tollgate.MetadataValue]]:
    """The metadata of a case: values of -bin keys are base64."""
    return [(key, base64.b64decode(value) if key.endswith("-bin") else value) for key, value in metadata]


def shown(metadata: tollgate.Metadata) -> List[List[str]]:
    """The inverse."""
    return [
        [key, base64.b64encode(value).decode() if isinstance(value, bytes) else value] for key, value in metadata
    ]


class Result:
    """The outcome of a case."""

    def __init__(self) -> None:
        self.responses: List[Json] = []
        self.metadata: tollgate.Metadata = ()
        self.trailers: tollgate.Metadata = ()
        self.code = tollgate.StatusCode.OK
        self.message = ""
        self.details = b""
        self.block = b""

    def add(self, answer: AnswerView) -> None:
        payload = bytes(answer.payload)
        byte = payload[0] if payload else 0
        assert payload == bytes([byte]) * len(payload), f"answer {answer.number} is of several bytes"
        self.responses.append({"number": answer.number, "len": len(payload), "byte": byte})

    def failed(self, error: tollgate.RpcError) -> None:
        self.code, self.message = error.code(), error.details()
        self.trailers, self.details = error.trailing_metadata(), tollgate.status_details(error)

    def line(self) -> str:
        result = {
            "responses": self.responses,
            "metadata": shown(self.metadata),
            "trailers": shown(self.trailers),
            "code": int(self.code),
            "message": self.message,
            "details": base64.b64encode(self.details).decode(),
            "block": base64.b64encode(self.block).decode(),
        }
        return json.dumps(result)


class Requests:
    """The requests of a case; in lockstep, each waits until all responses to the previous ones have
    come."""

    def __init__(self, asks: List[Ask], lockstep: bool) -> None:
        self._asks = asks
        self._lockstep = lockstep
        self._due = 0
        self._came = threading.Semaphore(0)

    def __iter__(self) -> Iterator[Ask]:
        for request in self._asks:
            if self._lockstep:
                for _ in range(self._due):
                    self._came.acquire()
                self._due = request.responses
            yield request

    def came(self) -> None:
        """Counts one more response."""
        self._came.release()


def one(
    stub: SemanticsStub,
    method: str,
    asks: List[Ask],
    beside: Tuple[Optional[float], List[Tuple[str, tollgate.MetadataValue]]],
    cancel: bool,
    result: Result,
) -> None:
    """Makes a call with one response."""
    if cancel:
        unary, collect = stub.Unary.future, stub.Collect.future
        future = unary(asks[0], *beside) if method == "Unary" else collect(iter(asks), *beside)
        future.cancel()
        result.add(future.result())
        return
    answer, call = (
        stub.Unary.with_call(asks[0], *beside)
        if method == "Unary"
        else stub.Collect.with_call(iter(asks), *beside)
    )
    result.add(answer)
    result.metadata, result.trailers = call.initial_metadata(), call.trailing_metadata()


def swap(stub: EverythingStub, block: str) -> Result:
    """Sends a golden vector, and returns the outcome."""
    result = Result()
    try:
        result.block = stub.Swap(All.from_block(base64.b64decode(block))).to_owned().to_block()
    except tollgate.RpcError as error:
        result.failed(error)
    return result


def run(stub: SemanticsStub, case: Json) -> Result:
    """Makes the call of a case."""
    asks = [ask(request) for request in case.get("requests", [])]
    metadata = given(case.get("metadata", []))
    timeout = case.get("timeout_ms", 0) / 1000 or None
    cancel_after: int = case.get("cancel_after", -1)
    result = Result()
    try:
        if case["method"] in ("Unary", "Collect"):
            one(stub, case["method"], asks, (timeout, metadata), cancel_after == 0, result)
            return result
        requests = Requests(asks, case.get("lockstep", False))
        call = (
            stub.Spread(asks[0], timeout, metadata)
            if case["method"] == "Spread"
            else stub.Chat(requests, timeout, metadata)
        )
        if cancel_after == 0:
            call.cancel()
        try:
            for answer in call:
                result.add(answer)
                requests.came()
                if len(result.responses) == cancel_after:
                    call.cancel()
        finally:
            result.metadata = call.initial_metadata()
        result.trailers = call.trailing_metadata()
    except tollgate.RpcError as error:
        result.failed(error)
    except ValueError as error:
        # The request could not be made.
        result.code, result.message = tollgate.StatusCode.INVALID_ARGUMENT, str(error)
    return result


def main() -> None:
    socket, token, target = sys.argv[1:]
    heap = 32 << 20
    with tollgate.channel(socket, token, target, send_heap_bytes=heap, receive_heap_bytes=heap) as channel:
        stub, everything = SemanticsStub(channel), EverythingStub(channel)
        for line in sys.stdin:
            case = json.loads(line)
            result = swap(everything, case["block"]) if case["method"] == "Swap" else run(stub, case)
            print(result.line(), flush=True)


if __name__ == "__main__":
    main()
