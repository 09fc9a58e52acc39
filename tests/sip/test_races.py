"""Random schedules: whatever both sides do whenever, and whatever the wire loses, nothing is left behind."""

from __future__ import annotations

import random

import pytest

from callagent.sip import CallEnded, Event, InviteReceived, Negotiation, OfferReceived, TransferRequested, Uri
from callagent.sip.dialog.call import SipCall
from callagent.sip.dialog.call_machine import CALL_TABLE, CallEffect, CallInput, CallState
from tests.sip.pair import PHONE, SERVER, Pair


def act(pair: Pair, call: SipCall, chance: random.Random) -> None:
    action = chance.choice(["ring", "answer", "hang up", "reoffer", "refer", "nothing"])
    host = PHONE[0] if call.outgoing else SERVER[0]
    if action == "ring":
        call.ring(pair.now)
    elif action == "answer" and not call.outgoing:
        call.answer(pair.answer_to(call), pair.now)
    elif action == "hang up":
        call.hang_up(pair.now, status=chance.choice([480, 486, 503]))
    elif action == "reoffer":
        call.reoffer(Negotiation(host, 6000, 5, loopback=False).offer(), pair.now)
    elif action == "refer" and call.is_established:
        try:
            call.refer(Uri.parse("sip:desk@192.0.2.9"), pair.now)
        except ValueError:
            pass


def listener(pair: Pair, calls: list[SipCall], chance: random.Random):
    def on_event(event: Event) -> None:
        if isinstance(event, InviteReceived):
            calls.append(event.call)
        elif isinstance(event, OfferReceived):
            host = PHONE[0] if event.call.outgoing else SERVER[0]
            answer, _ = Negotiation(host, 6000, 5, loopback=False).answer(event.body)
            event.call.accept_offer(answer, pair.now)
        elif isinstance(event, TransferRequested):
            event.call.report_transfer(chance.choice([180, 200, 486]), pair.now)

    return on_event


@pytest.mark.parametrize("block", range(20))
def test_no_schedule_leaves_anything_behind(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        chance = random.Random(seed)
        loss = chance.choice([0.0, 0.1, 0.4])
        pair = Pair(lambda number, data, c=chance, share=loss: c.random() < share)
        calls = [pair.dial()]
        pair.phone.on_event = pair.server.on_event = listener(pair, calls, chance)
        for _ in range(chance.randrange(1, 12)):
            pair.run(chance.choice([0.0, 0.005, 0.02, 0.3, 5.0]))
            act(pair, chance.choice(calls), chance)
        pair.run(1.0)
        for call in calls:
            call.hang_up(pair.now)
        pair.run(400.0)
        assert pair.idle(), seed
        assert len(pair.server.calls) <= 1, seed
        assert len(pair.server.of(CallEnded)) == len(pair.server.calls), seed
        assert len(pair.phone.of(CallEnded)) == 1, seed


def test_every_state_is_reached_and_can_end() -> None:
    reached = {CallState.INCOMING, CallState.DIALLING}
    for _ in CallState:
        reached |= {target for (state, _), (target, _) in CALL_TABLE.items() if state in reached}
    assert reached == set(CallState)
    leaving = {state for state, _ in CALL_TABLE}
    assert leaving == set(CallState) - {CallState.ENDED}


def test_the_owner_is_told_of_every_end() -> None:
    """Into ENDED leads only what tells it, or what told it before."""
    for (state, event), (target, effects) in CALL_TABLE.items():
        if target is CallState.ENDED and state is not CallState.ENDED:
            assert CallEffect.EMIT_ENDED in effects, (state, event)


def test_hanging_up_is_possible_in_every_state_that_has_not_begun_to_end() -> None:
    cancelling = {CallState.CANCEL_PENDING, CallState.CANCEL_SENT}
    ending = cancelling | {CallState.BYE_PENDING, CallState.BYE_SENT, CallState.ENDED}
    for state in set(CallState) - ending:
        assert (state, CallInput.HANG_UP) in CALL_TABLE
