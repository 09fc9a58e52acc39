"""What peers make of a REFER of ours, and when the call knows: a server, and a phone that does what the table says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import CallerHungUp, LegEvent, TransferStatus, TransferTarget
from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import SipLeg
from callagent.rtp import Pump, RtpPorts
from callagent.sip import Dialog, UserAgentSettings
from callagent.sip.dialog.call import SipCall
from callagent.sip.message.message import reason_phrase
from callagent.sip.transaction_layer import ServerTransaction
from tests.own_time import OwnTime, own_time

NOTIFY_LIMIT, TRANSFER_LIMIT = 0.4, 0.8
SETTINGS = UserAgentSettings(
    admit=lambda host: "local", accepts_transfers=True, notify_limit=NOTIFY_LIMIT, transfer_limit=TRANSFER_LIMIT
)
PATIENCE = 60.0
SOON = 1.0
"""Seconds after which the agent has the caller back, once a failure is known."""
ACTIVE, OVER = "active;expires=60", "terminated;reason=noresource"


@dataclass(frozen=True)
class Story:
    """What the phone does with the REFER."""

    answer: int
    notices: tuple[tuple[int | None, str], ...] = ()
    """Status of the fragment, None: there is none; and the state of the subscription."""
    leaves: bool = False
    vanishes: bool = False
    """It does not answer at all."""


class Referred:
    """In the place of the phone's own handling of REFER."""

    def __init__(self, story: Story, clock: OwnTime) -> None:
        self._story = story
        self._clock = clock
        self.done_at = 0.0

    def receive(self, call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        if self._story.vanishes:
            return
        call.core.respond(transaction, dialog, self._story.answer, now)
        for status, state in self._story.notices:
            notify = dialog.request("NOTIFY")
            notify.headers.add("Event", "refer")
            notify.headers.add("Subscription-State", state)
            if status is not None:
                notify.headers.add("Content-Type", "message/sipfrag;version=2.0")
                notify.body = f"SIP/2.0 {status} {reason_phrase(status)}\r\n".encode()
            call.core.send_request(notify, dialog.next_hop(), lambda response, at: None, now)
        if self._story.leaves:
            call.hang_up(now)
        self.done_at = self._clock()


@pytest.fixture
def clock() -> Iterator[OwnTime]:
    with own_time() as running:
        yield running


@pytest.fixture
async def legs() -> AsyncIterator[tuple[SipLeg, SipLeg]]:
    """The phone's leg and the server's of one answered call."""
    pump = Pump()
    pump.start()
    came: asyncio.Queue[SipLeg] = asyncio.Queue()
    server = SipLegFactory(RtpPorts("127.0.0.1", 20000, 29998, rest_seconds=0.0), pump, came.put_nowait)
    phone = SipLegFactory(RtpPorts("127.0.0.1", 20000, 29998, rest_seconds=0.0), pump)
    quick = replace(SETTINGS, timers=replace(SETTINGS.timers, t1=0.02))
    host, port = await server.open("127.0.0.1", 0, quick)
    await phone.open("127.0.0.1", 0, SETTINGS)
    async with asyncio.timeout(PATIENCE):
        ours = await phone.dial(f"sip:agent@{host}:{port}")
        theirs = await came.get()
        await theirs.answer()
        await ours.answer()
    yield ours, theirs
    await phone.close()
    await server.close()
    pump.stop()


S = TransferStatus
GONE = "remote"


@pytest.mark.parametrize(
    ("story", "status", "detail", "known_after"),
    [
        # It takes the call over.
        (Story(202, ((100, ACTIVE), (200, OVER))), S.SUCCEEDED, "200 OK", 0.0),
        (Story(202, ((100, ACTIVE), (180, ACTIVE), (200, ACTIVE))), S.SUCCEEDED, "200 OK", 0.0),
        (Story(202, ((200, OVER),), leaves=True), S.SUCCEEDED, "200 OK", 0.0),
        # It tried, and nobody came.
        (Story(202, ((100, ACTIVE), (486, OVER))), S.FAILED, "486 Busy Here", 0.0),
        (Story(202, ((100, ACTIVE), (503, OVER))), S.FAILED, "503 Service Unavailable", 0.0),
        (Story(202, ((100, ACTIVE), (603, OVER))), S.FAILED, "603 Decline", 0.0),
        (Story(202, ((404, ACTIVE),)), S.FAILED, "404 Not Found", 0.0),
        (Story(202, ((408, OVER),)), S.FAILED, "408 Request Timeout", 0.0),
        (Story(202, ((302, OVER),)), S.FAILED, "302 Moved Temporarily", 0.0),
        # It stops telling without an outcome.
        (Story(202, ((None, OVER),)), S.FAILED, "0 the peer ended it without an outcome", 0.0),
        (
            Story(202, ((100, ACTIVE), (180, OVER))),
            S.FAILED,
            "0 the peer ended it without an outcome",
            0.0,
        ),
        # It tells nothing, or nothing more.
        (Story(202), S.NO_ANSWER, "408 the peer reported no outcome in time", NOTIFY_LIMIT),
        (Story(202, ((100, ACTIVE),)), S.NO_ANSWER, "408 the peer reported no outcome in time", TRANSFER_LIMIT),
        (Story(202, ((None, ACTIVE),)), S.NO_ANSWER, "408 the peer reported no outcome in time", TRANSFER_LIMIT),
        # It does not want to.
        (Story(403), S.REFUSED, "403 Forbidden", 0.0),
        (Story(405), S.REFUSED, "405 Method Not Allowed", 0.0),
        (Story(501), S.REFUSED, "501 Not Implemented", 0.0),
        (Story(603), S.REFUSED, "603 Decline", 0.0),
        # The caller has gone: no transfer has failed.
        (Story(202, leaves=True), S.CALLER_GONE, GONE, 0.0),
        (Story(202, ((100, ACTIVE),), leaves=True), S.CALLER_GONE, GONE, 0.0),
        (Story(202, ((100, ACTIVE), (180, ACTIVE)), leaves=True), S.CALLER_GONE, GONE, 0.0),
    ],
)
async def test_each_way_a_blind_transfer_goes(
    legs: tuple[SipLeg, SipLeg],
    clock: OwnTime,
    story: Story,
    status: TransferStatus,
    detail: str,
    known_after: float,
) -> None:
    ours, theirs = legs
    referred = Referred(story, clock)
    ours.call.core.refer_receiver = referred  # type: ignore[assignment]
    events: list[LegEvent] = []
    theirs.listen(events.append)
    async with asyncio.timeout(PATIENCE):
        outcome = await theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1:5999"))
    took = clock() - referred.done_at
    assert (outcome.status, outcome.detail) == (status, detail)
    assert known_after <= took + clock.stalled + 0.1
    assert took < known_after + SOON
    core = theirs.call.core
    if status in (S.SUCCEEDED, S.CALLER_GONE):
        assert not core.is_established
        assert [type(each) for each in events] == [CallerHungUp] * (status is S.CALLER_GONE)
    else:
        # The caller is still with us, and may be sent somewhere else.
        assert core.is_established
        assert events == []
        await theirs.hang_up(EndReason.AGENT_HANGUP)


async def test_a_refer_that_nobody_answers_fails_and_its_caller_may_be_spoken_to(
    legs: tuple[SipLeg, SipLeg], clock: OwnTime
) -> None:
    ours, theirs = legs
    ours.call.core.refer_receiver = Referred(Story(0, vanishes=True), clock)  # type: ignore[assignment]
    began = clock()
    async with asyncio.timeout(PATIENCE):
        outcome = await theirs.transfer(TransferTarget("desk", "sip:desk@127.0.0.1:5999"))
    assert (outcome.status, outcome.detail) == (S.FAILED, "408 the peer reported no outcome in time")
    took = clock() - began
    assert took + clock.stalled >= TRANSFER_LIMIT
    assert took < TRANSFER_LIMIT + SOON
    assert theirs.call.core.is_established
    await theirs.hang_up(EndReason.AGENT_HANGUP)
