"""Calls hotel.Echo until the file `stop` exists, and fails with the first call that fails.

    test-calls.py SOCKET TOKEN

Echo isn't idempotent, so the library repeats no call. `calls` has the number of calls so far.
"""

import os
import sys

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoStub

calls = 0
with tollgate.channel(*sys.argv[1:], reconnect=False) as channel:
    stub = EchoStub(channel)
    while not os.path.exists("/srv/stop"):
        payload = f"call {calls}".encode()
        reply = stub.Echo(EchoMessage(payload=payload), timeout=5)
        if bytes(reply.payload) != payload:
            sys.exit(f"call {calls} got another call's reply: {bytes(reply.payload)!r}")
        del reply
        calls += 1
        if calls % 100 == 0:
            with open("/srv/calls.new", "w") as file:
                file.write(str(calls))
            os.replace("/srv/calls.new", "/srv/calls")
print(calls)
