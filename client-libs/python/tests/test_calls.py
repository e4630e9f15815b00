"""Calls from threads, between two hosts: responses and errors come in order and complete."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import threading
import time
import traceback
from typing import Any, Callable, Iterator, List, Tuple

import pytest
import tollgate
import tollgate.aio
from semantics import Context, Given, echo_numbers
from stubs.hotel_tollgate import (
    AvailabilityReply,
    AvailabilityRequest,
    AvailabilityRequestView,
    ReservationAsyncStub,
    ReservationServicer,
    ReservationStub,
    ReserveReply,
    ReserveRequest,
    ReserveRequestView,
    Stay,
    add_ReservationServicer_to_server,
)
from stubs.interop_tollgate import Answer, Ask, AskView, SemanticsStub, add_SemanticsServicer_to_server
from tollgate import StatusCode

Serve = Callable[..., tollgate.Server]
add = add_SemanticsServicer_to_server


def number(request: AskView, context: Context) -> Answer:
    return Answer(number=request.number)


def test_a_unary_call_is_answered(serve: Serve, channel: tollgate.Channel) -> None:
    class Hotel(ReservationServicer):
        def Reserve(self, request: ReserveRequestView, context: Context) -> ReserveReply:
            assert (request.customer_name, request.room_count, request.coupon) == ("Ada", 3, None)
            assert request.stay is not None and request.stay.in_date == "2026-05-01"
            return ReserveReply(reservation_id=2**63, hotel_ids=request.hotel_ids)

    serve(add_ReservationServicer_to_server, Hotel())
    stub = ReservationStub(channel)
    stay = Stay(in_date="2026-05-01")
    request = ReserveRequest(customer_name="Ada", hotel_ids=["ritz", "x" * 5000], stay=stay, room_count=3)
    reply = stub.Reserve(request, timeout=30)
    assert reply.to_owned() == ReserveReply(reservation_id=2**63, hotel_ids=["ritz", "x" * 5000])
    assert reply.reservation_id == 2**63
    with pytest.raises(AttributeError, match="a received message can't be changed"):
        reply.reservation_id = 1  # type: ignore[misc]
    with pytest.raises(tollgate.RpcError, match="hotel.Reservation/CheckAvailability isn't implemented") as caught:
        stub.CheckAvailability(AvailabilityRequest())
    assert caught.value.code() is StatusCode.UNIMPLEMENTED
    del reply


def test_streams_of_all_types(serve: Serve, channel: tollgate.Channel) -> None:
    def collect(requests: Iterator[AskView], context: Context) -> Answer:
        total = Answer()
        for request in requests:
            total.number += request.number
            total.payload += bytes(request.payload)
        return total

    def spread(request: AskView, context: Context) -> Iterator[Answer]:
        for number in range(request.responses):
            yield Answer(number=number)

    serve(add, Given(collect=collect, spread=spread, chat=echo_numbers))
    stub = SemanticsStub(channel)
    asks = [Ask(number=n, payload=bytes([n])) for n in range(1, 101)]
    for requests in (asks, tuple(asks), iter(asks)):
        reply = stub.Collect(requests, timeout=30)
        assert (reply.number, bytes(reply.payload)) == (5050, bytes(range(1, 101)))
    assert stub.Collect([]).number == 0
    assert [answer.number for answer in stub.Spread(Ask(responses=300))] == list(range(300))
    assert list(stub.Spread(Ask())) == []
    assert [answer.number for answer in stub.Chat(iter(asks))] == list(range(1, 101))
    large = stub.Chat(Ask(payload=bytes([n]) * (2 << 20)) for n in range(4))
    for n, answer in enumerate(large):
        assert answer.payload == bytes([n]) * (2 << 20)
    assert large.code() is StatusCode.OK
    del reply, answer


def test_a_conversation_goes_back_and_forth(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(chat=echo_numbers))
    answered = threading.Semaphore(1)

    def requests() -> Iterator[Ask]:
        for n in range(200):
            assert answered.acquire(timeout=30)
            yield Ask(number=n)

    call = SemanticsStub(channel).Chat(requests(), timeout=60)
    for n in range(200):
        assert next(call).number == n
        answered.release()
    assert next(call, None) is None
    assert call.code() is StatusCode.OK and not call.is_active() and not call.cancel()


def test_metadata_goes_both_ways(serve: Serve, channel: tollgate.Channel) -> None:
    seen: List[tollgate.Metadata] = []

    def unary(request: AskView, context: Context) -> Answer:
        seen.append(context.invocation_metadata())
        if request.number == 1:
            context.send_initial_metadata((("head", "1"), ("head", "2"), ("blob-bin", b"\0\xff")))
        context.set_trailing_metadata((("tail-bin", b"\xfe"),))
        return Answer(number=request.number)

    def spread(request: AskView, context: Context) -> Iterator[Answer]:
        if request.number == 1:
            context.send_initial_metadata((("head", "1"),))
        yield Answer()
        context.set_trailing_metadata((("tail", "x"),))

    serve(add, Given(unary=unary, spread=spread))
    stub = SemanticsStub(channel)
    metadata = (("user", "Ada"), ("trace-bin", b"\0\1\xff"), ("user", "Eve"))
    for n in (0, 1):
        reply, call = stub.Unary.with_call(Ask(number=n), metadata=metadata)
        assert reply.number == n and seen.pop() == metadata
        head = (("head", "1"), ("head", "2"), ("blob-bin", b"\0\xff")) if n else ()
        assert call.initial_metadata() == head
        assert call.trailing_metadata() == (("tail-bin", b"\xfe"),)
        assert (call.code(), call.details()) == (StatusCode.OK, "")
        stream = stub.Spread(Ask(number=n), metadata=metadata)
        assert stream.initial_metadata() == ((("head", "1"),) if n else ())
        assert stream.trailing_metadata() == () and stream.code() is None
        assert len(list(stream)) == 1
        assert stream.trailing_metadata() == (("tail", "x"),)
    del reply
    for bad, why in (
        ((("User", "x"),), "User"),
        ((("user", 1),), "must be text or bytes"),
        ((("user", "é"),), "user"),
        (("user",), "must be a pair"),
        (((1, "x"),), "key"),
        ((("a", "x" * 9000),), "8192"),
        ((("grpc-timeout", "1"),), "grpc-timeout"),
    ):
        with pytest.raises(ValueError, match=why):
            stub.Unary(Ask(), metadata=bad)  # type: ignore[arg-type]


def test_errors_carry_all_that_was_said(serve: Serve, channel: tollgate.Channel) -> None:
    status = tollgate.Status(StatusCode.FAILED_PRECONDITION, "not yet", (("tail", "x"),), b"\x08\x09")

    def unary(request: AskView, context: Context) -> Answer:
        if request.number == 0:
            context.abort_with_status(status)
        if request.number == 1:
            context.abort(StatusCode.NOT_FOUND, "no such thing")
        if request.number == 2:
            context.set_code(StatusCode.DATA_LOSS)
            context.set_details("lost")
        if request.number == 3:
            raise KeyError("never mind")
        if request.number == 4:
            context.abort(StatusCode.OK, "")
        if request.number == 5:
            context.set_code(StatusCode.ABORTED)
            raise KeyError("never mind")
        return Answer()

    def spread(request: AskView, context: Context) -> Iterator[Answer]:
        yield Answer(number=1)
        unary(request, context)

    serve(add, Given(unary=unary, spread=spread))
    stub = SemanticsStub(channel)
    logging.disable()
    try:
        for n, code, text in (
            (0, StatusCode.FAILED_PRECONDITION, "not yet"),
            (1, StatusCode.NOT_FOUND, "no such thing"),
            (2, StatusCode.DATA_LOSS, "lost"),
            (3, StatusCode.UNKNOWN, "Exception calling application: 'never mind'"),
            (4, StatusCode.UNKNOWN, "Exception calling application: abort needs an error code, not OK"),
            (5, StatusCode.ABORTED, "Exception calling application: 'never mind'"),
        ):
            stream = stub.Spread(Ask(number=n))
            assert next(stream).number == 1
            for begin in (lambda: stub.Unary(Ask(number=n)), lambda: next(stream), lambda: next(stream)):
                with pytest.raises(tollgate.RpcError) as caught:
                    begin()
                error = caught.value
                assert (error.code(), error.details()) == (code, text)
                assert error.trailing_metadata() == (status.trailing_metadata if n == 0 else ())
                assert tollgate.status_details(error) == (b"\x08\x09" if n == 0 else b"")
                assert str(error) == f"{code.name}: {text}" and error.retry_after() is None
            assert (stream.code(), stream.details()) == (code, text)
    finally:
        logging.disable(logging.NOTSET)


class Unspeakable(Exception):
    """Its text raises one more exception."""

    def __str__(self) -> str:
        raise SystemExit("from __str__")


# Exceptions of handlers, made anew each time since an exception keeps frames, and the callers'
# errors.
ANYTHING: List[Tuple[Callable[[], BaseException], str]] = [
    (lambda: SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt, "KeyboardInterrupt"),
    (asyncio.CancelledError, "CancelledError"),
    (lambda: GeneratorExit("enough"), "GeneratorExit: enough"),
    (lambda: BaseException("odd"), "BaseException: odd"),
    (Unspeakable, "Unspeakable"),
    (lambda: StopIteration("no"), "no"),
]
# In a generator it is another exception; in an iterator it is the end.
STOPS = len(ANYTHING) - 1


def workers() -> int:
    return sum(thread.name.startswith("tollgate-worker") for thread in threading.enumerate())


def test_whatever_a_handler_raises_its_thread_lives(serve: Serve, channel: tollgate.Channel) -> None:
    over = threading.Semaphore(0)

    def raise_it(number: int, context: Context) -> None:
        def leave() -> None:
            over.release()
            raise ANYTHING[number][0]()

        assert context.add_callback(leave)
        raise ANYTHING[number][0]()

    def unary(request: AskView, context: Context) -> Answer:
        if request.number < len(ANYTHING):
            raise_it(request.number, context)
        return Answer(number=request.number)

    def collect(requests: Iterator[AskView], context: Context) -> Answer:
        return [unary(request, context) for request in requests][0]

    class Iterable:
        """Not a generator: those turn StopIteration into RuntimeError."""

        def __init__(self, number: int, context: Context) -> None:
            self.number, self.context, self.first = number, context, True

        def __iter__(self) -> Iterator[Answer]:
            return self

        def __next__(self) -> Answer:
            if not self.first and self.number != STOPS:
                raise_it(self.number, self.context)
            if not self.first:
                raise StopIteration
            self.first = False
            return Answer(number=self.number)

    def spread(request: AskView, context: Context) -> Any:
        return Iterable(request.number, context)

    def chat(requests: Iterator[AskView], context: Context) -> Iterator[Answer]:
        yield Answer(number=1)
        for request in requests:
            if request.number != STOPS:
                raise_it(request.number, context)

    before = workers()
    serve(add, Given(unary=unary, collect=collect, spread=spread, chat=chat), max_workers=2)
    stub = SemanticsStub(channel)
    logging.disable()
    try:
        for number, (_, text) in enumerate(ANYTHING):
            ask = Ask(number=number)
            begins: List[Callable[[], Any]] = [lambda: stub.Unary(ask, timeout=30), lambda: stub.Collect([ask], timeout=30)]
            if number != STOPS:
                begins += [lambda: list(stub.Spread(ask, timeout=30)), lambda: list(stub.Chat(iter([ask]), timeout=30))]
            for begin in begins:
                with pytest.raises(tollgate.RpcError) as caught:
                    begin()
                assert caught.value.code() is StatusCode.UNKNOWN
                assert caught.value.details() == f"Exception calling application: {text}"
                assert over.acquire(timeout=30)
        # Its thread was one of two.
        for n in range(len(ANYTHING), 100):
            assert stub.Unary(Ask(number=n), timeout=30).number == n
        assert workers() == before + 2
    finally:
        logging.disable(logging.NOTSET)


def test_callbacks_of_cancelled_calls_may_raise_anything(serve: Serve, channel: tollgate.Channel) -> None:
    began, over, go_on = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def unary(request: AskView, context: Context) -> Answer:
        def leave() -> None:
            over.release()
            raise SystemExit

        assert context.add_callback(leave)
        began.release()
        go_on.wait(30)
        return Answer()

    serve(add, Given(unary=unary))
    stub = SemanticsStub(channel)
    logging.disable()
    try:
        # All of them run on one thread, which reports the ends of calls.
        for _ in range(3):
            future = stub.Unary.future(Ask())
            assert began.acquire(timeout=30)
            assert future.cancel() and over.acquire(timeout=30)
    finally:
        go_on.set()
        logging.disable(logging.NOTSET)


def test_requests_that_raise_anything_end_their_call(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(chat=echo_numbers, collect=lambda requests, context: Answer(number=len(list(requests)))))
    stub = SemanticsStub(channel)

    def broken(error: BaseException) -> Iterator[Ask]:
        yield Ask(number=1)
        raise error

    logging.disable()
    try:
        for make, text in ANYTHING[:STOPS]:
            for begin in (lambda: list(stub.Chat(broken(make()), timeout=30)), lambda: stub.Collect(broken(make()), timeout=30)):
                with pytest.raises(tollgate.RpcError) as caught:
                    begin()
                assert caught.value.code() is StatusCode.UNKNOWN
                assert caught.value.details() == f"Exception iterating requests: {text}"
    finally:
        logging.disable(logging.NOTSET)


def test_what_logging_raises_ends_no_thread(serve: Serve, channel: tollgate.Channel) -> None:
    def unary(request: AskView, context: Context) -> Answer:
        raise KeyError("oh")

    def refuse(record: logging.LogRecord) -> bool:
        raise SystemExit

    serve(add, Given(unary=unary), max_workers=1)
    stub = SemanticsStub(channel)
    log = logging.getLogger("tollgate")
    log.addFilter(refuse)
    try:
        for _ in range(3):
            with pytest.raises(tollgate.RpcError, match="Exception calling application: 'oh'"):
                stub.Unary(Ask(), timeout=30)
    finally:
        log.removeFilter(refuse)


def test_text_that_is_no_utf8_keeps_its_status(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    def unary(request: AskView, context: Context) -> Answer:
        if request.number == 0:
            raise ValueError("bad \udc80")
        if request.number == 1:
            context.abort(StatusCode.NOT_FOUND, "no \ud800 é \U0001f600")
        if request.number == 2:
            context.set_code(StatusCode.DATA_LOSS)
            context.set_details("lost \udfff")
        if request.number == 3:
            context.set_trailing_metadata((("tail", "x \udc80"),))
            context.abort(StatusCode.NOT_FOUND, "with a trailer")
        return Answer()

    serve(add, Given(unary=unary, chat=echo_numbers))
    stub = SemanticsStub(channel)
    logging.disable()
    try:
        for n, code, text in (
            (0, StatusCode.UNKNOWN, "Exception calling application: bad \\udc80"),
            (1, StatusCode.NOT_FOUND, "no \\ud800 é \U0001f600"),
            (2, StatusCode.DATA_LOSS, "lost \\udfff"),
        ):
            with pytest.raises(tollgate.RpcError) as caught:
                stub.Unary(Ask(number=n))
            assert (caught.value.code(), caught.value.details()) == (code, text)
        with pytest.raises(tollgate.RpcError, match="can't be sent: the value of metadata \"tail\" contains lone surrogates"):
            stub.Unary(Ask(number=3))

        def broken() -> Iterator[Ask]:
            yield Ask()
            raise ValueError("bad \udc80")

        with pytest.raises(tollgate.RpcError) as caught:
            list(stub.Chat(broken(), timeout=30))
        assert caught.value.code() is StatusCode.UNKNOWN
    finally:
        logging.disable(logging.NOTSET)
    for metadata, why in (
        ((("user", "\udc80"),), "the value of metadata \"user\" contains lone surrogates"),
        ((("us\udc80er", "x"),), "a key of metadata contains lone surrogates"),
    ):
        with pytest.raises(ValueError, match=why):
            stub.Unary(Ask(), metadata=metadata)
    # Text for display is escaped; text with a meaning is refused with its name.
    with tollgate.channel(hosts[0].socket, hosts[0].token, app="app \udc80") as other:
        assert other.tenant == "acme"
    with pytest.raises(ValueError, match="the label contains lone surrogates"):
        tollgate.channel(hosts[0].socket, hosts[0].token, label="\udc80")
    with tollgate.channel(hosts[0].socket, hosts[0].token, "host\udc80:1") as other:
        with pytest.raises(ValueError, match="the target contains lone surrogates"):
            SemanticsStub(other).Unary(Ask())


def shown(error: BaseException) -> str:
    """The printable text of an exception."""
    parts = [str(error), repr(error), *traceback.format_exception(type(error), error, error.__traceback__)]
    return "\n".join(parts + [repr(argument) for argument in error.args])


def test_no_error_shows_a_secret(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    socket, token = hosts[0].socket, hosts[0].token
    secret = token[3:]
    serve(add, Given(unary=number))
    for module in (tollgate, tollgate.aio):
        for arguments, why in (
            ((token, socket), "are socket and token swapped"),
            ((socket, socket), "are socket and token swapped"),
            ((token, token), "are socket and token swapped"),
            ((pathlib.Path("/tmp") / token, token), "are socket and token swapped"),
            ((socket, token + "\udc80"), "the token contains lone surrogates"),
            ((socket, token.encode()), "token"),
            ((socket, None), "token"),
        ):
            with pytest.raises((tollgate.RpcError, ValueError, TypeError), match=why) as caught:
                module.channel(*arguments)
            assert secret not in shown(caught.value)
        for option in ("app", "label"):
            with pytest.raises(tollgate.RpcError, match="is a tenant's token") as caught:
                module.channel(socket, token, **{option: token})
            assert secret not in shown(caught.value)
    with tollgate.channel(socket, token, token) as other:
        with pytest.raises(tollgate.RpcError, match="the target is a tenant's token") as caught:
            SemanticsStub(other).Unary(Ask())
        assert secret not in shown(caught.value) and secret not in repr(other) + repr(other._session)
    stub = SemanticsStub(channel)
    for metadata in (
        (("authorization", secret + "é"),),
        (("authorization", secret + "\udc80"),),
        (("authorization", [secret]),),
        (("authorization", secret, 1),),
        ((secret.encode(), "x"),),
        (("authorization", secret + "x" * 9000),),
    ):
        with pytest.raises(ValueError) as refused:
            stub.Unary(Ask(), metadata=metadata)  # type: ignore[arg-type]
        assert secret not in shown(refused.value)


def test_a_value_that_cannot_be_sent_is_named(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    def bad(request: AskView, context: Context) -> Any:
        return Answer(number=-1) if request.number == 0 else Ask()

    def reads(requests: Iterator[AskView], context: Context) -> Answer:
        return Answer(number=sum(request.number for request in requests))

    # Each method exists: a missing one could be reported before the mistake in the request.
    serve(add, Given(unary=bad, chat=echo_numbers, collect=reads))
    stub = SemanticsStub(channel)
    with pytest.raises(ValueError, match=r"interop.Ask.number: -1 isn't an unsigned 64-bit number"):
        stub.Unary(Ask(number=-1))
    with pytest.raises(TypeError, match="the message must be of type interop.Ask, not Answer"):
        stub.Unary(Answer())  # type: ignore[arg-type]
    logging.disable()
    try:
        for n, why in ((0, "interop.Answer.number"), (1, "must be of type interop.Answer")):
            with pytest.raises(tollgate.RpcError, match=why):
                stub.Unary(Ask(number=n))
        with pytest.raises(tollgate.RpcError, match="Exception iterating requests: interop.Ask.number: -1") as caught:
            list(stub.Chat(iter([Ask(number=-1)])))
        assert caught.value.code() is StatusCode.UNKNOWN
    finally:
        logging.disable(logging.NOTSET)
    with pytest.raises(tollgate.RpcError, match="a message has more than 16777216 bytes") as caught:
        stub.Unary(Ask(payload=bytes(channel.max_message_bytes)))
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    with tollgate.channel(hosts[0].socket, hosts[0].token, hosts[1].listen, send_heap_bytes=1 << 20) as narrow:
        stub, large = SemanticsStub(narrow), Ask(payload=bytes(3 << 20))
        for call in (lambda: stub.Unary(large), lambda: list(stub.Chat([large])), lambda: stub.Collect([large])):
            with pytest.raises(tollgate.RpcError, match="into the send heap of 1048576 bytes") as caught:
                call()
            assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(ValueError, match="nan"):
        stub.Unary(Ask(), timeout=float("nan"))


def test_deadlines_end_calls_on_both_sides(serve: Serve, channel: tollgate.Channel) -> None:
    over = threading.Semaphore(0)
    remaining: List[Any] = []

    def unary(request: AskView, context: Context) -> Answer:
        remaining.append(context.time_remaining())
        assert context.add_callback(over.release)
        while context.is_active() and request.number:
            time.sleep(0.01)
        return Answer()

    def chat(requests: Iterator[AskView], context: Context) -> Iterator[Answer]:
        context.add_callback(over.release)
        try:
            next(requests)
        except tollgate.RpcError as error:
            assert error.code() is StatusCode.CANCELLED
            raise
        yield Answer()

    serve(add, Given(unary=unary, chat=chat))
    stub = SemanticsStub(channel)
    stub.Unary(Ask())
    # Without a deadline, the daemons apply their own.
    assert remaining[0] is None or remaining[0] > 600
    assert over.acquire(timeout=30)
    never = threading.Event()

    def no_requests() -> Iterator[Ask]:
        never.wait(30)
        yield from ()

    # Long enough for them to reach their handlers.
    for call in (lambda: stub.Unary(Ask(number=1), timeout=2), lambda: list(stub.Chat(no_requests(), timeout=2))):
        began = time.monotonic()
        with pytest.raises(tollgate.RpcError) as caught:
            call()
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        assert 1.9 < time.monotonic() - began < 20
        assert over.acquire(timeout=30), "the handler is told"
    never.set()
    assert 0 < remaining[1] <= 2
    for past in (0, -5):
        with pytest.raises(tollgate.RpcError) as caught:
            stub.Unary(Ask(), timeout=past)
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
    assert stub.Unary(Ask(), timeout=1e300).number == 0


def test_deadlines_pass_to_the_calls_that_a_handler_makes(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    def left(request: Any, context: Context) -> Answer:
        return Answer(number=round((context.time_remaining() or 0) * 1000))

    behind = tollgate.server(hosts[0].socket, hosts[0].token)
    add(Given(unary=left, collect=left), behind)
    behind.start()
    with tollgate.channel(hosts[0].socket, hosts[0].token) as inner:
        further = SemanticsStub(inner)

        def unary(request: AskView, context: Context) -> Answer:
            # Its own timeout counts only if it is earlier.
            return Answer(number=further.Unary(Ask(), timeout=request.delay_ms or None).number)

        def collect(requests: Iterator[AskView], context: Context) -> Answer:
            return Answer(number=further.Collect(iter([Ask()])).number)

        serve(add, Given(unary=unary, collect=collect))
        stub = SemanticsStub(channel)
        for seconds in (20, 200):
            for answer in (stub.Unary(Ask(), timeout=seconds), stub.Collect(iter([Ask()]), timeout=seconds)):
                assert 0 < answer.number <= seconds * 1000
            assert 0 < stub.Unary(Ask(delay_ms=1000), timeout=seconds).number <= seconds * 1000
        # Without one, the nested call has its own or the daemon's default.
        assert 300_000 < stub.Unary(Ask(delay_ms=1000)).number <= 1_000_000
        assert stub.Unary(Ask()).number > 200_000
        del answer
    behind.stop().wait(30)


def test_callers_give_up_and_handlers_hear_of_it(serve: Serve, channel: tollgate.Channel) -> None:
    over, began = threading.Semaphore(0), threading.Semaphore(0)

    def wait(context: Context) -> None:
        assert context.add_callback(over.release)
        began.release()
        while context.is_active():
            time.sleep(0.01)
        assert not context.add_callback(over.release), "it is over already"

    def unary(request: AskView, context: Context) -> Answer:
        wait(context)
        return Answer()

    def chat(requests: Iterator[AskView], context: Context) -> Iterator[Answer]:
        yield Answer(number=next(requests).number)
        wait(context)

    serve(add, Given(unary=unary, chat=chat))
    stub = SemanticsStub(channel)
    future = stub.Unary.future(Ask())
    assert began.acquire(timeout=30)
    assert future.cancel() and not future.cancel()
    assert over.acquire(timeout=30)
    assert future.code() is StatusCode.CANCELLED
    assert isinstance(future.exception(), tollgate.RpcError)
    with pytest.raises(tollgate.RpcError, match="the caller cancelled the call"):
        future.result()
    # By another thread, while this one waits.
    call = stub.Chat(iter([Ask(number=7)]))
    assert next(call).number == 7 and began.acquire(timeout=30)
    threading.Timer(0.2, call.cancel).start()
    with pytest.raises(tollgate.RpcError) as caught:
        next(call)
    assert caught.value.code() is StatusCode.CANCELLED and call.code() is StatusCode.CANCELLED
    assert over.acquire(timeout=30)
    # By dropping the call.
    call = stub.Chat(iter([Ask()]))
    assert next(call).number == 0 and began.acquire(timeout=30)
    del call
    assert over.acquire(timeout=30)


def test_a_future_has_what_a_call_has(serve: Serve, channel: tollgate.Channel) -> None:
    def collect(requests: Iterator[AskView], context: Context) -> Answer:
        context.send_initial_metadata((("head", "1"),))
        context.set_trailing_metadata((("tail", "2"),))
        return Answer(number=sum(request.number for request in requests))

    serve(add, Given(unary=number, collect=collect))
    stub = SemanticsStub(channel)
    futures = [stub.Unary.future(Ask(number=n)) for n in range(20)]
    assert [future.result().number for future in futures] == list(range(20))
    future = stub.Collect.future(Ask(number=n) for n in range(5))
    assert future.result().number == 10 and future.exception() is None and future.details() == ""
    assert future.initial_metadata() == (("head", "1"),)
    assert future.trailing_metadata() == (("tail", "2"),)
    reply, call = stub.Collect.with_call([Ask(number=1)])
    assert (reply.number, call.initial_metadata()) == (1, (("head", "1"),))
    del reply, futures, future, call


def test_a_slow_reader_stops_its_writer_and_nobody_else(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(unary=number, chat=echo_numbers))
    stub = SemanticsStub(channel)
    made = 0

    def endless() -> Iterator[Ask]:
        nonlocal made
        while True:
            made += 1
            yield Ask(number=made, payload=bytes(1000))

    def settled() -> int:
        before = -1
        while made != before:
            before = made
            time.sleep(1)
            # Every thread involved has had its turn.
            for n in range(50):
                assert stub.Unary(Ask(number=n)).number == n
        return before

    call = stub.Chat(endless())
    stuck = settled()
    assert 0 < stuck < 1000
    for n in range(100):
        assert stub.Unary(Ask(number=n)).number == n
    assert settled() == stuck
    for n in range(1, 2001):
        assert next(call).number == n
    assert made > stuck
    call.cancel()


def test_requests_that_end_with_an_exception_end_the_call(serve: Serve, channel: tollgate.Channel) -> None:
    serve(add, Given(chat=echo_numbers, collect=lambda requests, context: Answer(number=len(list(requests)))))
    stub = SemanticsStub(channel)

    def broken() -> Iterator[Ask]:
        yield Ask(number=1)
        raise KeyError("oh")

    logging.disable()
    try:
        with pytest.raises(tollgate.RpcError, match="Exception iterating requests: 'oh'"):
            list(stub.Chat(broken()))
        with pytest.raises(tollgate.RpcError, match="Exception iterating requests: 'oh'"):
            stub.Collect(broken())
    finally:
        logging.disable(logging.NOTSET)


def test_a_server_may_answer_before_it_has_read_everything(serve: Serve, channel: tollgate.Channel) -> None:
    def collect(requests: Iterator[AskView], context: Context) -> Answer:
        first = next(requests).number
        if first == 1:
            context.abort(StatusCode.OUT_OF_RANGE, "enough")
        return Answer(number=first)

    serve(add, Given(collect=collect))
    stub = SemanticsStub(channel)
    for requests in ([Ask(number=1)] * 5000, (Ask(number=1) for _ in range(5000))):
        with pytest.raises(tollgate.RpcError, match="enough"):
            stub.Collect(requests, timeout=30)
    for requests in ([Ask(number=2)] * 5000, (Ask(number=2) for _ in range(5000))):
        assert stub.Collect(requests, timeout=30).number == 2


def test_calls_of_methods_that_are_marked_are_made_again(hosts: Any, serve: Serve) -> None:
    asked: List[str] = []

    class Hotel(ReservationServicer):
        def Reserve(self, request: ReserveRequestView, context: Context) -> ReserveReply:
            asked.append("Reserve")
            context.abort(StatusCode.UNAVAILABLE, "try again")

        def CheckAvailability(self, request: AvailabilityRequestView, context: Context) -> AvailabilityReply:
            asked.append("CheckAvailability")
            if len(asked) < 3:
                context.abort(StatusCode.UNAVAILABLE, "try again")
            return AvailabilityReply()

    serve(add_ReservationServicer_to_server, Hotel())

    def attempts(method: str, retries: int) -> int:
        asked.clear()
        host, target = hosts[0], hosts[1].listen
        with tollgate.channel(host.socket, host.token, target, retries=retries) as channel:
            stub = ReservationStub(channel)
            try:
                stub.Reserve(ReserveRequest()) if method == "Reserve" else stub.CheckAvailability(AvailabilityRequest())
            except tollgate.RpcError as error:
                assert error.code() is StatusCode.UNAVAILABLE
                return -len(asked)
            return len(asked)

    # A negative value: the call failed.
    assert [attempts("CheckAvailability", retries) for retries in (2, 1, 0)] == [3, -2, -1]
    assert attempts("Reserve", 2) == -1

    async def main() -> None:
        asked.clear()
        host, target = hosts[0], hosts[1].listen
        async with tollgate.aio.channel(host.socket, host.token, target) as channel:
            await ReservationAsyncStub(channel).CheckAvailability(AvailabilityRequest())

    asyncio.run(main())
    assert len(asked) == 3


def test_threads_share_a_channel(serve: Serve, channel: tollgate.Channel) -> None:
    together = threading.Barrier(4)

    def unary(request: AskView, context: Context) -> Answer:
        if request.number >= 1000:
            # As many handlers run at once as there are workers.
            together.wait(30)
        return Answer(number=request.number)

    serve(add, Given(unary=unary), max_workers=4)
    stub = SemanticsStub(channel)
    failures: List[BaseException] = []

    def call(first: int) -> None:
        try:
            for n in range(first, first + 200):
                assert stub.Unary(Ask(number=n), timeout=60).number == n
            assert stub.Unary(Ask(number=1000 + first), timeout=60).number == 1000 + first
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(first,)) for first in (0, 200, 400, 600)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_server_that_stops_finishes_what_it_has_begun(hosts: Any, serve: Serve, channel: tollgate.Channel) -> None:
    began, go_on = threading.Event(), threading.Event()

    def unary(request: AskView, context: Context) -> Answer:
        if request.number == 5:
            began.set()
            assert go_on.wait(30)
        return Answer(number=request.number)

    server = serve(add, Given(unary=unary))
    stub = SemanticsStub(channel)
    future = stub.Unary.future(Ask(number=5))
    assert began.wait(30)
    stopped = server.stop(grace=30)
    assert server.wait_for_termination(timeout=0.1)
    # Calls that come before the daemon knows about the end are answered.
    until = time.monotonic() + 30
    with pytest.raises(tollgate.RpcError) as caught:
        while time.monotonic() < until:
            stub.Unary(Ask())
    assert caught.value.code() is StatusCode.UNAVAILABLE
    go_on.set()
    assert future.result().number == 5
    assert stopped.wait(30) and not server.wait_for_termination()
    del future
    with pytest.raises(ValueError, match="max_workers is 0"):
        tollgate.server(hosts[1].socket, hosts[1].token, max_workers=0)


def test_other_servers_take_over_from_one_that_stops(serve: Serve, channel: tollgate.Channel) -> None:
    def unary(request: AskView, context: Context) -> Answer:
        time.sleep(0.002)
        return Answer(number=request.number)

    stub = SemanticsStub(channel)
    over = threading.Event()
    answered: List[int] = []
    failures: List[BaseException] = []

    def call() -> None:
        try:
            while not over.is_set():
                assert stub.Unary(Ask(number=7)).number == 7
                answered.append(7)
        except BaseException as error:
            failures.append(error)

    # There are more callers than server threads, so calls wait for a thread.
    server = serve(add, Given(unary=unary), max_workers=2)
    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        successor = serve(add, Given(unary=unary), max_workers=2)
        before, until = len(answered), time.monotonic() + 30
        while len(answered) < before + 50 and not failures:
            assert time.monotonic() < until, "calls go on"
            time.sleep(0.001)
        assert server.stop(grace=30).wait(30)
        server = successor
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
