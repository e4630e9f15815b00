"""The smallest server: hello_server.py SOCKET TOKEN"""

import sys

import tollgate
from stubs.hotel_tollgate import EchoMessage, EchoMessageView, EchoServicer, add_EchoServicer_to_server


class Hello(EchoServicer):
    def Echo(self, request: EchoMessageView, context: tollgate.ServicerContext) -> EchoMessage:
        return EchoMessage(payload=b"hello, " + bytes(request.payload))


server = tollgate.server(sys.argv[1], sys.argv[2])
add_EchoServicer_to_server(Hello(), server)
server.start()
print("serving", flush=True)
server.wait_for_termination()
