"""The user agent against itself over a wire in memory: answers, races, losses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from callagent.sip import (
    Address,
    CallAnswered,
    CallConfirmed,
    CallEnded,
    CallRinging,
    DigitReceived,
    EndCause,
    Event,
    Hop,
    InviteReceived,
    Negotiation,
    OfferAnswered,
    OfferReceived,
    OfferRefused,
    Request,
    Response,
    Uri,
    UserAgent,
    parse_message,
)
from callagent.sip.message.headers import Headers
from callagent.sip.message.message import CSeq
from callagent.sip.transaction_layer import server_key
from tests.sip.pair import PHONE, SERVER, Pair, settings


def ended(side_events: list[Event]) -> CallEnded:
    (event,) = [event for event in side_events if isinstance(event, CallEnded)]
    return event


def in_dialog(call, method: str, branch: str = "z9hG4bKtest", cseq: int | None = None, **headers: str) -> Request:
    """A request of the phone within its call."""
    request = call.dialog.request(method, cseq)
    request.headers.insert_first("Via", f"SIP/2.0/UDP {PHONE[0]}:{PHONE[1]};branch={branch};rport")
    for name, value in headers.items():
        request.headers.set(name.replace("_", "-"), value)
    return request


def answer_at_once(pair: Pair) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, InviteReceived):
            event.call.ring(pair.now)
            event.call.answer(pair.answer_to(event.call), pair.now)

    pair.server.on_event = on_event


# A call


def test_a_call_rings_is_answered_and_hung_up_by_the_caller() -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(1.0)
    theirs = pair.server.calls[0]
    theirs.ring(pair.now)
    pair.run(1.0)
    assert pair.phone.statuses("INVITE") == [100, 180]
    theirs.answer(pair.answer_to(theirs), pair.now)
    pair.run(1.0)
    assert ours.is_established
    assert theirs.is_established
    assert len(pair.phone.of(CallRinging)) == 1
    assert b"m=audio 5000" in pair.phone.of(CallAnswered)[0].body
    assert len(pair.server.of(CallConfirmed)) == 1
    ours.hang_up(pair.now)
    pair.run()
    assert ended(pair.server.events).cause is EndCause.REMOTE
    assert ended(pair.phone.events).cause is EndCause.LOCAL
    assert pair.idle()


def test_we_hang_up_with_headers_of_ours() -> None:
    pair = Pair()
    _, theirs = pair.establish()
    theirs.hang_up(pair.now, headers={"X-Why": "done", "Reason": "Q.850;cause=16"})
    pair.run()
    (bye,) = pair.phone.requests("BYE")
    assert bye.headers.get("X-Why") == "done"
    assert ended(pair.phone.events).headers.get("Reason") == "Q.850;cause=16"
    assert pair.idle()


def test_a_call_is_refused_with_the_status_given() -> None:
    pair = Pair()
    pair.dial()
    pair.run(0.1)
    pair.server.calls[0].hang_up(pair.now, status=486)
    pair.run()
    event = ended(pair.phone.events)
    assert (event.cause, event.status, event.reason) == (EndCause.REFUSED, 486, "Busy Here")
    assert pair.idle()


def test_an_invite_without_an_offer_is_offered_to_and_the_ack_answers() -> None:
    pair = Pair()
    ours = pair.dial(b"")
    answer_offer = Negotiation(SERVER[0], 5000, 2, loopback=False)
    pair.server.on_event = lambda event: (
        event.call.answer(answer_offer.offer(), pair.now) if isinstance(event, InviteReceived) else None
    )
    pair.run(1.0)
    assert b"PCMA" in pair.phone.of(CallAnswered)[0].body
    assert ours.is_established


# Losses


@pytest.mark.parametrize("seed", range(60))
def test_with_a_third_of_all_datagrams_lost_every_call_completes_once(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(lambda number, data: chance.random() < 0.3)
    answer_at_once(pair)
    ours = pair.dial()
    pair.run(20.0)
    who = chance.choice(["phone", "server"])
    if who == "phone":
        ours.hang_up(pair.now)
    else:
        for call in pair.server.calls:
            call.hang_up(pair.now)
    pair.run(300.0)
    assert len(pair.server.calls) <= 1
    assert len(pair.server.of(CallEnded)) == len(pair.server.calls)
    assert len(pair.phone.of(CallEnded)) == 1
    assert pair.idle()


def test_a_retransmitted_invite_makes_no_second_call() -> None:
    pair = Pair(lambda number, data: data.startswith(b"SIP/2.0"))
    pair.dial()
    pair.run(20.0)
    assert len(pair.server.requests("INVITE")) == 6
    assert len(pair.server.calls) == 1


def test_without_an_ack_the_200_goes_out_again_and_then_the_call_is_ended_by_bye() -> None:
    pair = Pair(lambda number, data: data.startswith(b"ACK"))
    answer_at_once(pair)
    pair.dial()
    start = pair.now
    pair.run(31.0)
    # 0, 0.5, 1.5, 3.5, 7.5, then every 4 s (§13.3.1.4)
    assert len([s for s in pair.phone.statuses("INVITE") if s == 200]) == 10
    assert not pair.server.of(CallEnded)
    pair.run(2.0)
    assert ended(pair.server.events).cause is EndCause.TIMEOUT
    assert len(pair.phone.requests("BYE")) == 1
    assert pair.now - start < 34
    pair.run()
    assert pair.idle()


def test_a_lost_ack_is_sent_again_for_each_200() -> None:
    lost = iter([True, True])
    pair = Pair(lambda number, data: data.startswith(b"ACK") and next(lost, False))
    answer_at_once(pair)
    pair.dial()
    pair.run(5.0)
    assert len(pair.server.requests("ACK")) == 1
    assert pair.server.of(CallConfirmed)


def test_a_retransmitted_bye_is_answered_again() -> None:
    lost = iter([True])
    pair = Pair()
    ours, _ = pair.establish()
    pair.lose = lambda number, data: data.startswith(b"SIP/2.0 200") and next(lost, False)
    ours.hang_up(pair.now)
    pair.run()
    assert len(pair.server.requests("BYE")) == 2
    assert pair.phone.statuses("BYE") == [200]
    assert len(pair.server.of(CallEnded)) == 1


def test_nobody_answers_our_invite() -> None:
    pair = Pair(lambda number, data: True)
    pair.dial()
    pair.run(40.0)
    assert ended(pair.phone.events).cause is EndCause.TIMEOUT
    assert pair.idle()


def test_a_call_that_only_rings_is_given_up() -> None:
    pair = Pair(phone=settings(ring_limit=30.0))
    pair.dial()
    pair.run(29.0)
    assert not pair.phone.of(CallEnded)
    pair.run(2.0)
    assert ended(pair.phone.events).cause is EndCause.TIMEOUT
    assert ended(pair.server.events).cause is EndCause.CANCELLED


# CANCEL


def test_cancel_while_ringing_is_answered_and_the_invite_terminated() -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(0.5)
    pair.server.calls[0].ring(pair.now)
    pair.run(0.5)
    ours.hang_up(pair.now)
    pair.run()
    assert pair.phone.statuses("CANCEL") == [200]
    assert pair.phone.statuses("INVITE")[-1] == 487
    assert ended(pair.server.events).cause is EndCause.CANCELLED
    assert ended(pair.phone.events).cause is EndCause.LOCAL
    assert pair.idle()


def test_cancel_waits_for_the_first_provisional_response() -> None:
    pair = Pair()
    ours = pair.dial()
    ours.hang_up(pair.now)
    assert not pair.server.requests("CANCEL")
    pair.run()
    heard = [message.method for message in pair.server.heard if isinstance(message, Request)]
    assert heard.index("INVITE") < heard.index("CANCEL")
    assert pair.phone.statuses("INVITE")[-1] == 487
    assert pair.idle()


def test_cancel_that_crosses_our_200_ends_the_call_by_bye_once_the_ack_is_there() -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(0.5)
    theirs = pair.server.calls[0]
    # Both at once: neither has heard of the other's.
    ours.hang_up(pair.now)
    theirs.answer(pair.answer_to(theirs), pair.now)
    pair.run()
    assert pair.phone.statuses("CANCEL") == [200]
    assert ended(pair.server.events).cause is EndCause.CANCELLED
    assert not pair.server.of(CallConfirmed)
    assert pair.phone.requests("BYE") or pair.server.requests("BYE")
    assert pair.idle()


@pytest.mark.parametrize("delay", [step / 200 for step in range(12)])
def test_cancel_around_the_answer_leaves_nothing_behind(delay: float) -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(0.5)
    theirs = pair.server.calls[0]
    theirs.answer(pair.answer_to(theirs), pair.now)
    pair.run(delay)
    ours.hang_up(pair.now)
    pair.run()
    assert len(pair.server.of(CallEnded)) == 1
    assert len(pair.phone.of(CallEnded)) == 1
    assert pair.idle()


def test_cancel_after_the_call_is_established_is_unknown() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    invite = ours.invite
    cancel = Request(Headers([("Via", str(invite.via)), *_identity(invite)]), method="CANCEL", uri=invite.uri)
    cancel.headers.add("CSeq", str(CSeq(invite.cseq.number, "CANCEL")))
    pair.send(bytes(cancel))
    pair.run(1.0)
    assert pair.phone.statuses("CANCEL") == [481]
    assert theirs.is_established


def test_a_cancel_for_nothing_is_unknown() -> None:
    pair = Pair()
    invite = pair.dial().invite
    pair.run(0.1)
    via = str(invite.via).replace("z9hG4bK", "z9hG4bKanother")
    cancel = Request(Headers([("Via", via), *_identity(invite)]), method="CANCEL", uri=invite.uri)
    cancel.headers.add("CSeq", "1 CANCEL")
    pair.send(bytes(cancel))
    pair.run(0.1)
    assert pair.phone.statuses("CANCEL") == [481]


def _identity(invite: Request) -> list[tuple[str, str]]:
    return [(name, invite.headers.get(name) or "") for name in ("From", "To", "Call-ID")]


# BYE


def test_both_hang_up_at_once_and_both_are_answered() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    ours.hang_up(pair.now)
    theirs.hang_up(pair.now)
    pair.run()
    assert pair.phone.statuses("BYE") == [200]
    assert pair.server.statuses("BYE") == [200]
    assert ended(pair.server.events).cause is EndCause.LOCAL
    assert pair.idle()


def test_hanging_up_before_the_ack_waits_for_it() -> None:
    pair = Pair()
    pair.dial()
    pair.run(0.5)
    theirs = pair.server.calls[0]
    theirs.answer(pair.answer_to(theirs), pair.now)
    theirs.hang_up(pair.now)
    pair.run()
    heard = [m.method if isinstance(m, Request) else m.status for m in pair.phone.heard]
    assert heard.index(200) < heard.index("BYE")
    assert pair.idle()


def test_bye_before_the_answer_ends_the_invite() -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(0.5)
    theirs = pair.server.calls[0]
    theirs.ring(pair.now)
    pair.run(0.5)
    bye = Request(Headers(), method="BYE", uri=ours.invite.uri)
    bye.headers.add("Via", f"SIP/2.0/UDP {PHONE[0]};branch=z9hG4bKbye")
    for name, value in (("From", ours.invite.headers.get("From")), ("To", str(theirs.dialog.local))):
        bye.headers.add(name, value or "")
    bye.headers.add("Call-ID", ours.invite.call_id)
    bye.headers.add("CSeq", "2 BYE")
    pair.send(bytes(bye))
    pair.run(1.0)
    assert pair.phone.statuses("BYE") == [200]
    assert pair.phone.statuses("INVITE")[-1] == 487
    assert ended(pair.server.events).cause is EndCause.CANCELLED


def test_a_bye_for_no_call_is_unknown() -> None:
    pair = Pair()
    ours, _ = pair.establish()
    bye = in_dialog(ours, "BYE")
    bye.headers.set("Call-ID", "another")
    pair.send(bytes(bye))
    pair.run(1.0)
    assert pair.phone.statuses("BYE") == [481]


def test_a_request_older_than_the_last_one_is_refused() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    pair.send(bytes(in_dialog(ours, "OPTIONS", "z9hG4bKa", cseq=20)))
    pair.send(bytes(in_dialog(ours, "OPTIONS", "z9hG4bKb", cseq=19)))
    pair.run(1.0)
    assert pair.phone.statuses("OPTIONS") == [200, 500]
    assert theirs.is_established


# Offers within the call


def test_a_reoffer_is_answered() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    negotiation = Negotiation(SERVER[0], 5000, 2, loopback=False)
    pair.server.on_event = lambda event: (
        theirs.accept_offer(negotiation.answer(event.body)[0], pair.now) if isinstance(event, OfferReceived) else None
    )
    ours.reoffer(Negotiation(PHONE[0], 4100, 1, loopback=False).offer(), pair.now)
    pair.run(1.0)
    assert len(pair.phone.of(OfferAnswered)) == 1
    ours.hang_up(pair.now)
    pair.run()
    assert pair.idle()


def test_a_refused_reoffer_keeps_the_call() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    pair.server.on_event = lambda event: theirs.refuse_offer(pair.now) if isinstance(event, OfferReceived) else None
    ours.reoffer(b"v=0", pair.now)
    pair.run(1.0)
    assert pair.phone.of(OfferRefused)[0].status == 488
    assert ours.is_established
    assert theirs.is_established


def test_two_reoffers_that_meet_are_both_told_to_wait_and_one_gets_through_later() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    answers = {id(ours): Negotiation(PHONE[0], 4000, 1, loopback=False)}
    answers[id(theirs)] = Negotiation(SERVER[0], 5000, 2, loopback=False)

    def on_event(event: Event) -> None:
        if isinstance(event, OfferReceived):
            event.call.accept_offer(answers[id(event.call)].answer(event.body)[0], pair.now)

    pair.phone.on_event = pair.server.on_event = on_event
    ours.reoffer(answers[id(ours)].offer(), pair.now)
    theirs.reoffer(answers[id(theirs)].offer(), pair.now)
    pair.run(10.0)
    assert 491 in pair.phone.statuses("INVITE")
    assert 491 in pair.server.statuses("INVITE")
    assert len(pair.phone.of(OfferAnswered)) == 1
    assert len(pair.server.of(OfferAnswered)) == 1


def refusing(pair: Pair) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if isinstance(event, OfferReceived):
            event.call.refuse_offer(pair.now, 491)

    return on_event


@pytest.mark.parametrize(("caller", "soonest", "latest"), [(True, 2.1, 4.0), (False, 0.0, 2.0)])
def test_who_chose_the_call_id_waits_longer_after_glare(caller: bool, soonest: float, latest: float) -> None:
    for _ in range(20):
        pair = Pair()
        ours, theirs = pair.establish()
        call, side = (ours, pair.server) if caller else (theirs, pair.phone)
        side.on_event = refusing(pair)
        before = len(side.requests("INVITE"))
        call.reoffer(Negotiation(PHONE[0], 4000, 1, loopback=False).offer(), pair.now)
        pair.run(0.015)
        assert len(side.requests("INVITE")) == before + 1
        began = pair.now
        while len(side.requests("INVITE")) == before + 1:
            pair.run(0.01)
        assert soonest - 0.1 <= pair.now - began <= latest + 0.1
        # Once more, and then the owner is told.
        pair.run(10.0)
        assert len(side.requests("INVITE")) == before + 2


def test_a_reoffer_after_bye_finds_no_call() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    request = in_dialog(ours, "INVITE", cseq=9, Content_Type="application/sdp", Contact="<sip:192.0.2.1>")
    theirs.hang_up(pair.now)
    pair.send(bytes(request))
    pair.run(1.0)
    assert 481 in pair.phone.statuses("INVITE")


def test_an_update_without_an_offer_moves_the_peers_contact() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    pair.send(bytes(in_dialog(ours, "UPDATE", Contact="<sip:moved@192.0.2.1:5060>")))
    pair.run(1.0)
    assert pair.phone.statuses("UPDATE") == [200]
    theirs.hang_up(pair.now)
    pair.run()
    assert pair.phone.requests("BYE")[0].uri.user == "moved"


# INFO, OPTIONS, and what we do not do


@pytest.mark.parametrize(
    ("kind", "body", "digits"),
    [
        ("application/dtmf-relay", b"Signal=5\r\nDuration=160\r\n", ["5"]),
        ("application/dtmf-relay", b"Signal= *\nDuration= 100", ["*"]),
        ("application/dtmf-relay", b"Signal=11\r\n", ["#"]),
        ("application/dtmf", b"d", ["D"]),
        ("application/dtmf", b"16", []),
    ],
)
def test_a_digit_by_info_is_told_once(kind: str, body: bytes, digits: list[str]) -> None:
    pair = Pair()
    ours, _ = pair.establish()
    info = in_dialog(ours, "INFO", Content_Type=kind)
    info.body = body
    pair.send(bytes(info))
    pair.send(bytes(info))
    pair.run(1.0)
    assert pair.phone.statuses("INFO") == [200, 200]
    assert [event.digit for event in pair.server.of(DigitReceived)] == digits


def test_info_of_another_type_is_refused() -> None:
    pair = Pair()
    ours, _ = pair.establish()
    info = in_dialog(ours, "INFO", Content_Type="application/media_control+xml")
    info.body = b"<x/>"
    pair.send(bytes(info))
    pair.run(1.0)
    assert pair.phone.statuses("INFO") == [415]


ALLOW = ("Allow", "INVITE, ACK, BYE, CANCEL, OPTIONS, INFO, UPDATE, MESSAGE, NOTIFY, PRACK")


@pytest.mark.parametrize(
    ("uri", "headers", "scheme"),
    [
        ("sip:agent@192.0.2.2", {}, "sip"),
        ("sips:agent@192.0.2.2", {}, "sips"),
        ("sip:agent@192.0.2.2", {"Record-Route": "<sips:proxy@192.0.2.1;lr>"}, "sips"),
        ("sip:agent@192.0.2.2", {"Record-Route": "<sip:192.0.2.1;lr>", "Contact": "<sips:a@192.0.2.1>"}, "sip"),
        ("sip:agent@192.0.2.2", {"Contact": "<sips:a@192.0.2.1>"}, "sips"),
    ],
)
def test_a_request_with_a_sips_uri_is_answered_with_a_sips_contact(
    uri: str, headers: dict[str, str], scheme: str
) -> None:
    """RFC 3261 §12.1.1: by the Request-URI, the top Record-Route, or without one the Contact."""
    pair = Pair()
    answer_at_once(pair)
    request = parse_message(outside("INVITE", uri))
    for name, value in headers.items():
        request.headers.set(name, value)
    request.body = Negotiation(PHONE[0], 4000, 1, loopback=False).offer()
    request.headers.set("Content-Type", "application/sdp")
    pair.server.core.receive_message(bytes(request), Hop(PHONE[0], 5061, "tls", connection=5061), pair.now)
    pair._collect()
    pair._collect()
    (call,) = pair.server.core.calls
    contact = call.dialog.local_contact.uri
    assert contact.scheme == scheme
    # A sips URI has no transport of its own: it always means TLS (RFC 3261 §26.2.2).
    assert ("transport" in contact.parameters) is (scheme == "sip")


@pytest.mark.parametrize(("target", "scheme"), [("sip:a@192.0.2.2", "sip"), ("sips:a@192.0.2.2", "sips")])
def test_a_call_to_a_sips_uri_has_a_sips_contact(target: str, scheme: str) -> None:
    """RFC 3261 §8.1.1.8."""
    agent = UserAgent(settings(), lambda peer: SERVER)
    caller = Address.parse("<sip:agent@192.0.2.1>")
    call = agent.call(Uri.parse(target), Hop(*SERVER, "tls"), 0.0, caller=caller, body=b"")
    assert call.invite.contacts[0].uri.scheme == scheme


def test_a_datagram_without_its_last_empty_line_is_accepted() -> None:
    """Its end is the end of the headers (RFC 3261 §18.3 has the datagram as the frame)."""
    pair = Pair()
    pair.send(outside("OPTIONS").removesuffix(b"\r\n"))
    pair.run(0.1)
    assert pair.phone.statuses("OPTIONS") == [200]


@pytest.mark.parametrize("cut", [3, 4, 9])
def test_a_datagram_that_ends_within_a_header_is_refused(cut: int) -> None:
    pair = Pair()
    pair.send(outside("OPTIONS")[:-cut])
    pair.run(0.1)
    assert pair.phone.statuses("OPTIONS") == [400]


def test_a_datagram_without_its_last_empty_line_that_announces_a_body_is_refused() -> None:
    pair = Pair()
    pair.send(outside("OPTIONS").replace(b"Content-Length: 0\r\n\r\n", b"Content-Length: 5\r\n"))
    pair.run(0.1)
    assert pair.phone.statuses("OPTIONS") == [400]


def outside(method: str, uri: str = "sip:agent@192.0.2.2", **headers: str) -> bytes:
    request = Request(Headers(), method=method, uri=Uri.parse(uri))
    given = {
        "Via": "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKout;rport",
        "From": "<sip:a@192.0.2.1>;tag=1",
        "To": "<sip:agent@192.0.2.2>",
        "Call-ID": "outside",
        "CSeq": f"1 {method}",
        "Max-Forwards": "70",
        **({"Contact": "<sip:a@192.0.2.1>"} if method == "INVITE" else {}),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    for name, value in given.items():
        request.headers.add(name, value)
    return bytes(request)


@pytest.mark.parametrize(
    ("data", "status", "header"),
    [
        (outside("OPTIONS"), 200, ALLOW),
        (outside("OPTIONS", Max_Forwards="0"), 200, None),
        (outside("REGISTER"), 405, ALLOW),
        (outside("REFER"), 405, None),
        (outside("NEWMETHOD"), 501, None),
        (outside("OPTIONS", "http://example.com"), 416, None),
        (outside("INVITE", Require="100rel, outbound, x"), 420, ("Unsupported", "outbound, x")),
        (outside("INVITE", Max_Forwards="0"), 483, None),
        (outside("INVITE", Content_Encoding="gzip"), 415, ("Accept-Encoding", "identity")),
        (outside("INVITE", Accept="text/plain"), 406, None),
        (outside("INVITE", Contact="*"), 400, None),
        (outside("INVITE").replace(b"Contact:", b"X-Contact:"), 400, None),
        (outside("BYE", To="<sip:agent@192.0.2.2>;tag=9"), 481, None),
        (outside("INFO"), 481, None),
        (outside("MESSAGE", Content_Type="text/plain"), 200, None),
        (outside("OPTIONS", CSeq="1 INVITE"), 400, None),
        (outside("OPTIONS").replace(b"SIP/2.0\r\nVia", b"SIP/3.0\r\nVia"), 505, None),
    ],
)
def test_what_we_do_not_do_is_refused_as_the_rfc_says(data: bytes, status: int, header: tuple[str, str] | None) -> None:
    pair = Pair()
    pair.send(data)
    pair.run(0.1)
    final = [m for m in pair.phone.heard if isinstance(m, Response) and m.status >= 200]
    assert [response.status for response in final] == [status]
    if header is not None:
        assert final[0].headers.get(header[0]) == header[1]


def test_an_old_peer_may_leave_out_its_contact() -> None:
    pair = Pair()
    pair.send(outside("INVITE", Via="SIP/2.0/UDP 192.0.2.1:5060").replace(b"Contact:", b"X-Contact:"))
    pair.run(0.1)
    assert len(pair.server.calls) == 1


def test_the_same_request_by_two_ways_is_one_call() -> None:
    pair = Pair()
    first = outside("INVITE")
    pair.send(first)
    pair.send(first.replace(b"z9hG4bKout", b"z9hG4bKother"))
    pair.run(0.1)
    assert len(pair.server.calls) == 1
    assert 482 in pair.phone.statuses("INVITE")


def test_our_own_request_coming_back_is_a_loop() -> None:
    pair = Pair()
    via = "SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKtop, SIP/2.0/UDP 192.0.2.2:5060;branch=z9hG4bKours"
    pair.send(outside("INVITE", Via=via))
    pair.run(0.1)
    assert 482 in pair.phone.statuses("INVITE")
    assert not pair.server.calls


def test_strangers_get_no_answer_at_all() -> None:
    pair = Pair(server=settings(admit=lambda host: None))
    for data in (outside("INVITE"), outside("OPTIONS"), b"garbage", outside("OPTIONS", CSeq="x")):
        pair.send(data)
    pair.run(1.0)
    assert not pair.phone.heard
    assert not pair.server.events


def test_a_busy_server_sends_calls_away_and_says_until_when() -> None:
    pair = Pair(server=settings(busy=lambda: 7))
    pair.send(outside("OPTIONS"))
    pair.dial()
    pair.run()
    finals = [m for m in pair.phone.heard if isinstance(m, Response) and m.status >= 200]
    assert [(m.status, m.headers.get("Retry-After")) for m in finals] == [(503, "7"), (503, "7")]
    assert not pair.server.calls


def test_more_calls_than_allowed_are_sent_away() -> None:
    pair = Pair(server=settings(max_calls=1))
    pair.dial()
    pair.dial()
    pair.run(1.0)
    assert len(pair.server.calls) == 1
    assert 503 in pair.phone.statuses("INVITE")


def test_responses_go_to_the_address_the_request_came_from() -> None:
    pair = Pair()
    pair.server.core.receive_datagram(
        outside("OPTIONS", Via="SIP/2.0/UDP 203.0.113.9:4444;branch=z9hG4bKx"), ("192.0.2.7", 7777), pair.now
    )
    ((data, hop),) = pair.server.core.messages_to_send()
    assert (hop.host, hop.port) == ("192.0.2.7", 4444)
    assert parse_message(data).via.parameters.get("received") == "192.0.2.7"


def test_a_second_200_of_another_branch_is_acknowledged_and_hung_up() -> None:
    pair = Pair()
    answer_at_once(pair)
    pair.dial()
    pair.run(1.0)
    (answer,) = [m for m in pair.phone.heard if isinstance(m, Response) and m.status == 200]
    forked = bytes(answer).replace(answer.recipient.tag.encode(), b"forked")
    pair.send(forked, to="phone")
    pair.run(1.0)
    strays = [m for m in pair.server.heard if isinstance(m, Request) and m.recipient.tag == "forked"]
    assert [request.method for request in strays] == ["ACK", "BYE"]
    assert len(pair.phone.of(CallAnswered)) == 1


def test_an_old_peer_without_branches_is_told_apart_by_call_id_and_cseq() -> None:
    first = parse_message(outside("INVITE", Via="SIP/2.0/UDP 192.0.2.1"))
    second = parse_message(outside("INVITE", Via="SIP/2.0/UDP 192.0.2.1", CSeq="2 INVITE"))
    assert server_key(first) == server_key(first)
    assert server_key(first) != server_key(second)


def test_a_call_that_its_owner_never_takes_is_refused() -> None:
    pair = Pair(server=settings(ring_limit=20.0))
    pair.dial()
    pair.run(21.0)
    assert ended(pair.server.events).cause is EndCause.TIMEOUT
    assert ended(pair.phone.events).status == 480
    pair.run()
    assert pair.idle()


def test_headers_that_would_break_a_message_change_nothing() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    for call in (ours, theirs):
        with pytest.raises(ValueError, match="not valid"):
            call.hang_up(pair.now, headers={"X-A": "1\r\nX-B: 2"})
        assert call.is_established


def test_whom_we_call_is_heard_within_the_call_and_not_beyond() -> None:
    pair = Pair(phone=settings(admit=lambda host: None))
    ours, theirs = pair.establish()
    assert ours.is_established
    pair.send(outside("OPTIONS"), to="phone")
    pair.send(outside("INVITE"), to="phone")
    pair.run(0.5)
    assert not pair.server.statuses("OPTIONS")
    assert not pair.phone.calls
    theirs.hang_up(pair.now)
    pair.run()
    assert pair.server.statuses("BYE") == [200]
    assert pair.idle()
    pair.send(outside("BYE", To="<sip:a@b>;tag=1"), to="phone")
    pair.run(0.5)
    assert pair.server.statuses("BYE") == [200]


def test_a_phone_behind_a_translator_is_answered_where_it_speaks_from() -> None:
    agent = UserAgent(settings(), lambda peer: ("203.0.113.9", 5060))
    hidden = outside("INVITE", Contact="<sip:a@10.0.0.5:5060>", Via="SIP/2.0/UDP 10.0.0.5:5060;branch=z9hG4bKn;rport")
    agent.receive_datagram(hidden, ("8.8.8.8", 40_000), 0.0)
    (call,) = agent.calls
    assert call.dialog is not None
    hop = call.dialog.next_hop()
    assert (hop.host, hop.port) == ("8.8.8.8", 40_000)


def test_an_offer_beside_other_parts_is_an_offer() -> None:
    pair = Pair()
    body = (
        b"--x\r\nContent-Type: application/pidf+xml\r\n\r\n<presence/>\r\n"
        b"--x\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n--x--\r\n"
    )
    request = parse_message(outside("INVITE", Content_Type="multipart/mixed;boundary=x"))
    request.body = body
    pair.send(bytes(request))
    pair.run(0.1)
    assert pair.server.calls[0].invite.body == b"v=0"
