"""gRPC's health service, `grpc.health.v1.Health`, for servers of both kinds.

    servicer = health.HealthServicer()
    health.add_HealthServicer_to_server(servicer, server)
    servicer.set("hotel.Reservation", health.SERVING)

The compiled code answers, without the interpreter. Callers make their stubs from gRPC's
health.proto.
"""

from __future__ import annotations

import enum
from typing import Protocol, Union

from tollgate import _core


class ServingStatus(enum.IntEnum):
    """The health of a service."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    # The service isn't known (any more).
    SERVICE_UNKNOWN = 3


UNKNOWN = ServingStatus.UNKNOWN
SERVING = ServingStatus.SERVING
NOT_SERVING = ServingStatus.NOT_SERVING
SERVICE_UNKNOWN = ServingStatus.SERVICE_UNKNOWN


class _Server(Protocol):
    def _add_health(self, health: _core.Health) -> None: ...


class HealthServicer:
    """The health of one server's services. The server as a whole, whose name is "", is SERVING."""

    def __init__(self) -> None:
        self._health = _core.Health()

    def set(self, service: str, status: Union[ServingStatus, int]) -> None:
        """Sets the health of a service, named with its package. Callable from any thread."""
        self._health.set(service, ServingStatus(status))

    def enter_graceful_shutdown(self) -> None:
        """Sets everything to NOT_SERVING for good; watches end once they have reported this. A
        stopping server does the same."""
        self._health.shut_down()


def add_HealthServicer_to_server(servicer: HealthServicer, server: _Server) -> None:
    """The server serves it from its start on."""
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
