"""A bridge by INVITE between real legs on loopback: a caller, the server in between, and a desk."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from callagent.audio import FRAME_SAMPLES
from callagent.call_info import EndReason
from callagent.legs.bridge import DROP_SECONDS
from callagent.legs.leg import (
    MAX_RELAYED_FRAMES,
    CallerHungUp,
    DigitPressed,
    FrameRelay,
    LegEvent,
    Media,
    PartiesJoined,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)
from callagent.legs.sip import TrunkMedia
from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import SipLeg
from callagent.rtp import Pump, RtpPorts, RtpSettings
from callagent.sip import Credentials, TrunkSettings, Uri, UserAgentSettings
from tests.own_time import OwnTime, own_time

SETTINGS = UserAgentSettings(admit=lambda host: "local", accepts_transfers=True)
PATIENCE = 60.0
SOON = 1.0
"""Seconds after which the agent has the caller back, once a failure is known, and one side follows the other."""


class Tone:
    """A source of one frequency, and an ear for others."""

    def __init__(self, hertz: int) -> None:
        self._hertz = hertz
        self._at = 0

    def frame(self) -> bytes:
        span = range(self._at, self._at + FRAME_SAMPLES)
        self._at += FRAME_SAMPLES
        return struct.pack(
            f"<{FRAME_SAMPLES}h", *(round(8000 * math.sin(2 * math.pi * self._hertz * n / 8000)) for n in span)
        )


class Ear:
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def __call__(self, pcm: bytes, now: float) -> None:
        self.frames.append(pcm)

    async def hears(self, hertz: int, frames: int = 10) -> None:
        """Until so many frames were mostly this tone."""
        async with asyncio.timeout(PATIENCE):
            while sum(_share(pcm, hertz) > 0.8 for pcm in self.frames[-4 * frames :]) < frames:
                await asyncio.sleep(0.02)


def _share(pcm: bytes, hertz: int) -> float:
    samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    energy = sum(sample * sample for sample in samples)
    turns = [2 * math.pi * hertz * n / 8000 for n in range(len(samples))]
    real = sum(sample * math.cos(turn) for sample, turn in zip(samples, turns, strict=True))
    imaginary = sum(sample * math.sin(turn) for sample, turn in zip(samples, turns, strict=True))
    return 0.0 if not energy else 2 * (real * real + imaginary * imaginary) / (energy * len(samples))


class Desk:
    """A target that does what its test says."""

    def __init__(self) -> None:
        self.legs: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.ear = Ear()
        self.events: list[LegEvent] = []

    async def called(self) -> SipLeg:
        async with asyncio.timeout(PATIENCE):
            leg = await self.legs.get()
        leg.listen(self.events.append)
        return leg

    async def answers(self) -> SipLeg:
        leg = await self.called()
        media = await leg.answer()
        media.start(self.ear, Tone(900).frame)
        return leg


@dataclass
class World:
    caller: SipLeg
    server: SipLeg
    audio: SwitchedMedia
    desk: Desk
    address: str
    caller_ear: Ear
    agent_ear: Ear
    clock: OwnTime
    caller_events: list[LegEvent] = field(default_factory=list)
    events: list[LegEvent] = field(default_factory=list)

    def transfer(self, **more: object) -> asyncio.Task[TransferOutcome]:
        target = TransferTarget("desk", f"sip:desk@{self.address}", "invite", **more)  # type: ignore[arg-type]
        return asyncio.create_task(self.server.transfer(target, self.audio))

    async def soon(self, condition: Callable[[], object]) -> None:
        began = self.clock()
        while not condition():
            assert self.clock() - began < SOON
            await asyncio.sleep(0.01)

    async def joined(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while PartiesJoined() not in self.events:
                await asyncio.sleep(0.01)


@pytest.fixture
def pump() -> Iterator[Pump]:
    running = Pump()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def clock() -> Iterator[OwnTime]:
    with own_time() as running:
        yield running


def ports() -> RtpPorts:
    return RtpPorts("127.0.0.1", 20000, 29998, rest_seconds=0.0)


@pytest.fixture
async def world(pump: Pump, clock: OwnTime) -> AsyncIterator[World]:
    desk = Desk()
    incoming: asyncio.Queue[SipLeg] = asyncio.Queue()
    # The desk speaks A-law only, the caller μ-law: the bridge has to turn one into the other.
    desks = SipLegFactory(ports(), pump, desk.legs.put_nowait, media=lambda _: TrunkMedia(("PCMA",)))
    phones = SipLegFactory(ports(), pump, media=lambda _: TrunkMedia(("PCMU",)))
    timeouts = RtpSettings(first_packet_timeout=60.0, packet_timeout=3.0)
    server = SipLegFactory(ports(), pump, incoming.put_nowait, timeouts)
    desk_host, desk_port = await desks.open("127.0.0.1", 0, SETTINGS)
    host, port = await server.open("127.0.0.1", 0, SETTINGS)
    await phones.open("127.0.0.1", 0, SETTINGS)
    caller = await phones.dial(f"sip:agent@{host}:{port}", caller="<sip:+15550100@127.0.0.1>")
    leg = await incoming.get()
    media = await leg.answer()
    caller_media = await caller.answer()
    made = World(caller, leg, SwitchedMedia(media), desk, f"{desk_host}:{desk_port}", Ear(), Ear(), clock)
    made.audio.start(made.agent_ear, Tone(2000).frame)
    caller_media.start(made.caller_ear, Tone(500).frame)
    caller.listen(made.caller_events.append)
    leg.listen(made.events.append)
    yield made
    for legs in (phones, server, desks):
        await legs.close()


async def gives_back(world: World, transfer: asyncio.Task[TransferOutcome], known: float) -> TransferOutcome:
    """The outcome; the agent and the caller hear each other again."""
    async with asyncio.timeout(PATIENCE):
        outcome = await transfer
    assert world.clock() - known < SOON
    world.agent_ear.frames.clear()
    world.caller_ear.frames.clear()
    await world.agent_ear.hears(500)
    await world.caller_ear.hears(2000)
    return outcome


async def test_caller_and_target_hear_each_other_and_the_agent_neither(world: World) -> None:
    transfer = world.transfer(headers={"X-Case": "7"})
    desk_leg = await world.desk.answers()
    await world.joined()
    assert (desk_leg.info.caller, dict(desk_leg.info.headers)) == ("+15550100", {"X-Case": "7"})
    await world.desk.ear.hears(500)
    await world.caller_ear.hears(900)
    heard = len(world.agent_ear.frames)
    await asyncio.sleep(0.3)
    assert len(world.agent_ear.frames) == heard
    await asyncio.sleep(DROP_SECONDS)
    await desk_leg.hang_up(EndReason.AGENT_HANGUP)
    await world.soon(transfer.done)
    assert transfer.result().status is TransferStatus.SUCCEEDED


async def test_keys_cross_and_the_agent_does_not_hear_of_them(world: World) -> None:
    transfer = world.transfer()
    desk_leg = await world.desk.answers()
    await world.joined()
    await world.caller.send_digits("42#")
    await desk_leg.send_digits("9")
    async with asyncio.timeout(PATIENCE):
        while DigitPressed("9") not in world.caller_events or len(world.desk.events) < 3:
            await asyncio.sleep(0.02)
    assert world.desk.events[:3] == [DigitPressed("4"), DigitPressed("2"), DigitPressed("#")]
    assert not any(isinstance(event, DigitPressed) for event in world.events)
    transfer.cancel()
    await asyncio.gather(transfer, return_exceptions=True)


async def test_when_the_caller_hangs_up_the_target_is_let_go(world: World) -> None:
    transfer = world.transfer()
    await world.desk.answers()
    await world.joined()
    await world.caller.hang_up(EndReason.CALLER_HANGUP)
    # As the call does when its leg tells it: whatever it runs is cancelled.
    transfer.cancel()
    await world.soon(lambda: any(isinstance(event, CallerHungUp) for event in world.desk.events))


async def _busy(world: World, leg: SipLeg) -> None:
    await leg.hang_up(EndReason.REJECTED)


async def _rings(world: World, leg: SipLeg) -> None:
    leg.ring()
    await asyncio.sleep(1.0)


async def _drops(world: World, leg: SipLeg) -> None:
    await leg.answer()
    await world.joined()
    await leg.hang_up(EndReason.AGENT_HANGUP)


async def _falls_silent(world: World, leg: SipLeg) -> None:
    media = await leg.answer()
    media.start(world.desk.ear, Tone(900).frame)
    await world.joined()
    await world.caller_ear.hears(900)
    # Its packets stop, and no BYE comes.
    leg._session._held = True
    async with asyncio.timeout(PATIENCE):
        while world.desk.events == []:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("desk", "status", "detail"),
    [
        (_busy, TransferStatus.REFUSED, "603 Decline"),
        (_rings, TransferStatus.NO_ANSWER, "not answered within 1 s"),
        (_drops, TransferStatus.FAILED, "the target hung up at once"),
        (_falls_silent, TransferStatus.FAILED, "the target was lost"),
    ],
)
async def test_a_target_that_fails_gives_the_caller_back(
    world: World, desk: Callable[[World, SipLeg], Awaitable[None]], status: TransferStatus, detail: str
) -> None:
    transfer = world.transfer(ring_seconds=1.0 if desk is _rings else PATIENCE)
    leg = await world.desk.called()
    await desk(world, leg)
    outcome = await gives_back(world, transfer, world.clock())
    assert (outcome.status, outcome.detail[: len(detail)]) == (status, detail)
    async with asyncio.timeout(PATIENCE):
        await leg.call.closed.wait()


async def test_a_target_that_is_not_there_fails_at_once(world: World) -> None:
    world.address = "nowhere.invalid"
    outcome = await gives_back(world, world.transfer(), world.clock() + 6.0)
    assert outcome.status is TransferStatus.FAILED


async def test_a_number_without_a_trunk_is_not_dialled(world: World) -> None:
    target = TransferTarget("desk", "+442071838750", "invite")
    outcome = await world.server.transfer(target, world.audio)
    assert outcome.status is TransferStatus.FAILED
    assert "trunk" in outcome.detail


async def test_a_second_transfer_has_to_wait(world: World) -> None:
    first = world.transfer()
    await world.desk.called()
    second = await world.transfer()
    assert (second.status, second.detail) == (TransferStatus.FAILED, "a transfer is under way")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_the_target_is_called_through_its_trunk(pump: Pump) -> None:
    carrier_legs: asyncio.Queue[SipLeg] = asyncio.Queue()
    incoming: asyncio.Queue[SipLeg] = asyncio.Queue()
    carrier, server, phone = (
        SipLegFactory(ports(), pump, carrier_legs.put_nowait),
        SipLegFactory(ports(), pump, incoming.put_nowait),
        SipLegFactory(ports(), pump),
    )
    host, port = await carrier.open("127.0.0.1", 0, SETTINGS)
    own_host, own_port = await server.open("127.0.0.1", 0, SETTINGS)
    await phone.open("127.0.0.1", 0, SETTINGS)
    uri = Uri.parse(f"sip:{host}:{port}")
    server.add_trunks([TrunkSettings("carrier", uri, Credentials("we", "secret", "carrier"))])
    ours = await phone.dial(f"sip:agent@{own_host}:{own_port}", caller='"A" <sip:anonymous@anonymous.invalid>')
    leg = await incoming.get()
    audio = SwitchedMedia(await leg.answer())
    await ours.answer()
    target = TransferTarget("desk", "+442071838750", "invite", trunk="carrier")
    transfer = asyncio.create_task(leg.transfer(target, audio))
    async with asyncio.timeout(PATIENCE):
        dialled = await carrier_legs.get()
    # A number that was withheld from us stays withheld from the target.
    assert (dialled.info.callee, dialled.info.caller) == ("+442071838750", None)
    transfer.cancel()
    await asyncio.gather(transfer, return_exceptions=True)
    for legs in (phone, server, carrier):
        await legs.close()


async def test_the_caller_hears_early_media_where_the_target_may_play_some(world: World) -> None:
    transfer = world.transfer(early_media=True)
    leg = await world.desk.called()
    media: Media = leg._session
    answer = leg._answer
    leg._connect(leg._agreement)  # type: ignore[arg-type]
    media.start(world.desk.ear, Tone(900).frame)
    leg.call.ring(answer)
    await world.caller_ear.hears(900)
    assert PartiesJoined() not in world.events
    # Before the answer the target does not hear the caller.
    assert not any(_share(pcm, 500) > 0.8 for pcm in world.desk.ear.frames)
    transfer.cancel()
    await asyncio.gather(transfer, return_exceptions=True)


def test_a_relay_starts_with_two_frames_and_keeps_the_newest() -> None:
    relay = FrameRelay()
    relay.put(b"1", 0.0)
    assert relay.take() is None
    relay.put(b"2", 0.0)
    assert [relay.take(), relay.take(), relay.take()] == [b"1", b"2", None]
    for number in range(MAX_RELAYED_FRAMES + 5):
        relay.put(bytes([number]), 0.0)
    assert relay.take() == bytes([5])


@pytest.mark.parametrize("taken", [True, False])
async def test_the_callers_phone_takes_our_place_in_the_call_with_the_target(world: World, taken: bool) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    world.caller.on_transfer_request = lambda uri, headers: asked.put_nowait(uri)
    target = TransferTarget("desk", f"sip:desk@{world.address}", "attended")
    transfer = asyncio.create_task(world.server.transfer(target, world.audio))
    desk_leg = await world.desk.answers()
    async with asyncio.timeout(PATIENCE):
        uri = await asked.get()
    assert "?Replaces=" in uri
    # The caller and the agent hear each other meanwhile.
    await world.agent_ear.hears(500)
    world.caller.report_transfer(200 if taken else 486)
    if taken:
        async with asyncio.timeout(PATIENCE):
            assert (await transfer).status is TransferStatus.SUCCEEDED
            await desk_leg.call.closed.wait()
    else:
        outcome = await gives_back(world, transfer, world.clock())
        assert outcome.status is TransferStatus.FAILED
        async with asyncio.timeout(PATIENCE):
            await desk_leg.call.closed.wait()


async def _answers(world: World, leg: SipLeg) -> None:
    media = await leg.answer()
    media.start(world.desk.ear, Tone(900).frame)


@pytest.mark.parametrize(
    ("desk", "phone", "status", "detail"),
    [
        # The target is not reached: the caller's phone is not asked for anything.
        (_busy, None, TransferStatus.REFUSED, "603 Decline"),
        (_rings, None, TransferStatus.NO_ANSWER, "not answered within 1 s"),
        # It is, and the caller's phone does not get through to it, or does not want to.
        (_answers, 486, TransferStatus.FAILED, "486 Busy Here"),
        (_answers, 503, TransferStatus.FAILED, "503 Service Unavailable"),
        (_answers, 603, TransferStatus.FAILED, "603 Decline"),
        # It hangs up while the phone is on its way.
        (_answers, 481, TransferStatus.FAILED, "481 Call/Transaction Does Not Exist"),
        (_answers, 200, TransferStatus.SUCCEEDED, "200 OK"),
    ],
)
async def test_each_way_an_attended_transfer_goes(
    world: World,
    desk: Callable[[World, SipLeg], Awaitable[None]],
    phone: int | None,
    status: TransferStatus,
    detail: str,
) -> None:
    known: list[float] = []
    asked: list[str] = []

    def take(uri: str, headers: object) -> None:
        asked.append(uri)
        if phone == 481:
            leg.leave(EndReason.AGENT_HANGUP)
        known.append(world.clock())
        world.caller.report_transfer(phone or 603)

    world.caller.on_transfer_request = take
    patience = 1.0 if desk is _rings else PATIENCE
    target = TransferTarget("desk", f"sip:desk@{world.address}", "attended", ring_seconds=patience)
    transfer = asyncio.create_task(world.server.transfer(target, world.audio))
    leg = await world.desk.called()
    await desk(world, leg)
    if status is TransferStatus.SUCCEEDED:
        async with asyncio.timeout(PATIENCE):
            outcome = await transfer
    else:
        outcome = await gives_back(world, transfer, known[0] if known else world.clock())
    assert (outcome.status, outcome.detail) == (status, detail)
    assert len(asked) == (phone is not None)
    # Whatever came of it, the target is not left waiting.
    async with asyncio.timeout(PATIENCE):
        await leg.call.closed.wait()
    assert world.server.call.core.is_established is (status is not TransferStatus.SUCCEEDED)


@pytest.mark.parametrize("method", ["attended", "invite"])
async def test_a_caller_who_leaves_while_the_target_rings_takes_it_along(world: World, method: str) -> None:
    target = TransferTarget("desk", f"sip:desk@{world.address}", method)
    transfer = asyncio.create_task(world.server.transfer(target, world.audio))
    leg = await world.desk.called()
    leg.ring()
    await world.caller.hang_up(EndReason.CALLER_HANGUP)
    # As the call does when its leg tells it: whatever it runs is cancelled.
    transfer.cancel()
    await world.soon(leg.call.closed.is_set)
    assert [event.reason for event in world.desk.events if isinstance(event, CallerHungUp)] == [EndReason.CANCELLED]
