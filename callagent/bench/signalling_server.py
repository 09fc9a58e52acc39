"""A process that answers every call, plays a tone and does nothing else.

python -m callagent.bench.signalling_server
"""

from __future__ import annotations

import asyncio
import struct
import sys

from callagent.audio import FRAME_SAMPLES
from callagent.call_info import EndReason
from callagent.legs import LegGone
from callagent.legs.sip import SipLeg, SipLegs
from callagent.rtp import Pump, RtpPorts
from callagent.server import calm_collector
from callagent.sip import UserAgentSettings

_FRAME = struct.pack("<h", 1000) * FRAME_SAMPLES


async def serve() -> None:
    """Until it is killed. The port is its only line of output."""
    pump = Pump()
    pump.start()
    tasks: set[asyncio.Task[None]] = set()

    def take(leg: SipLeg) -> None:
        task = asyncio.create_task(_answer(leg))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    legs = SipLegs(RtpPorts("127.0.0.1", 20000, 39998, rest_seconds=0.0), pump, take)
    _, port = await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "load", max_calls=5000))
    calm_collector()
    print("port", port, flush=True)
    await asyncio.Event().wait()


async def _answer(leg: SipLeg) -> None:
    ended = asyncio.Event()
    leg.listen(lambda event: ended.set())
    try:
        media = await leg.answer()
    except LegGone:
        return
    media.start(lambda pcm, now: None, lambda: _FRAME)
    await ended.wait()
    await leg.hang_up(EndReason.CALLER_HANGUP)


def main() -> None:
    sys.setswitchinterval(0.0002)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())


if __name__ == "__main__":
    main()
