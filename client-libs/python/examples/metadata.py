"""Metadata of requests and responses, and trailers: metadata.py SOCKET TOKEN"""

import sys

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoMessageView, EchoServicer, EchoStub, add_EchoServicer_to_server


class Echo(EchoServicer):
    def Echo(self, request: EchoMessageView, context: tollgate.ServicerContext) -> EchoMessage:
        asked = dict(context.invocation_metadata())
        context.send_initial_metadata((("greeting", f"hello {asked['user']!s}"),))
        context.set_trailing_metadata((("trace-bin", asked["trace-bin"]),))
        return EchoMessage(payload=bytes(request.payload))


def main() -> None:
    socket, token = sys.argv[1:]
    server = tollgate.server(socket, token)
    add_EchoServicer_to_server(Echo(), server)
    server.start()
    with tollgate.channel(socket, token) as channel:
        # Keys that end in -bin have bytes, the others text.
        metadata = (("user", "Ada"), ("trace-bin", b"\x00\xff"))
        reply, call = EchoStub(channel).Echo.with_call(EchoMessage(payload=b"x"), metadata=metadata)
        print("beside the response:", call.initial_metadata())
        print("behind it:", call.trailing_metadata())
        del reply
    server.stop(grace=1).wait()


main()
