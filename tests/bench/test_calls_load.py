from __future__ import annotations

import asyncio

from callagent.bench.calls import load_calls
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.rtp import Pump, RtpPorts
from callagent.sip import Endpoint, EndpointCall, UserAgentSettings
from tests.rtp.test_session import free_range


async def test_calls_are_answered_heard_and_hung_up() -> None:
    ended: list[str] = []
    async with asyncio.TaskGroup() as group:

        async def serve(leg: SipLeg) -> None:
            leg.listen(lambda event: ended.append(type(event).__name__))
            media = await leg.answer()
            media.start(lambda frame, now: None, lambda: None)

        pump = Pump()
        pump.start()
        tasks: list[asyncio.Task[None]] = []
        legs = SipLegFactory(
            RtpPorts("127.0.0.1", *free_range(40)), pump, lambda leg: tasks.append(group.create_task(serve(leg)))
        )
        host, port = await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda source: "test"))
        figures = await load_calls(f"sip:agent@{host}:{port}", 4, 0.5)
        await legs.close()
    pump.stop()
    assert figures["failures"] == []
    assert figures["streams_heard"] == figures["answer_ms"]["count"] == 4
    assert figures["received"] > 40
    assert figures["lost"] == 0
    assert ended == ["CallerHungUp"] * 4


async def test_a_server_that_refuses_is_a_failure_of_every_call() -> None:
    def refuse(call: EndpointCall) -> None:
        call.hang_up(status=486)

    server = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda source: "test"), refuse)
    target = f"sip:agent@127.0.0.1:{server.local_address[1]}"
    figures = await load_calls(target, 3, 0.1)
    await server.close()
    assert len(figures["failures"]) == 3
    assert "486" in figures["failures"][0]
    assert figures["answer_ms"]["count"] == 0
