"""Tollgate for Python: typed calls through the host's daemon, which enforces policies, marshals and transports.

    channel = tollgate.channel("/run/tollgate.sock", target="127.0.0.1:7472")
    stub = ReservationStub(channel)  # generated: tollgate gen --lang python --out stubs hotel.proto
    reply = stub.Reserve(ReserveRequest(customer_name="Ada", room_count=1), timeout=5)
    print(reply.reservation_id)

A channel or server without a token takes it from the environment: the variable TOLLGATE_TOKEN, or the file that TOLLGATE_TOKEN_FILE names. Do not
pass tokens on a command line: every user of the host can read those.

Names are those that users of gRPC know. What is received is a view into shared memory: its attributes are read when they are asked for,
`bytes` are memoryviews, and the memory is given back when nothing of it is held any more; `to_owned()` makes a message of it.

`tollgate.aio` is the same for asyncio.

A process that was forked from the one that opened a channel or server can't use it: it gets a RuntimeError, and opens its own.
"""

from __future__ import annotations

from tollgate import _core
from tollgate._channel import (
    Call,
    Channel,
    Future,
    StreamCall,
    StreamStream,
    StreamUnary,
    UnaryStream,
    UnaryUnary,
)
from tollgate._server import Server, ServicerContext
from tollgate._status import (
    Metadata,
    MetadataLike,
    MetadataValue,
    RpcError,
    Status,
    StatusCode,
    status_details,
)

SendBuffer = _core.SendBuffer

# As functions, like gRPC's: tollgate.channel(...), tollgate.server(...).
channel = Channel
insecure_channel = Channel
server = Server

__all__ = [
    "Call",
    "Channel",
    "Future",
    "Metadata",
    "MetadataLike",
    "MetadataValue",
    "RpcError",
    "SendBuffer",
    "Server",
    "ServicerContext",
    "Status",
    "StatusCode",
    "StreamCall",
    "StreamStream",
    "StreamUnary",
    "UnaryStream",
    "UnaryUnary",
    "channel",
    "insecure_channel",
    "server",
    "status_details",
]
