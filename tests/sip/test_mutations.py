"""Damaged messages against the user agent: it lives, it is quick, and it forgets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from callagent.sip import CallReplaced, InviteReceived, Negotiation, OfferReceived, TransferRequested, UserAgent
from tests.sip.anomalies import anomalies
from tests.sip.mutations import mutants, valid
from tests.sip.pair import settings
from tests.sip.test_torture import MANIFEST, message

CASES = 4000
LONGEST = 0.05
"""Seconds of processor time."""
TORTURE = [message(name) for name in sorted(MANIFEST)]
SOURCE = ("127.0.0.1", 5999)


def answer(agent: UserAgent, now: float) -> None:
    """What an owner does with the events: reads offers, and hangs up."""
    while (event := agent.next_event()) is not None:
        if isinstance(event, InviteReceived):
            body = event.call.invite.body
            try:
                event.call.answer(
                    Negotiation("127.0.0.1", 4000, 1, loopback=True).answer(body)[0] if body else b"", now
                )
            except ValueError:
                event.call.hang_up(now, status=488)
        elif isinstance(event, OfferReceived):
            event.call.refuse_offer(now)
        elif isinstance(event, TransferRequested):
            event.call.report_transfer(603, now)
        elif isinstance(event, CallReplaced):
            event.by.hang_up(now)
    agent.messages_to_send()


def serve(agent: UserAgent, data: bytes, now: float) -> float:
    """Seconds of processor time that a message takes."""
    began = time.thread_time()
    agent.receive_datagram(data, SOURCE, now)
    answer(agent, now)
    return time.thread_time() - began


@pytest.mark.parametrize("messages", [partial(mutants, CASES, TORTURE), anomalies], ids=["mutants", "anomalies"])
def test_no_message_does_harm_or_takes_long(messages: Callable[[], Iterable[bytes]]) -> None:
    agent = UserAgent(settings(accepts_transfers=True), lambda peer: ("127.0.0.1", 5060))
    slowest, now = (0.0, b""), 100.0
    for data in messages():
        seconds = serve(agent, data, now)
        if seconds > LONGEST / 2:
            # The collector's time is nobody's fault; the message's own comes again.
            fresh = UserAgent(settings(accepts_transfers=True), lambda peer: ("127.0.0.1", 5060))
            seconds = min(seconds, serve(fresh, data, now))
        slowest = max(slowest, (seconds, data))
        now += 0.01
        agent.handle_timer(now)
        answer(agent, now)
    assert slowest[0] < LONGEST, slowest
    # A valid message is served as before, and after a while nothing of all this is left.
    agent.receive_datagram(valid(1), SOURCE, now)
    assert agent.messages_to_send()[0][0].startswith(b"SIP/2.0 200")
    while (timer := agent.next_timer()) is not None and timer < now + 4000:
        agent.handle_timer(timer)
        answer(agent, timer)
    assert not agent.calls
    assert not agent.transactions
