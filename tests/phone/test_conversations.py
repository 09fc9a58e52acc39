"""The twenty scripted conversations that ship with the phone, each a whole call: on the virtual clock, and over RTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import callagent.phone
from callagent.agents import Handoff
from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.call import Call, CallServices, CallSettings
from callagent.call_info import NO_HEADERS, EndReason, MediaStatistics
from callagent.legs import TransferTarget
from callagent.legs.leg import FrameSink, FrameSource, Media
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.phone.caller import Caller, load_script
from callagent.phone.figures import Figures
from callagent.phone.handset import Earpiece, Microphone
from callagent.phone.lines import dial_sip
from callagent.records import CallRecord
from callagent.rtp import Pump, RtpPorts
from callagent.sip import UserAgentSettings
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.call.test_call import MemoryStore
from tests.fakes import FakeLeg, FakeProject
from tests.own_time import own_time
from tests.phone.desk import Desk
from tests.phone.word_audio import LevelActivity, Vocabulary, WordEars, WordVoice
from tests.rtp.test_session import free_range

SCRIPTS = sorted((Path(callagent.phone.__file__).parent / "conversations").glob("*.yaml"))
QUIET = bytes(FRAME_BYTES)


class End:
    """One end of the wire: what it hears and says once it has started."""

    def __init__(self) -> None:
        self.sink: FrameSink = lambda pcm, now: None
        self.source: FrameSource = lambda: None

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self.sink, self.source = sink, source

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    def statistics(self) -> MediaStatistics:
        return MediaStatistics()

    def close(self) -> None:
        return None


class Wire:
    """A call between the phone and a leg of the server: a frame each way every 20 ms."""

    def __init__(self, leg: WiredLeg) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_transfer: Callable[[str], None] = lambda target: None
        self._phone = End()
        self._leg = leg
        self._lost = 0.0
        self._dice = Random(7)
        leg.on_hang_up = self._hung_up

    @property
    def media(self) -> Media:
        return self._phone

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.ended.done():
            now = loop.time()
            said = self._phone.source()
            lost = self._dice.random() < self._lost
            self._leg.end.sink(QUIET if said is None or lost else said, now)
            self._phone.sink(self._leg.end.source() or QUIET, now)
            due += FRAME_SECONDS
            await asyncio.sleep(due - loop.time())

    async def send_digits(self, digits: str) -> None:
        for digit in digits:
            await asyncio.sleep(0.2)
            self._leg.presses(digit)

    def lose(self, share: float) -> None:
        self._lost = share

    async def hang_up(self) -> None:
        if not self.ended.done():
            self.ended.set_result("we hung up")
            self._leg.hangs_up()

    def _hung_up(self) -> None:
        if not self.ended.done():
            self.ended.set_result("the server hung up")


class WiredLeg(FakeLeg):
    def __init__(self) -> None:
        super().__init__()
        self.end = End()
        self.on_hang_up: Callable[[], None] = lambda: None

    async def answer(self) -> Any:
        self.did.append("answer")
        return self.end

    async def hang_up(self, reason: EndReason, headers: Any = NO_HEADERS) -> None:
        self.did.append(f"hang up {reason.value}")
        self.on_hang_up()


def resolve(handoff: Handoff) -> TransferTarget:
    return TransferTarget(handoff.destination, "sip:people@192.0.2.1", handoff.method)


async def converse(script: Path) -> tuple[Figures, CallRecord, list[str]]:
    loop = asyncio.get_running_loop()
    leg, vocabulary = WiredLeg(), Vocabulary()

    def make_turn_manager(emit: Any) -> TurnManager:
        return TurnManager(
            CallerInput(WordEars(vocabulary), LevelActivity()), WordVoice(vocabulary), emit, TurnSettings()
        )

    services = CallServices(MemoryStore(), resolve)  # type: ignore[arg-type]
    call = asyncio.create_task(Call(leg, FakeProject(Desk()), make_turn_manager, services, CallSettings()).run())
    wire, microphone = Wire(leg), Microphone(loop.time)
    while "answer" not in leg.did:
        await asyncio.sleep(0.01)
    told: list[dict[str, Any]] = []
    earpiece = Earpiece(lambda utterance: caller.report_utterance(utterance))
    earpiece.listen(await WordEars(vocabulary).open(earpiece.on_transcript), loop.time())
    caller = Caller(wire, earpiece, microphone, WordVoice(vocabulary), told.append, loop.time)
    wire.media.start(earpiece.on_frame, microphone.next_frame)
    ticking = asyncio.create_task(wire.run())
    await caller.run(load_script(script))
    earpiece.close()
    await asyncio.sleep(1.0)
    figures = caller.figures()
    await wire.hang_up()
    await ticking
    return figures, await call, leg.did


def test_there_are_twenty() -> None:
    assert len(SCRIPTS) == 20


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_conversation_on_the_virtual_clock(script: Path) -> None:
    steps = load_script(script)
    figures, record, did = run(converse(script))
    assert figures.not_heard == []
    assert figures.missed_turns == []
    assert figures.stopped_by_backchannel == []
    assert figures.not_yielded == []
    assert figures.turns == sum(step.verb in ("say", "play", "press", "interrupt") for step in steps)
    # Half a second of silence ends a turn; keys end it at once, and a slow answer begins with a filler.
    assert all(0.1 <= seconds <= 1.3 for seconds in figures.response_seconds), figures.response_seconds
    assert len(figures.yield_seconds) == sum(step.verb == "interrupt" for step in steps)
    assert all(seconds <= 0.3 for seconds in figures.yield_seconds), figures.yield_seconds
    assert figures.talk_over_seconds <= 0.3 * len(figures.yield_seconds) + 0.01
    assert figures.words_heard >= 8
    assert record.errors == []
    assert any(done.startswith(("hang up", "transfer")) for done in did)


@asynccontextmanager
async def desk(vocabulary: Vocabulary) -> AsyncIterator[str]:
    """The desk behind SIP and RTP on loopback; its address."""
    pump = Pump()
    pump.start()
    calls: set[asyncio.Task[CallRecord]] = set()

    def make_turn_manager(emit: Any) -> TurnManager:
        return TurnManager(
            CallerInput(WordEars(vocabulary), LevelActivity()), WordVoice(vocabulary), emit, TurnSettings()
        )

    def take(leg: SipLeg) -> None:
        services = CallServices(MemoryStore(), resolve)  # type: ignore[arg-type]
        calls.add(
            asyncio.create_task(Call(leg, FakeProject(Desk()), make_turn_manager, services, CallSettings()).run())
        )

    legs = SipLegFactory(RtpPorts("127.0.0.1", *free_range(40)), pump, take)
    host, port = await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda source: "test"))
    try:
        yield f"sip:desk@{host}:{port}"
        async with asyncio.timeout(30):
            await asyncio.gather(*calls)
    finally:
        await legs.close()
        pump.stop()


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "name",
    [
        "02_question_and_answer",
        "04_interrupts_a_long_answer",
        pytest.param("03_keys_instead_of_words", marks=pytest.mark.acceptance("calls")),
    ],
)
async def test_a_conversation_over_rtp(name: str) -> None:
    script = next(path for path in SCRIPTS if path.stem == name)
    vocabulary = Vocabulary()
    with own_time() as clock:
        async with desk(vocabulary) as address, dial_sip(address, "+15550100") as line:
            microphone, earpiece = Microphone(clock), Earpiece(lambda utterance: caller.report_utterance(utterance))
            stream = await WordEars(vocabulary).open(earpiece.on_transcript)
            earpiece.listen(stream, clock())
            caller = Caller(line, earpiece, microphone, WordVoice(vocabulary), lambda event: None, clock)
            line.media.start(lambda pcm, now: earpiece.on_frame(pcm, clock()), microphone.next_frame)
            await caller.run(load_script(script))
            figures = caller.figures()
            await line.hang_up()
    assert figures.not_heard == []
    assert figures.missed_turns == []
    assert len(figures.response_seconds) == figures.turns
    # A loaded machine makes an answer late, not early.
    assert all(seconds <= 3.0 for seconds in figures.response_seconds), figures.response_seconds
