"""Damaged messages in the middle of a call: the user agent never raises, and the call can still be ended."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from callagent.sip import UNPROVEN, Account, CallEnded, CallPath, Credentials, DigestSettings, Hop
from callagent.sip.connections import MAX_STREAM_MESSAGE, Framer
from callagent.sip.dialog.call import SipCall
from callagent.sip.message.message import respond_to
from tests.sip.pair import SERVER, Pair, settings
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
    for number, method in enumerate(("INVITE", "UPDATE", "INFO", "NOTIFY", "REFER", "OPTIONS", "ACK", "PRACK")):
        request = in_dialog(ours, method, f"z9hG4bKf{number}", 50 + number, Contact="<sip:a@192.0.2.1;x=y>;q=0.5")
        request.headers.set("Content-Type", "application/sdp")
        request.headers.set("Refer-To", "<sip:b@192.0.2.9?Replaces=x>")
        request.headers.set("Event", "refer;id=1")
        request.headers.set("Supported", "timer, 100rel")
        request.headers.set("Session-Expires", "1800;refresher=uas")
        request.headers.set("Replaces", f"{ours.invite.call_id};to-tag=a;from-tag=b")
        request.headers.set("RAck", "1 1 INVITE")
        request.headers.set("RSeq", "1")
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


@pytest.mark.parametrize("seed", range(10))
def test_damaged_proofs_and_provisional_responses_never_raise(seed: int) -> None:
    chance = random.Random(seed)
    digest = DigestSettings("here", {"ann": Account("carrier", "secret")})
    pair = Pair(server=settings(admit=lambda host: UNPROVEN, digest=digest))
    way = CallPath((Hop(*SERVER),), Credentials("ann", "secret", "here"))
    ours = pair.dial(path=way)
    pair.run(0.05)
    more = [
        ("Require", "100rel"),
        ("RSeq", "5"),
        ("Contact", "<sip:192.0.2.2>"),
        ("Session-Expires", "90;refresher=uac"),
    ]
    responses = [
        bytes(respond_to(ours.invite, status, tag="far", headers=[*more, ("Min-SE", "90"), ("Allow", "UPDATE")]))
        for status in (183, 200, 302, 401, 407, 422, 503)
    ]
    responses += [bytes(heard) for heard in pair.phone.heard]
    requests = [bytes(heard) for heard in pair.server.heard]
    for _ in range(80):
        to = chance.choice(["phone", "server"])
        data = chance.choice(responses if to == "phone" else requests)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(PIECES) + data[at + chance.randrange(3) :]
        pair.send(data, to=to)
        pair.run(0.2)
    for call in [*pair.phone.core.calls, *pair.server.core.calls]:
        call.hang_up(pair.now)
    pair.run(600.0)
    assert not pair.phone.core.calls
    assert not pair.server.core.calls


@given(st.binary(max_size=4000), st.lists(st.integers(1, 300), min_size=1, max_size=20))
@settings_of_hypothesis(max_examples=200)
def test_a_stream_reads_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    data = data.replace(b"9", b"\r\n\r\n").replace(b"8", b"Content-Length: 3\r\n").replace(b"7", b"\r\n")
    whole, cut = Framer(), Framer()
    messages = whole.feed(data)
    pieces, at = [], 0
    for length in itertools.cycle(cuts):
        if at >= len(data):
            break
        pieces += cut.feed(data[at : at + length])
        at += length
    assert (pieces, cut.broken, cut.is_partial) == (messages, whole.broken, whole.is_partial)


def test_a_long_header_is_not_searched_again_and_again() -> None:
    framer = Framer()
    for _ in range(MAX_STREAM_MESSAGE + 10):
        framer.feed(b"x")
    assert framer.broken == b""


def test_the_torture_messages_in_a_row_leave_a_running_call_alone() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    for name in sorted(MANIFEST):
        pair.send(message(name))
    pair.run(40.0)
    assert ours.is_established
    assert theirs.is_established
