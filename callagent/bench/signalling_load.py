"""Calls that come and go: set up, answered, torn down at once, at a rate.

python -m callagent.bench.signalling_load sip:agent@127.0.0.1:5060 --rate 100 --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import json

from callagent.server import calm_collector
from callagent.sip import CallAnswered, CallEnded, Endpoint, EndpointCall, Event, Negotiation, UserAgentSettings

_PATIENCE = 20.0
_MEDIA_PORT = 40_000
"""Nobody listens there: these calls end before there is anything to hear."""


class Coming:
    def __init__(self, endpoint: Endpoint, target: str) -> None:
        self.set_up: list[float] = []
        """Seconds from INVITE to answer."""
        self.failures = 0
        self._endpoint = endpoint
        self._target = target

    async def call(self) -> None:
        """One call, to the answer to its BYE."""
        began = self._endpoint.now()
        call = await self._endpoint.call(self._target, body=_offer)
        call.listen(lambda event: self._hear(call, event, began))
        try:
            async with asyncio.timeout(_PATIENCE):
                await call.closed.wait()
        except TimeoutError:
            self.failures += 1

    def _hear(self, call: EndpointCall, event: Event, began: float) -> None:
        if isinstance(event, CallAnswered):
            self.set_up.append(self._endpoint.now() - began)
            call.hang_up()
        elif isinstance(event, CallEnded) and event.status != 200:
            self.failures += 1


def _offer(host: str) -> bytes:
    return Negotiation(host, _MEDIA_PORT, 1, loopback=True).offer()


async def run(target: str, rate: float, seconds: float) -> dict[str, object]:
    endpoint = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "server", max_calls=5000))
    coming = Coming(endpoint, target)
    # A full collection here takes 100 ms and more, and then all the calls that were due come at once.
    calm_collector()
    began, count = endpoint.now(), round(rate * seconds)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(began + number / rate - endpoint.now())
            group.create_task(coming.call())
        sent = endpoint.now() - began
    await endpoint.close()
    return {
        "calls": count,
        "failures": coming.failures + count - len(coming.set_up),
        "set_up": coming.set_up,
        "calls_per_second": count / sent,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(run(options.target, options.rate, options.seconds))))


if __name__ == "__main__":
    main()
