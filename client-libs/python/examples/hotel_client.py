"""Books a room, asks for the rooms that are left, and prints the elapsed time: hotel_client.py
SOCKET TOKEN [TARGET [CALLS]]"""

import sys
import time

import tollgate
from stubs.hotel_tollgate import AvailabilityRequest, ReservationStub, ReserveRequest, Stay


def main() -> None:
    socket, token = sys.argv[1:3]
    target = sys.argv[3] if len(sys.argv) > 3 else ""
    calls = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    with tollgate.channel(socket, token, target) as channel:
        stub = ReservationStub(channel)
        begin = time.monotonic()
        for _ in range(calls):
            request = ReserveRequest(
                customer_name="Ada",
                hotel_ids=["ritz"],
                stay=Stay(in_date="2026-05-01", out_date="2026-05-03"),
                room_count=1,
            )
            reply = stub.Reserve(request, timeout=5, metadata=(("purpose", "holiday"),))
            print(f"reservation {reply.reservation_id}")
            del reply
        print(f"{calls} calls in {time.monotonic() - begin:.6f} s")
        left = stub.CheckAvailability(AvailabilityRequest(hotel_ids=["ritz"]), timeout=5).rooms_left
        for hotel, rooms in left.items():
            print(f"{hotel}: {rooms} rooms left")


main()
