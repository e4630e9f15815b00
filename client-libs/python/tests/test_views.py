"""Received messages are views into shared memory: they keep it as long as they live, and no longer."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any, Callable, Iterator, List, cast

import pytest
import tollgate
from semantics import Context, Given, echo_numbers
from stubs.interop_tollgate import Answer, Ask, AskView, SemanticsStub, add_SemanticsServicer_to_server

Serve = Callable[..., tollgate.Server]
add = add_SemanticsServicer_to_server


def echo(request: AskView, context: Context) -> Answer:
    return Answer(number=request.number, payload=bytes(request.payload))


def test_bytes_are_memoryviews_that_keep_their_block(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(unary=echo))
    stub = SemanticsStub(channel)
    for size in (3, 4095, 4096, 1 << 20):
        payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        reply = stub.Unary(Ask(number=size, payload=payload))
        held = reply.payload
        assert isinstance(held, memoryview) and held.readonly and held == payload
        tail = held[-2:]
        assert channel._session.held == 1
        owned: Answer = reply.to_owned()
        del reply, held
        # The slice of a slice keeps the memory, while others come and go.
        for _ in range(50):
            stub.Unary(Ask(payload=b"y" * size))
        assert channel._session.held == 1
        assert tail == payload[-2:]
        del tail
        assert channel._session.held == 0
        assert owned == Answer(number=size, payload=payload) and isinstance(owned.payload, bytes)


def test_views_outlive_their_channel_which_warns(hosts: Any, serve: Serve) -> None:
    serve(add, Given(unary=echo))
    channel = tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen)
    first = SemanticsStub(channel).Unary(Ask(payload=b"abc"))
    second = SemanticsStub(channel).Unary(Ask(payload=b"def")).payload
    with pytest.warns(ResourceWarning, match="2 received messages of a channel are still held"):
        channel.close()
    assert (first.payload, second) == (b"abc", b"def")
    assert first.to_owned().payload == b"abc"
    with pytest.raises(tollgate.RpcError, match="this program closed the session") as caught:
        SemanticsStub(channel).Unary(Ask())
    assert caught.value.code() is tollgate.StatusCode.CANCELLED
    del first, second
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        channel.close()


def test_closing_a_channel_ends_its_calls(hosts: Any, serve: Serve) -> None:
    serve(add, Given(chat=echo_numbers))
    channel = tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen)
    go_on = threading.Event()

    def requests() -> Iterator[Ask]:
        yield Ask()
        go_on.wait(30)

    call = SemanticsStub(channel).Chat(requests())
    assert next(call).number == 0
    threading.Timer(0.2, channel.close).start()
    with pytest.raises(tollgate.RpcError) as caught:
        next(call)
    assert caught.value.code() is tollgate.StatusCode.CANCELLED
    go_on.set()


def test_a_value_is_made_where_it_is_sent_from(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(unary=lambda request, context: Answer(payload=bytes(request.payload[-3:]))))
    stub = SemanticsStub(channel)
    buffer = channel.buffer(1 << 20)
    assert not buffer.view.readonly and len(buffer.view) == 1 << 20
    buffer.view[-3:] = b"abc"
    other = memoryview(buffer.view)
    with pytest.raises(BufferError, match="1 memoryviews of it can still be written to"):
        buffer.freeze()
    other.release()
    shared = buffer.freeze()
    with pytest.raises(ValueError, match="released"):
        buffer.view[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        shared[0] = 1
    with pytest.raises(BufferError, match="frozen already"):
        buffer.freeze()
    for _ in range(100):
        # More than the heap could hold as copies.
        assert stub.Unary(Ask(payload=cast(bytes, shared))).payload == b"abc"
    # A part of it is copied, and so is a value in another session's heap.
    assert stub.Unary(Ask(payload=cast(bytes, shared[-5000:]))).payload == b"abc"
    with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as elsewhere:
        assert SemanticsStub(elsewhere).Unary(Ask(payload=cast(bytes, shared))).payload == b"abc"
    del shared, buffer
    gc.collect()
    again: List[Any] = [channel.buffer(1 << 20) for _ in range(2)]
    with pytest.raises(tollgate.RpcError, match="a buffer of 1073741824 bytes doesn't fit"):
        channel.buffer(1 << 30)
    again.clear()


def test_what_was_received_is_sent_on(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(unary=lambda request, context: Answer(number=len(request.payload), payload=request.payload)))
    stub = SemanticsStub(channel)
    for size in (10, 100_000):
        reply = stub.Unary(Ask(payload=b"z" * size))
        again = stub.Unary(Ask(payload=cast(bytes, reply.payload)))
        assert again.number == size and again.payload == b"z" * size
    with pytest.raises(ValueError, match="bytes, a bytearray or a memoryview"):
        stub.Unary(Ask(payload="text"))  # type: ignore[arg-type]
    assert stub.Unary(Ask(payload=bytearray(b"ba"))).payload == b"ba"  # type: ignore[arg-type]
    assert stub.Unary(Ask(payload=memoryview(b"abcd")[::2])).payload == b"ac"  # type: ignore[arg-type]
    del reply, again
