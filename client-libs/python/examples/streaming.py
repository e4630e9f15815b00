"""Calls of all four types, and backpressure from a slow reader: streaming.py SOCKET TOKEN"""

import sys
import time
from typing import Iterator

import tollgate
from stubs.interop_tollgate import (
    Answer,
    Ask,
    AskView,
    SemanticsServicer,
    SemanticsStub,
    add_SemanticsServicer_to_server,
)


class Numbers(SemanticsServicer):
    def Collect(self, request_iterator: Iterator[AskView], context: tollgate.ServicerContext) -> Answer:
        return Answer(number=sum(request.number for request in request_iterator))

    def Spread(self, request: AskView, context: tollgate.ServicerContext) -> Iterator[Answer]:
        for number in range(request.responses):
            yield Answer(number=number)

    def Chat(self, request_iterator: Iterator[AskView], context: tollgate.ServicerContext) -> Iterator[Answer]:
        for request in request_iterator:
            yield Answer(number=request.number * 2)


def main() -> None:
    socket, token = sys.argv[1:]
    server = tollgate.server(socket, token)
    add_SemanticsServicer_to_server(Numbers(), server)
    server.start()
    with tollgate.channel(socket, token) as channel:
        stub = SemanticsStub(channel)
        print("collected", stub.Collect(Ask(number=number) for number in range(5)).number)
        print("spread", [answer.number for answer in stub.Spread(Ask(responses=5))])
        print("chatted", [answer.number for answer in stub.Chat(Ask(number=number) for number in range(5))])

        made = 0

        def endless() -> Iterator[Ask]:
            nonlocal made
            while True:
                made += 1
                yield Ask(number=made)

        call = stub.Chat(endless())
        time.sleep(0.2)
        # The client reads no answers, so the server stops reading requests, so no more are made.
        print("stopped", made < 1000)
        print("goes on", next(call).number)
        call.cancel()
    server.stop(grace=1).wait()


main()
