"""gRPC's health service, `grpc.health.v1.Health`, for servers of both kinds.

    servicer = health.HealthServicer()
    health.add_HealthServicer_to_server(servicer, server)
    servicer.set("hotel.Reservation", health.SERVING)

It is answered without the interpreter. Who calls it makes stubs of gRPC's health.proto, as of any other.
"""

from __future__ import annotations

import enum
from typing import Protocol, Union

from tollgate import _core


class ServingStatus(enum.IntEnum):
    """How a service is."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    # Nothing is known of it (any more).
    SERVICE_UNKNOWN = 3


UNKNOWN = ServingStatus.UNKNOWN
SERVING = ServingStatus.SERVING
NOT_SERVING = ServingStatus.NOT_SERVING
SERVICE_UNKNOWN = ServingStatus.SERVICE_UNKNOWN


class _Server(Protocol):
    def _add_health(self, health: _core.Health) -> None: ...


class HealthServicer:
    """What is said of one server's services. The server as a whole, whose name is "", is SERVING."""

    def __init__(self) -> None:
        self._health = _core.Health()

    def set(self, service: str, status: Union[ServingStatus, int]) -> None:
        """From now on a service, with its package, is so. Any thread may say it."""
        self._health.set(service, ServingStatus(status))

    def enter_graceful_shutdown(self) -> None:
        """Everything is NOT_SERVING, whatever is said later, and watches end when they have said so. A server that stops does the same."""
        self._health.shut_down()


def add_HealthServicer_to_server(servicer: HealthServicer, server: _Server) -> None:
    """Has the server serve it once it starts."""
    server._add_health(servicer._health)


__all__ = [
    "NOT_SERVING",
    "SERVICE_UNKNOWN",
    "SERVING",
    "UNKNOWN",
    "HealthServicer",
    "ServingStatus",
    "add_HealthServicer_to_server",
]
