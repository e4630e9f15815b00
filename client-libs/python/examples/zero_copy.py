"""A large value that is made where it is sent from, and read where it was received: zero_copy.py SOCKET TOKEN"""

import sys
from typing import cast

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoMessageView, EchoServicer, EchoStub, add_EchoServicer_to_server

SIZE = 4 << 20


class Echo(EchoServicer):
    def Echo(self, request: EchoMessageView, context: tollgate.ServicerContext) -> EchoMessage:
        # A memoryview of the shared memory that the daemon delivered; nothing was copied for it.
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
        # From here on it can't be changed, and can be sent as often as one likes.
        picture = buffer.freeze()
        for _ in range(3):
            # Fields of bytes take memoryviews, too, which their type doesn't say.
            reply = stub.Echo(EchoMessage(payload=cast(bytes, picture)))
            print(list(reply.payload))
        del reply
    server.stop(grace=1).wait()


main()
