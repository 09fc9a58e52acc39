"""Damaged messages in the middle of a call: the user agent never raises, and the call can still be ended."""

from __future__ import annotations

import random

import pytest

from callagent.sip import CallEnded
from callagent.sip.call import SipCall
from tests.sip.pair import Pair
from tests.sip.test_torture import MANIFEST, message
from tests.sip.test_user_agent import in_dialog

PIECES = [
    b"",
    b'"',
    b"<",
    b">",
    b";",
    b",",
    b"\r\n",
    b"\xff",
    b"\x00",
    b"=",
    b":",
    b"@",
    b"%",
    b"9" * 12,
    b" ",
    b"z" * 300,
]


def messages(pair: Pair, ours: SipCall) -> list[bytes]:
    """One of each kind that a peer sends within a call, and before one."""
    made = []
    for number, method in enumerate(("INVITE", "UPDATE", "INFO", "NOTIFY", "REFER", "OPTIONS", "ACK")):
        request = in_dialog(ours, method, f"z9hG4bKf{number}", 50 + number, Contact="<sip:a@192.0.2.1;x=y>;q=0.5")
        request.headers.set("Content-Type", "application/sdp")
        request.headers.set("Refer-To", "<sip:b@192.0.2.9?Replaces=x>")
        request.headers.set("Event", "refer;id=1")
        request.headers.set("Subscription-State", "active;expires=60")
        request.headers.set("Record-Route", "<sip:192.0.2.8;lr>, <sip:192.0.2.9>")
        request.body = ours.invite.body
        made.append(bytes(request))
    responses = [bytes(heard) for heard in pair.phone.heard]
    return [*made, bytes(ours.invite), *responses]


@pytest.mark.parametrize("seed", range(25))
def test_damage_never_raises_and_never_keeps_a_call(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair()
    ours, theirs = pair.establish()
    theirs.reoffer(ours.invite.body, pair.now)
    originals = messages(pair, ours)
    for _ in range(80):
        data = chance.choice(originals)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(PIECES) + data[at + chance.randrange(3) :]
        pair.send(data, to=chance.choice(["phone", "server"]))
    pair.run(5.0)
    for call in [*pair.phone.core.calls, *pair.server.core.calls]:
        call.hang_up(pair.now)
    pair.run(600.0)
    assert not pair.phone.core.calls
    assert not pair.server.core.calls
    assert len({id(event.call) for event in pair.server.of(CallEnded)}) == len(pair.server.of(CallEnded))


def test_the_torture_messages_in_a_row_leave_a_running_call_alone() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    for name in sorted(MANIFEST):
        pair.send(message(name))
    pair.run(40.0)
    assert ours.established
    assert theirs.established
