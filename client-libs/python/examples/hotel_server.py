"""A hotel that books everything, with asyncio: hotel_server.py SOCKET TOKEN

Reservations get numbers, and each hotel has rooms left as long as its name.
"""

import asyncio
import itertools
import sys

import tollgate
import tollgate.aio
from stubs.hotel_tollgate import (
    AvailabilityReply,
    AvailabilityRequestView,
    ReservationAsyncServicer,
    ReserveReply,
    ReserveRequestView,
    add_ReservationServicer_to_server,
)


class Hotel(ReservationAsyncServicer):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def Reserve(self, request: ReserveRequestView, context: tollgate.aio.ServicerContext) -> ReserveReply:
        if request.room_count == 0:
            code = tollgate.StatusCode.INVALID_ARGUMENT
            await context.abort(code, "room_count is 0; book at least one room")
        print(f"{request.customer_name} books {request.room_count} rooms", flush=True)
        return ReserveReply(reservation_id=next(self._numbers), hotel_ids=request.hotel_ids)

    async def CheckAvailability(
        self, request: AvailabilityRequestView, context: tollgate.aio.ServicerContext
    ) -> AvailabilityReply:
        return AvailabilityReply(rooms_left={hotel: len(hotel) for hotel in request.hotel_ids})


async def main() -> None:
    server = tollgate.aio.server(sys.argv[1], sys.argv[2])
    add_ReservationServicer_to_server(Hotel(), server)
    await server.start()
    print("serving", flush=True)
    await server.wait_for_termination()


asyncio.run(main())
