"""A server that calls the person itself and stays in between: a conversation, a bridge, and callers who come back."""

from __future__ import annotations

import asyncio
import math
import shutil
import struct
import wave
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import pytest

from callagent.call_info import EndReason
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.rtp import Pump, RtpPorts
from callagent.sip import UserAgentSettings
from tests.end_to_end.baresip import baresip
from tests.end_to_end.scripted import MILL, Talker, scripts, talker, until
from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = pytest.mark.end_to_end

THOUGHTS = [
    {"calls": [{"name": "person_wanted"}]},
    {"text": "The miller does not answer. Anything else?"},
]
HERTZ = 700


def tone(path: Path, seconds: int = 60) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        second = [round(8000 * math.sin(2 * math.pi * HERTZ * n / 8000)) for n in range(8000)]
        file.writeframes(struct.pack("<8000h", *second) * seconds)
    return path


def share(samples: list[int], hertz: int) -> float:
    """Of the energy, how much is this tone."""
    energy = sum(sample * sample for sample in samples) or 1
    turns = [2 * math.pi * hertz * n / 8000 for n in range(len(samples))]
    real = sum(sample * math.cos(turn) for sample, turn in zip(samples, turns, strict=True))
    imaginary = sum(sample * math.sin(turn) for sample, turn in zip(samples, turns, strict=True))
    return 2 * (real * real + imaginary * imaginary) / (energy * len(samples))


@contextmanager
def mill(folder: Path, miller: str, ring_seconds: int = 60, **more: str) -> Iterator[ServerProcess]:
    """The mill, whose miller is called at this URI."""
    config = folder / "callagent.toml"
    target = f'name = "miller"\nuri = "{miller}"\nmethod = "invite"\nring_seconds = {ring_seconds}\n'
    config.write_text(f"[[targets]]\n{target}")
    settings = {**scripts(folder, ["a person please", "no"], THOUGHTS), "RECORDS__RECORDINGS": str(folder / "audio")}
    with serve(folder, "--config", str(config), project=MILL, **settings, **more) as server:
        yield server


class Miller:
    """Answers as the test says."""

    def __init__(self) -> None:
        self.legs: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.uri = ""

    async def called(self) -> SipLeg:
        async with asyncio.timeout(60):
            return await self.legs.get()


@asynccontextmanager
async def miller() -> AsyncIterator[Miller]:
    pump = Pump()
    pump.start()
    person = Miller()
    legs = SipLegFactory(RtpPorts("127.0.0.1", 20000, 29998), pump, person.legs.put_nowait)
    host, port = await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "local"))
    person.uri = f"sip:miller@{host}:{port}"
    try:
        yield person
    finally:
        await legs.close()
        pump.stop()


async def ask_for_the_miller(caller: Talker) -> None:
    await caller.listen(1)
    await caller.say()


def unbroken(caller: Talker, seconds: float) -> Callable[[], bool]:
    """Whether there has been sound for so long, without a gap and without a stall, which is one in a recording."""
    stalled, since = caller.clock.stalled, caller.clock()

    def sounding() -> bool:
        nonlocal stalled, since
        if caller.clock.stalled > stalled + 0.1:
            stalled, since = caller.clock.stalled, caller.clock()
        return caller.clock() - max(caller.silent, since) > seconds

    return sounding


@pytest.mark.skipif(shutil.which("baresip") is None, reason="baresip is not installed")
async def test_the_caller_speaks_with_the_person_and_all_of_it_is_recorded(tmp_path: Path) -> None:
    with (
        baresip(tmp_path / "miller", tone(tmp_path / "tone.wav")) as person,
        mill(tmp_path, f"sip:user@127.0.0.1:{person.sip_port}") as server,
    ):
        async with talker(server.sip) as caller:
            await ask_for_the_miller(caller)
            await asyncio.to_thread(person.wait_for, "CALL_ESTABLISHED")
            await asyncio.sleep(2.5)
            sounding = unbroken(caller, 2.5)
            await caller.say()
            await until(sounding, 60)
        await asyncio.to_thread(person.wait_for, "CALL_CLOSED")
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert (record["end_reason"], record["handoff_outcome"], record["end_function"]) == ("handoff", "succeeded", "done")
    assert [one["status"] for one in record["transfers"]] == ["succeeded"]
    # The last words, then the person: nothing of the agent after that.
    assert record["turns"][-1]["agent_response"] == "I will fetch the miller."
    with wave.open(record["recording"]) as file:
        frames = file.getnframes()
        file.setpos(frames - 2 * file.getframerate())
        samples = struct.unpack(f"<{4 * file.getframerate()}h", file.readframes(2 * file.getframerate()))
    assert share(list(samples[1 : 2 * 4000 : 2]), HERTZ) > 0.8


async def test_the_person_hangs_up_and_so_do_we(tmp_path: Path) -> None:
    async with miller() as person:
        with mill(tmp_path, person.uri) as server:
            async with talker(server.sip) as caller:
                await ask_for_the_miller(caller)
                leg = await person.called()
                (await leg.answer()).start(lambda pcm, now: None, lambda: None)
                await asyncio.sleep(2.5)
                await leg.hang_up(EndReason.AGENT_HANGUP)
                await caller.ended()
            record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert (record["end_reason"], record["handoff_outcome"]) == ("handoff", "succeeded")


@pytest.mark.parametrize("way", ["busy", "rings for ever", "drops", "is not there"])
async def test_a_caller_who_cannot_be_put_through_is_back_with_the_agent(tmp_path: Path, way: str) -> None:
    async with miller() as person:
        uri = "sip:miller@127.0.0.1:9" if way == "is not there" else person.uri
        with mill(tmp_path, uri, 60 if way in ("busy", "drops") else 3) as server:
            async with talker(server.sip) as caller:
                await ask_for_the_miller(caller)
                if way != "is not there":
                    leg = await person.called()
                    await asyncio.sleep(1.0)
                if way == "busy":
                    await leg.hang_up(EndReason.REJECTED)
                elif way == "drops":
                    await leg.answer()
                    await leg.hang_up(EndReason.AGENT_HANGUP)
                # Greeting, "I will fetch the miller.", and what the agent says once it knows.
                await caller.listen(3)
            record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert (record["end_reason"], record["handoff"]) == ("caller_hangup", False)
    assert record["transfers"][-1]["status"] == {"busy": "refused", "drops": "failed"}.get(way, "no_answer")
    assert "The miller does not answer." in record["turns"][-1]["agent_response"]


async def test_the_caller_gives_up_while_it_rings(tmp_path: Path) -> None:
    async with miller() as person:
        with mill(tmp_path, person.uri) as server:
            async with talker(server.sip) as caller:
                await ask_for_the_miller(caller)
                leg = await person.called()
            async with asyncio.timeout(60):
                await leg.call.closed.wait()
            record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    assert (record["end_reason"], record["handoff"]) == ("caller_hangup", False)


class Elsewhere(asyncio.DatagramProtocol):
    """A person who has always just moved to another room of the same house."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    @property
    def host(self) -> str:
        host, port = self._transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
        request, *fields = data.decode().partition("\r\n\r\n")[0].split("\r\n")
        if not request.startswith("INVITE "):
            return
        self.asked.append(request)
        kept = [field for field in fields if field.startswith(("Via:", "From:", "Call-ID:", "CSeq:"))]
        to = next(field for field in fields if field.startswith("To:"))
        moved = f"Contact: <sip:room{len(self.asked)}@{self.host}>"
        lines = ["SIP/2.0 302 Moved Temporarily", *kept, f"{to};tag=moved", moved, "Content-Length: 0", "", ""]
        self._transport.sendto("\r\n".join(lines).encode(), source)


async def test_who_is_always_elsewhere_is_looked_for_so_often_and_the_record_says_so(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    transport, person = await loop.create_datagram_endpoint(Elsewhere, local_addr=("127.0.0.1", 0))
    with mill(tmp_path, f"sip:miller@{person.host}", LIMITS__TRANSFER_ATTEMPTS="2") as server:
        async with talker(server.sip) as caller:
            await ask_for_the_miller(caller)
            await until(lambda: any(line["event"] == "handoff_failed" for line in server.log()), 60)
        record = (await asyncio.to_thread(server.wait_for_records, 1))[0]
    transport.close()
    assert [line.partition("@")[0] for line in dict.fromkeys(person.asked)] == ["INVITE sip:miller", "INVITE sip:room1"]
    (transfer,) = record["transfers"]
    assert "limits.transfer_attempts" in transfer["detail"]
    assert [one["limit"] for one in record["limits_reached"]] == ["transfer_attempts"]
