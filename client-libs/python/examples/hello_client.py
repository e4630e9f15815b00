"""The smallest client: hello_client.py SOCKET TOKEN [TARGET]"""

import sys

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoStub

with tollgate.channel(*sys.argv[1:]) as channel:
    reply = EchoStub(channel).Echo(EchoMessage(payload=b"world"), timeout=5)
    print(bytes(reply.payload).decode())
    # The reply is a view into shared memory: drop it before the channel is closed.
    del reply
