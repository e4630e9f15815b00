"""How calls fail: errors.py SOCKET TOKEN"""

import logging
import sys

import tollgate
from stubs.hotel_tollgate import (
    AvailabilityRequest,
    ReservationServicer,
    ReservationStub,
    ReserveReply,
    ReserveRequest,
    ReserveRequestView,
    add_ReservationServicer_to_server,
)


class Hotel(ReservationServicer):
    def Reserve(self, request: ReserveRequestView, context: tollgate.ServicerContext) -> ReserveReply:
        if request.room_count == 0:
            context.abort(tollgate.StatusCode.INVALID_ARGUMENT, "room_count is 0; book at least one room")
        if request.room_count > 9:
            # Details are a serialized google.rpc.Status, in the place where gRPC's clients look for
            # it.
            details = b"\x08\x09\x12\x04full"
            context.abort_with_status(
                tollgate.Status(tollgate.StatusCode.FAILED_PRECONDITION, "full", (("rooms", "9"),), details)
            )
        return ReserveReply(reservation_id=1 // (request.room_count - 1))


def main() -> None:
    logging.disable()
    socket, token = sys.argv[1:]
    server = tollgate.server(socket, token)
    add_ReservationServicer_to_server(Hotel(), server)
    server.start()
    with tollgate.channel(socket, token) as channel:
        stub = ReservationStub(channel)
        for rooms in (0, 10, 1):
            try:
                stub.Reserve(ReserveRequest(room_count=rooms))
            except tollgate.RpcError as error:
                print(error, dict(error.trailing_metadata()), tollgate.status_details(error))
        try:
            stub.CheckAvailability(AvailabilityRequest())
        except tollgate.RpcError as error:
            print(error)
    server.stop(grace=1).wait()


main()
