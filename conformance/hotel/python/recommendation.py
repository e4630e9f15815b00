"""recommendation in Python, with asyncio: answers exactly as services/recommendation.rs does.

    hotel data recommendation > offers
    recommendation.py /run/tollgate.sock offers     with the tenant's token in TOLLGATE_TOKEN
"""

import asyncio
import math
import signal
import sys
from typing import Callable, NamedTuple

import tollgate
import tollgate.aio
from stubs.recommendation_tollgate import (
    RecommendationAsyncServicer,
    RequestView,
    Result,
    add_RecommendationServicer_to_server,
)

# How long calls that have come may take when this is told to end.
GRACE_S = 10
EARTH_RADIUS_KM = 6371.0
RADIANS = math.pi / 180.0


class Offer(NamedTuple):
    hotel: str
    lat: float
    lon: float
    rate: float
    price: float


def distance_km(lat: float, lon: float, offer: Offer) -> float:
    """By the haversine formula, in the order of operations of services/geo.rs: the last bit decides between hotels."""
    d_lat = math.sin((offer.lat - lat) * RADIANS / 2.0)
    d_lon = math.sin((offer.lon - lon) * RADIANS / 2.0)
    h = d_lat * d_lat + d_lon * d_lon * math.cos(lat * RADIANS) * math.cos(offer.lat * RADIANS)
    return 2.0 * EARTH_RADIUS_KM * math.atan2(math.sqrt(h), math.sqrt(1.0 - h))


class Recommendations(RecommendationAsyncServicer):
    def __init__(self, offers: list[Offer]) -> None:
        self._offers = offers

    async def GetRecommendations(self, request: RequestView, context: tollgate.aio.ServicerContext) -> Result:
        lat, lon = request.lat, request.lon
        badness: dict[str, Callable[[Offer], float]] = {
            "dis": lambda offer: distance_km(lat, lon, offer),
            "rate": lambda offer: -offer.rate,
            "price": lambda offer: offer.price,
        }
        if request.require not in badness:
            sentence = f'require is "{request.require}"; it has to be dis, rate or price'
            await context.abort(tollgate.StatusCode.INVALID_ARGUMENT, sentence)
        bad = [badness[request.require](offer) for offer in self._offers]
        least = min(bad)
        return Result(hotel_ids=[offer.hotel for offer, is_bad in zip(self._offers, bad) if is_bad == least])


def read_offers(path: str) -> list[Offer]:
    with open(path, encoding="utf-8") as lines:
        words = [line.split() for line in lines]
    return [Offer(hotel, *map(float, numbers)) for hotel, *numbers in words]


async def main() -> None:
    socket, path = sys.argv[1:3]
    # An empty token is that of the environment.
    server = tollgate.aio.server(socket, "")
    add_RecommendationServicer_to_server(Recommendations(read_offers(path)), server)
    await server.start()
    print("recommendation ready", flush=True)
    # Calls that have come are answered before the end.
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, lambda: loop.create_task(server.stop(GRACE_S)))
    await server.wait_for_termination()


asyncio.run(main())
