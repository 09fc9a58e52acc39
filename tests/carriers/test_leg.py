"""A carrier leg on the virtual clock: pacing, marks, and every way it can go."""

from __future__ import annotations

import asyncio
import audioop
import json
import math
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from callagent.audio import FRAME_BYTES, dtmf_frames
from callagent.call_info import CallInfo, EndReason
from callagent.carriers.leg import TRANSITIONS, CarrierLeg, LegInput, LegState
from callagent.carriers.media import HALF_FRAME, FrameClock
from callagent.carriers.protocol import DigitReceived, MarkReached, MediaReceived, Message, StreamStopped
from callagent.carriers.twilio.call_control import TransferUrls, TwilioApi, TwilioCallControl, TwilioSettings
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.legs.leg import CallerHungUp, DigitPressed, LegEvent, LegFailed, LegGone, TransferStatus, TransferTarget
from callagent.testing.virtual_time import run

FRAME = b"\x10\x20" * 160
ULAW = audioop.lin2ulaw(FRAME, 2)
# No CallSid that Twilio would know: nothing here reaches a network.
INFO = CallInfo("call", "inbound", "+15550100", "+15550199", "twilio", datetime.now(UTC), peer_call_id="CA1")
START = {"streamSid": "MZ1", "callSid": "CA1"}


class Wire:
    """The other end of the leg's link: keeps what was sent, and when."""

    def __init__(self, clock: FrameClock) -> None:
        self.clock = clock
        self.sent: list[tuple[float, dict[str, Any]]] = []
        self.pings: list[float] = []
        self.closed: int | None = None

    def send(self, message: Message) -> None:
        self.sent.append((self.clock.now(), json.loads(message)))

    def ping(self) -> None:
        self.pings.append(self.clock.now())

    def close(self, code: int) -> None:
        self.closed = code

    def of(self, event: str) -> list[tuple[float, dict[str, Any]]]:
        return [(at, message) for at, message in self.sent if message["event"] == event]

    def marks(self) -> list[str]:
        return [message["mark"]["name"] for _, message in self.of("mark")]


class Setup:
    """A leg with a stream, a source of `frames`, and what came out of it."""

    def __init__(self) -> None:
        self.clock = FrameClock(HALF_FRAME)
        settings = TwilioSettings("none", "secret", "https://phone.example.com")
        urls = TransferUrls("https://phone.example.com/report")
        control = TwilioCallControl(TwilioApi(settings), INFO, urls, lambda: "<Response/>")
        self.leg = CarrierLeg(INFO, control, self.clock)
        self.events: list[LegEvent] = []
        self.heard: list[tuple[bytes, float]] = []
        self.frames: list[bytes] = []
        self.wire = self.attach()

    def attach(self) -> Wire:
        wire = Wire(self.clock)
        dialect = TwilioDialect()
        dialect.receive_message(json.dumps({"event": "connected"}))
        dialect.receive_message(json.dumps({"event": "start", "streamSid": "MZ1", "start": START}))
        self.leg.attach(wire, dialect)
        self.wire = wire
        return wire

    async def start(self) -> None:
        self.leg.listen(self.events.append)
        self.media = await self.leg.answer()
        self.media.start(lambda pcm, now: self.heard.append((pcm, now)), self.source)

    def source(self) -> bytes | None:
        return self.frames.pop(0) if self.frames else None

    async def alive(self, seconds: float) -> None:
        """Time passes and the carrier sends."""
        for _ in range(round(seconds)):
            self.leg.note_life()
            await asyncio.sleep(1)


def on_virtual_time(test: Callable[[Setup], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def call() -> None:
        setup = Setup()
        await setup.start()
        await test(setup)
        await setup.leg.hang_up(EndReason.AGENT_HANGUP)

    def wrapped() -> None:
        run(call())

    wrapped.__name__ = test.__name__
    return wrapped


@on_virtual_time
async def test_the_carrier_is_kept_five_frames_ahead_and_no_more(setup: Setup) -> None:
    setup.frames = [FRAME] * 100
    start = setup.clock.now()
    await asyncio.sleep(1.0)
    times = [at - start for at, _ in setup.wire.of("media")]
    assert times[:5] == [pytest.approx(0.01)] * 5
    for n, at in enumerate(times[5:], 1):
        assert at == pytest.approx(0.01 + n * 0.02)


@on_virtual_time
async def test_silence_is_not_sent_and_speech_after_it_gets_its_lead(setup: Setup) -> None:
    setup.frames = [FRAME] * 2
    await asyncio.sleep(1.0)
    assert len(setup.wire.of("media")) == 2
    assert len(setup.wire.marks()) == 1
    setup.frames = [FRAME] * 7
    await asyncio.sleep(0.011)
    assert len(setup.wire.of("media")) == 7


@on_virtual_time
async def test_a_mark_follows_every_fifth_frame_and_the_last(setup: Setup) -> None:
    setup.frames = [FRAME] * 12
    await asyncio.sleep(1.0)
    events = [message["event"] for _, message in setup.wire.sent]
    assert events == ["media"] * 5 + ["mark"] + ["media"] * 5 + ["mark"] + ["media"] * 2 + ["mark"]
    assert len(set(setup.wire.marks())) == 3


@on_virtual_time
async def test_what_is_unheard_is_what_marks_have_not_acknowledged(setup: Setup) -> None:
    setup.frames = [FRAME] * 12
    await asyncio.sleep(5.0)
    # Nothing was acknowledged: the clock alone brings it to the first mark.
    assert setup.media.unheard() == pytest.approx(0.14)
    first, second, third = setup.wire.marks()
    setup.leg.receive(MarkReached(first), setup.wire)
    assert setup.media.unheard() == pytest.approx(0.14)
    await asyncio.sleep(0.04)
    assert setup.media.unheard() == pytest.approx(0.10)
    setup.leg.receive(MarkReached(third), setup.wire)
    assert setup.media.unheard() == 0.0
    setup.leg.receive(MarkReached(second), setup.wire)
    assert setup.media.unheard() == 0.0


@on_virtual_time
async def test_clear_tells_what_was_dropped_and_late_marks_count_nothing(setup: Setup) -> None:
    setup.frames = [FRAME] * 50
    await asyncio.sleep(0.021)
    setup.frames.clear()
    dropped = setup.media.clear()
    assert 0.05 < dropped <= 0.1
    assert setup.media.unheard() == 0.0
    assert [message for _, message in setup.wire.of("clear")] == [{"event": "clear", "streamSid": "MZ1"}]
    setup.frames = [FRAME] * 5
    await asyncio.sleep(0.02)
    unheard = setup.media.unheard()
    setup.leg.receive(MarkReached(setup.wire.marks()[0]), setup.wire)
    assert setup.media.unheard() == unheard > 0


@on_virtual_time
async def test_clearing_nothing_sends_nothing(setup: Setup) -> None:
    assert setup.media.clear() == 0.0
    assert setup.wire.sent == []


@on_virtual_time
async def test_media_of_any_length_becomes_whole_frames(setup: Setup) -> None:
    setup.leg.receive(MediaReceived(ULAW[:159]), setup.wire)
    assert setup.heard == []
    setup.leg.receive(MediaReceived(ULAW[159:] + ULAW * 2), setup.wire)
    assert [pcm for pcm, _ in setup.heard] == [audioop.ulaw2lin(ULAW, 2)] * 3
    assert setup.media.statistics().packets_received == 3


@on_virtual_time
async def test_digits_and_a_stop_are_events(setup: Setup) -> None:
    setup.leg.receive(DigitReceived("4"), setup.wire)
    setup.leg.receive(StreamStopped(), setup.wire)
    setup.leg.receive(DigitReceived("5"), setup.wire)
    assert setup.events == [DigitPressed("4"), CallerHungUp(EndReason.CALLER_HANGUP)]
    with pytest.raises(LegGone):
        await setup.leg.answer()
    with pytest.raises(LegGone):
        await setup.leg.send_digits("1")
    with pytest.raises(LegGone):
        setup.attach()


def test_events_before_anybody_listens_are_delivered_then() -> None:
    async def call() -> None:
        setup = Setup()
        setup.leg.ring()
        setup.leg.receive(DigitReceived("4"), setup.wire)
        await setup.start()
        assert setup.events == [DigitPressed("4")]
        setup.leg.receive(MediaReceived(ULAW), setup.wire)
        await setup.leg.hang_up(EndReason.AGENT_HANGUP)
        assert setup.wire.closed == 1000

    run(call())


@on_virtual_time
async def test_a_cut_stream_is_a_hang_up_within_two_seconds(setup: Setup) -> None:
    setup.leg.cut(setup.wire)
    setup.leg.cut(setup.wire)
    await asyncio.sleep(1.0)
    assert setup.events == []
    await asyncio.sleep(1.0)
    assert setup.events == [CallerHungUp(EndReason.CALLER_HANGUP)]


@on_virtual_time
async def test_a_caller_whom_the_carrier_brings_back_is_waited_for_ten_seconds(setup: Setup) -> None:
    setup.frames = [FRAME] * 10
    await asyncio.sleep(0.05)
    setup.leg.cut(setup.wire)
    assert await setup.leg.expect_return()
    assert setup.media.unheard() == 0.0
    await asyncio.sleep(9.0)
    left = len(setup.frames)
    setup.attach()
    await asyncio.sleep(0.5)
    assert len(setup.wire.of("media")) == left > 0
    setup.leg.cut(setup.wire)
    assert await setup.leg.expect_return()
    await asyncio.sleep(10.1)
    assert setup.events == [CallerHungUp(EndReason.CALLER_HANGUP)]
    assert not await setup.leg.expect_return()


@on_virtual_time
async def test_the_question_may_come_before_the_end_of_the_socket(setup: Setup) -> None:
    asyncio.get_running_loop().call_later(0.5, setup.leg.cut, setup.wire)
    assert await setup.leg.expect_return()
    setup.attach()
    assert not await setup.leg.expect_return()


@on_virtual_time
async def test_an_old_socket_has_nothing_more_to_say(setup: Setup) -> None:
    old = setup.wire
    setup.leg.cut(old)
    setup.attach()
    setup.leg.receive(StreamStopped(), old)
    setup.leg.cut(old)
    assert setup.leg.state is LegState.STREAMING


@on_virtual_time
async def test_a_silent_socket_is_pinged_and_fails_after_twenty_seconds(setup: Setup) -> None:
    await asyncio.sleep(10.1)
    assert len(setup.wire.pings) == 1
    assert setup.events == []
    await asyncio.sleep(10.1)
    assert [event.reason for event in setup.events if isinstance(event, LegFailed)] == [EndReason.MEDIA_TIMEOUT]
    assert setup.wire.closed is not None


@on_virtual_time
async def test_a_socket_that_answers_pings_lives(setup: Setup) -> None:
    await setup.alive(60)
    assert setup.wire.pings == []
    assert setup.leg.state is LegState.STREAMING


@on_virtual_time
async def test_digits_are_sent_as_tones_ahead_of_speech(setup: Setup) -> None:
    setup.frames = [FRAME] * 3
    await setup.leg.send_digits("5#")
    await asyncio.sleep(0.5)
    assert len(setup.wire.of("media")) == 23
    assert setup.frames == []
    await setup.leg.send_digits("")
    with pytest.raises(ValueError, match="DTMF"):
        await setup.leg.send_digits("5x")


@on_virtual_time
async def test_digits_that_the_end_of_the_call_swallows_are_told(setup: Setup) -> None:
    sending = asyncio.create_task(setup.leg.send_digits("123456789"))
    await asyncio.sleep(0.3)
    setup.leg.receive(StreamStopped(), setup.wire)
    with pytest.raises(LegGone):
        await sending


@on_virtual_time
async def test_a_source_that_raises_ends_its_leg_only(setup: Setup) -> None:
    other = CarrierLeg(INFO, setup.leg.control, setup.clock)
    wire = Wire(setup.clock)
    dialect = TwilioDialect()
    other.attach(wire, dialect)

    def broken() -> bytes | None:
        raise RuntimeError("source")

    (await other.answer()).start(lambda pcm, now: None, broken)
    setup.frames = [FRAME] * 10
    await asyncio.sleep(1.0)
    assert other.state is LegState.CLOSED
    assert wire.closed is not None
    assert len(setup.wire.of("media")) == 10


@on_virtual_time
async def test_a_transfer_that_cannot_be_asked_for_leaves_the_call_as_it_is(setup: Setup) -> None:
    outcome = await setup.leg.transfer(TransferTarget("desk", "+442071838750"))
    assert outcome.status is TransferStatus.FAILED
    assert setup.leg.state is LegState.STREAMING


def test_hanging_up_is_idempotent_and_frees_the_clock() -> None:
    async def call() -> None:
        setup = Setup()
        await setup.start()
        closed: list[None] = []
        setup.leg.on_closed = lambda: closed.append(None)
        for _ in range(2):
            await setup.leg.hang_up(EndReason.AGENT_HANGUP)
        setup.leg.fail("late")
        assert (setup.wire.closed, len(closed), setup.events) == (1000, 1, [])
        # A clock without legs does not tick: nothing is left to wake this loop.
        assert setup.clock._timer is None

    run(call())


def test_every_state_is_reachable_and_closed_is_the_end() -> None:
    assert set(TRANSITIONS.values()) == set(LegState)
    assert all(state is not LegState.CLOSED for state, _ in TRANSITIONS)
    assert {happened for _, happened in TRANSITIONS} == set(LegInput)
    for state in set(LegState) - {LegState.CLOSED}:
        assert TRANSITIONS[state, LegInput.CLOSE] is LegState.CLOSED


def test_a_late_loop_catches_up_without_a_burst_of_ticks() -> None:
    ticks: list[tuple[float, float]] = []

    class Member:
        def tick(self, now: float, lateness: float) -> None:
            ticks.append((now, lateness))
            if len(ticks) == 2:
                # The loop stalls: its clock moves while a callback runs.
                asyncio.get_running_loop()._clock.now += 0.101  # type: ignore[attr-defined]

        def fail(self, detail: str) -> None: ...

    async def call() -> None:
        clock, member = FrameClock(), Member()
        clock.add(member)
        await asyncio.sleep(0.2)
        clock.remove(member)

    run(call())
    assert [round(now, 3) for now, _ in ticks[:4]] == [0.02, 0.04, 0.16, 0.18]
    assert all(lateness < 0.001 for _, lateness in ticks)


@pytest.mark.parametrize(("digit", "low", "high"), [("1", 697, 1209), ("0", 941, 1336), ("D", 941, 1633)])
def test_a_digit_is_its_two_tones(digit: str, low: int, high: int) -> None:
    frames = list(dtmf_frames(digit))
    assert [len(frame) for frame in frames] == [FRAME_BYTES] * 10
    pcm = b"".join(frames[:5])
    samples = memoryview(pcm).cast("h")

    def power(frequency: int) -> float:
        real = sum(s * math.cos(2 * math.pi * frequency * n / 8000) for n, s in enumerate(samples))
        imaginary = sum(s * math.sin(2 * math.pi * frequency * n / 8000) for n, s in enumerate(samples))
        return math.hypot(real, imaginary)

    others = {697, 770, 852, 941, 1209, 1336, 1477, 1633} - {low, high}
    assert min(power(low), power(high)) > 10 * max(power(other) for other in others)
    assert max(samples) < 16000
    assert frames[5:] == [bytes(FRAME_BYTES)] * 5


def test_what_is_no_digit_is_refused() -> None:
    for digits in ("x", "1" * 65):
        with pytest.raises(ValueError, match="DTMF"):
            list(dtmf_frames(digits))
