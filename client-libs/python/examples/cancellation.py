"""Calls that end early, by deadline or by the caller, and the effect on their handlers:
cancellation.py SOCKET TOKEN"""

import sys
import threading
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


class Slow(SemanticsServicer):
    def __init__(self) -> None:
        self.over = threading.Semaphore(0)

    def Unary(self, request: AskView, context: tollgate.ServicerContext) -> Answer:
        # Runs on another thread when the call is over; here that is before the handler ends.
        context.add_callback(self.over.release)
        while context.is_active():
            time.sleep(0.01)
        return Answer()

    def Spread(self, request: AskView, context: tollgate.ServicerContext) -> Iterator[Answer]:
        context.add_callback(self.over.release)
        number = 0
        while context.is_active():
            yield Answer(number=number)
            number += 1


def main() -> None:
    socket, token = sys.argv[1:]
    slow = Slow()
    server = tollgate.server(socket, token)
    add_SemanticsServicer_to_server(slow, server)
    server.start()
    with tollgate.channel(socket, token) as channel:
        stub = SemanticsStub(channel)
        try:
            stub.Unary(Ask(), timeout=1)
        except tollgate.RpcError as error:
            print(error.code().name)
        slow.over.acquire()
        print("the handler saw the deadline")

        call = stub.Spread(Ask())
        for answer in call:
            if answer.number == 3:
                break
        call.cancel()
        del answer
        slow.over.acquire()
        print("the handler saw that the caller gave up:", call.code())
    server.stop(grace=1).wait()


main()
