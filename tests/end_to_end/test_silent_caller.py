"""Callers whose phones send no packets while muted, over real SIP and RTP: they hear every prompt to its end."""

from __future__ import annotations

import asyncio
import audioop
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from callagent.agents import Action, CallerTurn, HandoffFailed, HangUp, Listen, Say
from callagent.call import Call
from callagent.call.state import CallServices, CallSettings
from callagent.call_info import EndReason
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.records import CallRecord
from callagent.rtp import Pump, RtpPorts, RtpSettings
from callagent.rtp.codec import PCMA
from callagent.rtp.packet import RtpPacket
from callagent.sip import CallEnded, Endpoint, Event, UserAgentSettings
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice, VoiceScript
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.call.test_call import MemoryStore
from tests.fakes import FakeAgent, FakeProject, LoudnessActivity

pytestmark = pytest.mark.end_to_end
PATIENCE = 60.0
PROMPTS = ("Are you still there?", "I cannot hear you. Are you there?", "Please say something, or hang up.")
GOODBYE = "I hear nothing. Goodbye."
LIMIT = 0.6
"""Seconds without a packet after which media times out: less than the first silence and the first prompt take."""
SDP = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 8\r\n"


class MutedPhone(asyncio.DatagramProtocol):
    """Hears, and sends so many packets of silence and then no more."""

    def __init__(self, packets: int) -> None:
        self.sounding = 0
        """Packets with sound."""
        self._left = packets
        self._sent = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if data[1] & 0x7F != 8:
            return
        self.sounding += audioop.rms(PCMA.decode(RtpPacket.parse(data).payload), 2) > 100
        if self._sent < self._left:
            packet = RtpPacket(8, self._sent, self._sent * 160, 7, PCMA.encode(bytes(320)))
            self._transport.sendto(bytes(packet), addr)
            self._sent += 1


def prompting() -> FakeAgent:
    """As projects are: a prompt after each silence, and after the fourth a goodbye."""
    waiting = [*PROMPTS, GOODBYE]

    async def reply(turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        text = waiting.pop(0)
        yield Say(text)
        yield HangUp(EndReason.SILENCE) if text == GOODBYE else Listen()

    return FakeAgent([reply] * 4, greeting=(Say("Hello."), Listen()))


async def converse(leg: SipLeg, agent: FakeAgent, voice: ScriptedVoice) -> CallRecord:
    def make_turn_manager(emit: Any) -> TurnManager:
        settings = TurnSettings(no_input=0.4)
        return TurnManager(CallerInput(ScriptedRecognizer([]), LoudnessActivity()), voice, emit, settings)

    def nowhere(handoff: Any) -> Any:
        raise AssertionError(handoff)

    services = CallServices(MemoryStore(), nowhere)  # type: ignore[arg-type]
    return await Call(leg, FakeProject(agent), make_turn_manager, services, CallSettings()).run()


@pytest.mark.parametrize("packets", [0, 20])
async def test_a_muted_caller_hears_three_prompts_and_the_goodbye_before_the_call_is_ended(packets: int) -> None:
    pump = Pump()
    pump.start()
    legs: asyncio.Queue[SipLeg] = asyncio.Queue()
    timeouts = RtpSettings(first_packet_timeout=LIMIT, packet_timeout=LIMIT)
    server = SipLegFactory(RtpPorts("127.0.0.1", 27000, 27998, rest_seconds=0.0), pump, legs.put_nowait, timeouts)
    settings = UserAgentSettings(admit=lambda host: "local")
    host, port = await server.open("127.0.0.1", 0, settings)
    endpoint = await Endpoint.open("127.0.0.1", 0, settings)
    phone = MutedPhone(packets)
    loop, ended, agent = asyncio.get_running_loop(), asyncio.Event(), prompting()
    voice = ScriptedVoice(VoiceScript(seconds_per_character=0.03))

    def told(event: Event) -> None:
        if isinstance(event, CallEnded):
            ended.set()

    async with asyncio.timeout(PATIENCE):
        transport, _ = await loop.create_datagram_endpoint(lambda: phone, ("127.0.0.1", 0), family=socket.AF_INET)
        body = SDP.format(port=transport.get_extra_info("sockname")[1]).encode()
        call = await endpoint.call(f"sip:agent@{host}:{port}", body=lambda local: body)
        call.listen(told)
        record = await converse(await legs.get(), agent, voice)
        await ended.wait()
    transport.close()
    await endpoint.close()
    await server.close()
    pump.stop()
    assert agent.heard_texts[:4] == [("Hello.", False), *((text, False) for text in PROMPTS)]
    assert record.end_reason == "silence_limit"
    # All that was said was on the wire; between the words of the scripted voice it is silent.
    said = sum(map(voice.seconds, ("Hello.", *PROMPTS, GOODBYE)))
    assert phone.sounding * 0.02 > 0.7 * said
