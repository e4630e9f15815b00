"""A large value that is made in the send heap and read in the receive heap, without a copy:
zero_copy.py SOCKET TOKEN"""

import sys
from typing import cast

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoMessageView, EchoServicer, EchoStub, add_EchoServicer_to_server

SIZE = 4 << 20


class Echo(EchoServicer):
    def Echo(self, request: EchoMessageView, context: tollgate.ServicerContext) -> EchoMessage:
        # A memoryview of the shared memory into which the daemon delivered the request; no copy was
        # made.
        payload = request.payload
        return EchoMessage(payload=bytes([payload[0], payload[-1]]))


def main() -> None:
    socket, token = sys.argv[1:]
    heap = 16 << 20
    server = tollgate.server(socket, token, receive_heap_bytes=heap)
    add_EchoServicer_to_server(Echo(), server)
    server.start()
    with tollgate.channel(socket, token, send_heap_bytes=heap) as channel:
        stub = EchoStub(channel)
        buffer = channel.buffer(SIZE)
        buffer.view[:] = bytes(SIZE)
        buffer.view[0], buffer.view[-1] = 1, 2
        # From here on it is read-only and can be sent any number of times.
        picture = buffer.freeze()
        for _ in range(3):
            # Fields of bytes accept memoryviews, too, which their type doesn't say.
            reply = stub.Echo(EchoMessage(payload=cast(bytes, picture)))
            print(list(reply.payload))
        del reply
    server.stop(grace=1).wait()


main()
