"""gRPC's health service, on servers of both kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tollgate
import tollgate.aio
from stubs.grpc_health_v1_tollgate import HealthCheckRequest, HealthStub
from tollgate import StatusCode, health

ROOMS = "hotel.Reservation"


def asked(stub: HealthStub, service: str) -> int:
    return int(stub.Check(HealthCheckRequest(service=service)).status)


def test_who_asks_and_who_watches_hears_how_services_are(hosts: Any, channel: tollgate.Channel) -> None:
    server = tollgate.server(hosts[1].socket, hosts[1].token)
    servicer = health.HealthServicer()
    health.add_HealthServicer_to_server(servicer, server)
    server.start()
    stub = HealthStub(channel)
    assert asked(stub, "") == health.SERVING
    with pytest.raises(tollgate.RpcError, match=ROOMS) as caught:
        asked(stub, ROOMS)
    assert caught.value.code() is StatusCode.NOT_FOUND
    watch = stub.Watch(HealthCheckRequest(service=ROOMS))
    assert next(watch).status == health.SERVICE_UNKNOWN
    for status in (health.SERVING, health.NOT_SERVING):
        servicer.set(ROOMS, status)
        assert next(watch).status == status and asked(stub, ROOMS) == status
    servicer.set(ROOMS, health.SERVICE_UNKNOWN)
    assert next(watch).status == health.SERVICE_UNKNOWN
    servicer.set(ROOMS, 1)
    assert next(watch).status == health.SERVING
    with pytest.raises(ValueError, match="9 is not a valid ServingStatus"):
        servicer.set(ROOMS, 9)
    # A stopping server reports it, and a watch doesn't delay its end.
    assert server.stop(grace=30).wait(20)
    assert next(watch).status == health.NOT_SERVING
    assert next(watch, None) is None
    other = tollgate.server(hosts[1].socket, hosts[1].token)
    health.add_HealthServicer_to_server(servicer, other)
    with pytest.raises(ValueError, match="belongs to the server that it was first added to"):
        other.start()
    other.stop().wait(30)


def test_the_same_on_an_event_loop(hosts: Any, channel: tollgate.Channel) -> None:
    async def main() -> None:
        server = tollgate.aio.server(hosts[1].socket, hosts[1].token)
        servicer = health.HealthServicer()
        health.add_HealthServicer_to_server(servicer, server)
        await server.start()
        stub = HealthStub(channel)

        def calls() -> None:
            assert asked(stub, "") == health.SERVING
            servicer.enter_graceful_shutdown()
            assert asked(stub, "") == health.NOT_SERVING

        await asyncio.get_running_loop().run_in_executor(None, calls)
        await server.stop(grace=30)

    asyncio.run(main())
