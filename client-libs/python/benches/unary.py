"""Unary calls of a small message: Tollgate and grpcio, one after the other in turns, so that both meet the same machine.

    python unary.py SOCKET TOKEN [SECONDS]

Prints calls per second and the CPU time of the calling process per call, of Tollgate's threads and of grpcio's, from a synchronous client
to a server in another process with ten threads. The daemon is not the client's: its CPU isn't counted; nor is the server's. `.ci/python
bench` builds what it takes as released and runs it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from concurrent import futures
from typing import Any, Callable, Dict, List, Tuple

# Rounds of each, and calls before the first.
ROUNDS = 10
WARM_UP = 200


def tollgate_server(socket: str, token: str, ready: Any) -> None:
    import tollgate
    from stubs.hotel_tollgate import ReservationServicer, ReserveReply, add_ReservationServicer_to_server

    class Hotel(ReservationServicer):
        def Reserve(self, request: Any, context: Any) -> ReserveReply:
            return ReserveReply(reservation_id=request.room_count)

    server = tollgate.server(socket, token, max_workers=10)
    add_ReservationServicer_to_server(Hotel(), server)
    server.start()
    ready.send(None)
    server.wait_for_termination()


def grpc_server(ready: Any) -> None:
    import grpc
    import hotel_pb2
    import hotel_pb2_grpc

    class Hotel(hotel_pb2_grpc.ReservationServicer):  # type: ignore[misc]
        def Reserve(self, request: Any, context: Any) -> Any:
            return hotel_pb2.ReserveReply(reservation_id=request.room_count)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=10))
    hotel_pb2_grpc.add_ReservationServicer_to_server(Hotel(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(port)
    server.wait_for_termination()


def started(target: Callable[..., None], *arguments: Any) -> Any:
    """The first line of a server process, printed when it is ready."""
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=target, args=(*arguments, theirs), daemon=True).start()
    return ours.recv()


def tollgate_call(socket: str, token: str) -> Callable[[], None]:
    import tollgate
    from stubs.hotel_tollgate import ReservationStub, ReserveRequest

    stub = ReservationStub(tollgate.channel(socket, token))

    def call() -> None:
        reply = stub.Reserve(ReserveRequest(customer_name="Ada", room_count=3), timeout=10)
        assert reply.reservation_id == 3

    return call


def grpc_call(port: int) -> Callable[[], None]:
    import grpc
    import hotel_pb2
    import hotel_pb2_grpc

    stub = hotel_pb2_grpc.ReservationStub(grpc.insecure_channel(f"127.0.0.1:{port}"))

    def call() -> None:
        reply = stub.Reserve(hotel_pb2.ReserveRequest(customer_name="Ada", room_count=3), timeout=10)
        assert reply.reservation_id == 3

    return call


def measured(call: Callable[[], None], seconds: float) -> Tuple[float, float]:
    """Calls per second, and microseconds of this process's CPU per call."""
    count, begin, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < begin + seconds:
        for _ in range(20):
            call()
        count += 20
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return count / wall, cpu / count * 1e6


def main() -> None:
    socket, token = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
    started(tollgate_server, socket, token)
    port = started(grpc_server)
    calls = {"tollgate": tollgate_call(socket, token), "grpcio": grpc_call(port)}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    results: Dict[str, List[Tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            results[name].append(measured(call, seconds))
    rates = {}
    for name, turns in results.items():
        rates[name] = statistics.median(rate for rate, _ in turns)
        cpu = statistics.median(cpu for _, cpu in turns)
        print(f"{name}: {rates[name]:.0f} calls/s, {cpu:.1f} us of the client's CPU per call")
    print(f"ratio: {rates['tollgate'] / rates['grpcio']:.2f}")


if __name__ == "__main__":
    main()
