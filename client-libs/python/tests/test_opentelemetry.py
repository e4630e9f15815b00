"""Applications' own spans and the daemons' are one trace: with OpenTelemetry's SDK, between two hosts.

    application on a -> a's client span -> b's server span -> the handler on b -> b's client span -> a's server span -> a server on a
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Tuple

import pytest
import tollgate
import tollgate.aio
import tollgate.opentelemetry
from conftest import Daemon, program
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState
from semantics import Context, Given
from stubs.interop_tollgate import (
    Answer,
    Ask,
    AskView,
    SemanticsAsyncServicer,
    SemanticsAsyncStub,
    SemanticsStub,
    add_SemanticsServicer_to_server,
)

AsyncContext = tollgate.aio.ServicerContext
add = add_SemanticsServicer_to_server

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
STREAMED = "0af7651916cd43dd8448eb211c80319c"
SPAN = "00f067aa0ba902b7"

# The spans that the application exports.
exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exported))
tracer = provider.get_tracer("application")


@pytest.fixture(autouse=True)
def instrumented(hosts: List[Daemon]) -> Iterator[None]:
    """Daemons begin no traces here."""
    for daemon in hosts:
        command = [program("tollgate"), "--socket", daemon.socket, "daemon", "set", "telemetry.sample_per_million=0"]
        subprocess.run(command, check=True, capture_output=True)
    exported.clear()
    tollgate.opentelemetry.instrument()
    yield
    tollgate.opentelemetry.uninstrument()


def spans_of(daemon: Daemon, trace_id: str, side: str) -> List[Tuple[str, str]]:
    """A daemon's spans of a trace, with their parents."""
    run = [program("tollgate"), "--socket", daemon.socket, "trace", trace_id, "--json"]
    shown = subprocess.run(run, capture_output=True, text=True)
    if shown.returncode != 0:
        assert "no span of" in shown.stderr
        return []
    spans = json.loads(shown.stdout)["spans"]
    return [(span["span"], span["parent"]) for span in spans if span["side"] == side]


def ids(span: ReadableSpan) -> Tuple[str, str]:
    """An application's span with its parent."""
    own = span.get_span_context()
    assert own is not None
    return f"{own.span_id:016x}", f"{span.parent.span_id:016x}" if span.parent else ""


def check_chain(hosts: List[Daemon], heard: Optional[str]) -> None:
    """All spans between the application's and the last server's."""
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert set(spans) == {"guest", "handler"}
    own = spans["guest"].get_span_context()
    assert own is not None
    trace_id, (a, b) = f"{own.trace_id:032x}", hosts
    chain = [[ids(spans["guest"])], spans_of(a, trace_id, "client"), spans_of(b, trace_id, "server")]
    chain += [[ids(spans["handler"])], spans_of(b, trace_id, "client"), spans_of(a, trace_id, "server")]
    for parents, children in zip(chain, chain[1:]):
        assert len(parents) == len(children) == 1, chain
        assert children[0][1] == parents[0][0], chain
    # The SDK marks its ids as random, which is a further flag.
    assert heard is not None and int(heard[-2:], 16) & 1
    assert heard[:-2] == f"00-{trace_id}-{chain[-1][0][0]}-"


def guest(flags: int, state: Optional[TraceState] = None, trace_id: str = TRACE) -> context.Context:
    """A context in which a foreign span is current."""
    span = SpanContext(int(trace_id, 16), int(SPAN, 16), False, TraceFlags(flags), state)
    return trace.set_span_in_context(NonRecordingSpan(span), context.Context())


def current() -> Optional[str]:
    """The current span, written as `traceparent`."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def came(to: Any) -> Dict[str, Any]:
    """The metadata of a request."""
    return dict(to.invocation_metadata())


class Attached:
    """Makes a context current."""

    def __init__(self, to: context.Context) -> None:
        self.to = to

    def __enter__(self) -> None:
        self.token = context.attach(self.to)

    def __exit__(self, *error: object) -> None:
        context.detach(self.token)


def test_spans_of_applications_and_daemons_are_one_trace(hosts: Any, serve: Any, channel: tollgate.Channel) -> None:
    a, b = hosts

    def told(request: AskView, to: Context) -> Answer:
        return Answer(payload=came(to).get("traceparent", "").encode())

    def relay(request: AskView, to: Context) -> Answer:
        with tracer.start_as_current_span("handler"):
            answer: Answer = onward.Unary(request.to_owned()).to_owned()
            return answer

    last = tollgate.server(a.socket, a.token)
    add(Given(unary=told), last)
    last.start()
    with tollgate.channel(b.socket, b.token, a.listen) as back:
        onward = SemanticsStub(back)
        serve(add, Given(unary=relay))
        with tracer.start_as_current_span("guest"):
            heard = bytes(SemanticsStub(channel).Unary(Ask(number=7)).payload).decode()
        check_chain(hosts, heard)
    last.stop(grace=5).wait()


def test_the_same_on_an_event_loop(hosts: Any) -> None:
    a, b = hosts

    class Last(SemanticsAsyncServicer):
        async def Unary(self, request: AskView, to: AsyncContext) -> Answer:
            return Answer(payload=came(to).get("traceparent", "").encode())

    class Relay(SemanticsAsyncServicer):
        def __init__(self, onward: SemanticsAsyncStub) -> None:
            self.onward = onward
            self.seen: List[Tuple[Optional[str], Optional[str]]] = []

        async def Unary(self, request: AskView, to: AsyncContext) -> Answer:
            if request.number != 7:
                before = current()
                await asyncio.sleep(0.01)
                self.seen.append((before, current()))
                return Answer()
            with tracer.start_as_current_span("handler"):
                answer: Answer = (await self.onward.Unary(request.to_owned())).to_owned()
                return answer

    async def main() -> None:
        last, server = tollgate.aio.server(a.socket, a.token), tollgate.aio.server(b.socket, b.token)
        add(Last(), last)
        async with tollgate.aio.channel(b.socket, b.token, a.listen) as back:
            relay = Relay(SemanticsAsyncStub(back))
            add(relay, server)
            # The context in which servers are started doesn't affect handlers.
            with tracer.start_as_current_span("start"):
                await last.start()
                await server.start()
            exported.clear()
            async with tollgate.aio.channel(a.socket, a.token, b.listen) as channel:
                stub = SemanticsAsyncStub(channel)
                with tracer.start_as_current_span("guest"):
                    heard = bytes((await stub.Unary(Ask(number=7))).payload).decode()
                check_chain(hosts, heard)
                await stub.Unary(Ask(number=1))
                assert relay.seen == [(None, None)]
                # Concurrent calls are each in their own trace.
                relay.seen.clear()
                calls = []
                for number in range(1, 21):
                    span = SpanContext(number, 7, False, TraceFlags(0))
                    with Attached(trace.set_span_in_context(NonRecordingSpan(span), context.Context())):
                        calls.append(stub.Unary(Ask(number=100)))
                await asyncio.gather(*calls)
                assert sorted(relay.seen) == [(f"00-{n:032x}-{7:016x}-00",) * 2 for n in range(1, 21)]
                del calls
        await last.stop(grace=5)
        await server.stop(grace=5)

    asyncio.run(main())


def test_streams_are_in_the_trace_like_other_calls(hosts: Any, serve: Any, channel: tollgate.Channel) -> None:
    notes: List[Tuple[str, Optional[str], Optional[str]]] = []

    def note(place: str, to: Any) -> None:
        notes.append((place, came(to).get("traceparent"), current()))

    def collect(requests: Iterator[AskView], to: Context) -> Answer:
        list(requests)
        note("collect", to)
        return Answer()

    def spread(request: AskView, to: Context) -> Iterator[Answer]:
        note("spread", to)
        yield Answer()
        note("spread later", to)

    def chat(requests: Iterator[AskView], to: Context) -> Iterator[Answer]:
        for _ in requests:
            note("chat", to)
            yield Answer()

    def asks() -> Iterator[Ask]:
        assert current() == f"00-{STREAMED}-{SPAN}-01"
        yield Ask()

    serve(add, Given(collect=collect, spread=spread, chat=chat))
    stub = SemanticsStub(channel)
    with Attached(guest(1, trace_id=STREAMED)):
        stub.Collect([Ask()])
        stub.Collect(asks())
        assert len(list(stub.Spread(Ask()))) == 1
        assert len(list(stub.Chat(asks()))) == 1
    assert [place for place, _, _ in notes] == ["collect", "collect", "spread", "spread later", "chat"]
    for _, told, there in notes:
        assert told == there and told is not None and STREAMED in told
    spans = spans_of(hosts[0], STREAMED, "client")
    assert len(spans) == 4 and {parent for _, parent in spans} == {SPAN}


def test_streams_on_an_event_loop(hosts: Any) -> None:
    notes: List[Tuple[Optional[str], Optional[str]]] = []

    class Servicer(SemanticsAsyncServicer):
        async def Collect(self, request_iterator: AsyncIterator[AskView], to: AsyncContext) -> Answer:
            async for _ in request_iterator:
                notes.append((came(to).get("traceparent"), current()))
            return Answer()

        async def Spread(self, request: AskView, to: AsyncContext) -> AsyncIterator[Answer]:
            for _ in range(2):
                notes.append((came(to).get("traceparent"), current()))
                yield Answer()

    async def main() -> None:
        server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        add(Servicer(), server)
        await server.start()
        async with tollgate.aio.channel(hosts[0].socket, hosts[0].token, hosts[1].listen) as channel:
            stub = SemanticsAsyncStub(channel)
            with Attached(guest(0)):
                collected, spread = stub.Collect([Ask()]), stub.Spread(Ask())
            await collected
            assert len([answer async for answer in spread]) == 2
            del collected
        await server.stop(grace=5)

    asyncio.run(main())
    assert notes == [(f"00-{TRACE}-{SPAN}-00",) * 2] * 3


def test_what_is_passed_on_and_what_is_not(hosts: Any, serve: Any, channel: tollgate.Channel) -> None:
    seen: List[Tuple[Dict[str, Any], Optional[str], object]] = []

    def witness(request: AskView, to: Context) -> Answer:
        seen.append((came(to), current(), baggage.get_baggage("guest")))
        return Answer()

    serve(add, Given(unary=witness), max_workers=1)
    stub = SemanticsStub(channel)

    def heard(*metadata: Any) -> Tuple[Dict[str, Any], Optional[str], object]:
        for call in (stub.Unary, stub.Unary.with_call, lambda *a, **k: stub.Unary.future(*a, **k).result()):
            call(Ask(), metadata=iter(metadata))
        first, second, third = seen
        assert first == second == third
        seen.clear()
        return first

    # Without a span nothing is sent.
    assert heard() == ({}, None, None)
    assert heard(("user", "Ada")) == ({"user": "Ada"}, None, None)
    own = f"00-{TRACE}-{SPAN}-00"
    with Attached(guest(0, TraceState([("vendor", "1")]))):
        # A context that isn't sampled is passed on as such, and nothing records it.
        assert heard(("user", "Ada")) == ({"user": "Ada", "traceparent": own, "tracestate": "vendor=1"}, own, None)
        assert not spans_of(hosts[0], TRACE, "client") and not exported.get_finished_spans()
        # The caller's own metadata stays, and is parsed as strictly as by daemons.
        other = own.replace(TRACE, STREAMED)
        assert heard(("traceparent", other)) == ({"traceparent": other}, other, None)
        for nonsense in ("0-1-1-1", "nonsense", own.replace(SPAN, "0" * 16), own.upper()):
            assert heard(("traceparent", nonsense)) == ({"traceparent": nonsense}, None, None)
        # No call fails for lack of room: all pairs are taken, or all but one.
        taken = tuple((f"key-{n}", "x") for n in range(64))
        assert heard(*taken) == (dict(taken), None, None)
        assert heard(*taken[1:]) == ({**dict(taken[1:]), "traceparent": own}, own, None)
        with pytest.raises(ValueError, match="each item of metadata must be a pair, not an object of type int"):
            stub.Unary(Ask(), metadata=(7,))  # type: ignore[arg-type]
    with Attached(baggage.set_baggage("guest", "Ada", guest(0))):
        assert heard() == ({"traceparent": own, "baggage": "guest=Ada"}, own, "Ada")
    # A handler's remains on its thread don't reach the next handler.
    tollgate.opentelemetry.uninstrument()
    with Attached(guest(0)):
        assert heard() == ({}, None, None)


def test_it_says_what_it_wants() -> None:
    script = "import sys; sys.modules['opentelemetry'] = None; import tollgate.aio; import tollgate.opentelemetry"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert child.returncode == 1
    assert child.stderr.splitlines()[-1].startswith("ImportError: tollgate.opentelemetry needs the package opentelemetry-api (")
    assert child.stderr.endswith("): pip install 'tollgate[opentelemetry]'\n")
