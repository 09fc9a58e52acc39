"""Session timers: who refreshes, and what happens when nobody does."""

from __future__ import annotations

import pytest

from callagent.sip import CallEnded, EndCause, Event, InviteReceived, Negotiation, OfferReceived, Request
from callagent.sip.dialog.session_timer import SessionExpires
from tests.sip.dialog.test_invite import answered_by_hand, by_hand, heard, refused_by_hand
from tests.sip.pair import PHONE, SERVER, Pair, settings
from tests.sip.test_user_agent import outside


def answer_at_once(pair: Pair) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, InviteReceived):
            event.call.answer(pair.answer_to(event.call), pair.now)

    pair.server.on_event = on_event


def established(pair: Pair, **headers: str) -> None:
    answer_at_once(pair)
    pair.dial(headers=headers)
    pair.run(1.0)


def test_the_caller_refreshes_and_the_call_goes_on_for_hours() -> None:
    pair = Pair()
    established(pair)
    pair.run(4 * 3600)
    assert len(pair.server.requests("UPDATE")) == 16
    assert set(pair.phone.statuses("UPDATE")) == {200}
    assert not pair.phone.of(CallEnded)


def test_a_caller_that_vanishes_is_hung_up_when_its_refresh_is_missing() -> None:
    pair = Pair()
    established(pair)
    pair.lose = lambda number, data: True
    pair.run(1760)
    assert not pair.server.of(CallEnded)
    pair.run(100)
    (event,) = pair.server.of(CallEnded)
    assert event.cause is EndCause.LOST
    pair.run(100)
    assert pair.idle()


def test_a_callee_that_forgot_the_call_ends_it_at_the_refresh() -> None:
    pair = Pair()
    established(pair)
    pair.lose = lambda number, data: data.startswith(b"UPDATE")
    pair.run(901)
    pair.run(60)
    assert pair.phone.of(CallEnded)[0].cause is EndCause.LOST


def test_a_peer_without_timers_is_refreshed_by_us_and_by_re_invite_when_it_has_no_update() -> None:
    pair = Pair()
    offer = Negotiation(PHONE[0], 4000, 1, loopback=False).offer().decode()
    seen: list[Event] = []
    pair.server.on_event = lambda event: (
        event.call.answer(pair.answer_to(event.call), pair.now)
        if isinstance(event, InviteReceived)
        else seen.append(event)
    )
    raw = outside("INVITE", Contact="<sip:a@192.0.2.1:5060>", Content_Type="application/sdp", Allow="INVITE, ACK, BYE")
    pair.send(raw.replace(b"Content-Length: 0\r\n\r\n", f"Content-Length: {len(offer)}\r\n\r\n{offer}".encode()))
    pair.run(0.2)
    (answer,) = [m for m in pair.phone.heard if not isinstance(m, Request) and m.status == 200]
    assert answer.headers.get("Session-Expires") == "1800;refresher=uas"
    assert "Require" not in answer.headers
    ack = Request(answer.headers, method="ACK", uri=answer.contacts[0].uri)
    ack.headers.set("CSeq", "1 ACK")
    pair.send(bytes(ack))
    pair.run(905)
    invites = pair.phone.requests("INVITE")
    assert invites[0].headers.get("Session-Expires") == "1800;refresher=uac"
    assert b"m=audio 5000" in invites[0].body


@pytest.mark.parametrize("expires", ["", "1800", "1800;refresher=uac", "1800;refresher=uas"])
@pytest.mark.parametrize("supported", ["", "100rel, replaces", "timer"])
@pytest.mark.parametrize("method", ["INVITE", "UPDATE"])
def test_timer_is_required_only_of_a_peer_that_has_it_and_is_to_refresh(
    method: str, supported: str, expires: str
) -> None:
    """RFC 4028 §9: the extension is required where the peer refreshes, which one without it never does."""
    headers = {"Session_Expires": expires, "Supported": supported}
    pair = Pair()
    answer_at_once(pair)
    offer = Negotiation(PHONE[0], 4000, 1, loopback=False).offer()
    if method == "INVITE":
        given = {name: value for name, value in headers.items() if value}
        raw = outside("INVITE", Contact="<sip:a@192.0.2.1:5060>", Content_Type="application/sdp", **given)
        length = f"Content-Length: {len(offer)}\r\n\r\n".encode()
        pair.send(raw.replace(b"Content-Length: 0\r\n\r\n", length + offer))
    else:
        ours, _ = pair.establish()
        update = ours.dialog.request("UPDATE")
        update.headers.insert_first("Via", f"SIP/2.0/UDP {PHONE[0]}:{PHONE[1]};branch=z9hG4bKupdate;rport")
        for name, value in headers.items():
            if value:
                update.headers.set(name.replace("_", "-"), value)
        pair.send(bytes(update))
    pair.run(0.2)
    answer = next(
        m for m in pair.phone.heard if not isinstance(m, Request) and m.cseq.method == method and m.status == 200
    )
    agreed = SessionExpires.of(answer)
    assert agreed is not None
    refreshes = supported == "timer" and "uas" not in expires
    assert agreed.refresher == ("uac" if refreshes else "uas")
    assert answer.headers.tokens("Require") == (["timer"] if refreshes else [])


def test_a_session_that_would_be_too_short_is_refused_with_ours() -> None:
    pair = Pair()
    pair.send(outside("INVITE", Session_Expires="30", Supported="timer"))
    pair.run(0.1)
    refused = pair.phone.heard[-1]
    assert (refused.status, refused.headers.get("Min-SE")) == (422, "90")


def test_a_caller_that_wants_us_to_refresh_gets_its_wish() -> None:
    pair = Pair(phone=settings(session_seconds=600, accepts_transfers=True))
    established(pair)
    pair.run(301.0)
    assert len(pair.server.requests("UPDATE")) == 1


def test_offers_restart_the_session() -> None:
    pair = Pair()
    established(pair)
    (ours,) = pair.phone.core.calls
    negotiation = Negotiation(SERVER[0], 5000, 2, loopback=False)
    pair.server.on_event = lambda event: (
        event.call.accept_offer(negotiation.answer(event.body)[0], pair.now)
        if isinstance(event, OfferReceived)
        else None
    )
    pair.run(800.0)
    ours.reoffer(Negotiation(PHONE[0], 4100, 1, loopback=False).offer(), pair.now)
    pair.run(800.0)
    assert not pair.server.requests("UPDATE")
    pair.run(200.0)
    assert len(pair.server.requests("UPDATE")) == 1


def refreshing(allow: str) -> tuple[Pair, str]:
    """A call of ours at its first refresh, to a peer of our making; and the method of the refresh."""
    pair = by_hand()
    call = pair.dial()
    pair.run(0.1)
    session = {"Allow": allow, "Session_Expires": "1800;refresher=uac"}
    answered_by_hand(pair, 0, 200, body=pair.answer_to(call), **session)
    pair.run(900.0)
    return pair, "UPDATE" if "UPDATE" in allow else "INVITE"


BOTH_WAYS = pytest.mark.parametrize("allow", ["INVITE, ACK, BYE, UPDATE", "INVITE, ACK, BYE"])


@BOTH_WAYS
def test_a_refresh_that_is_too_short_for_the_peer_is_repeated_with_its_interval(allow: str) -> None:
    pair, method = refreshing(allow)
    refused_by_hand(pair, heard(pair, method)[-1], 422, Min_SE="3600")
    again = heard(pair, method)[-1]
    assert again.headers.get("Session-Expires") == "3600;refresher=uac"
    assert again.headers.get("Min-SE") == "3600"
    count = len(heard(pair, method))
    answer = {"Session_Expires": "3600;refresher=uac", "Contact": "<sip:192.0.2.2>"}
    refused_by_hand(pair, again, 200, **answer)
    pair.run(1790.0)
    assert len(heard(pair, method)) == count
    pair.run(20.0)
    assert len(heard(pair, method)) > count
    assert not pair.phone.of(CallEnded)


@BOTH_WAYS
def test_a_peer_that_always_wants_longer_sessions_is_not_asked_for_ever(allow: str) -> None:
    pair, method = refreshing(allow)
    for _ in range(4):
        refused_by_hand(pair, heard(pair, method)[-1], 422, Min_SE="3600")
    assert len([each for each in heard(pair, method) if each.recipient.tag is not None]) == 2
    pair.run(1000.0)
    assert pair.phone.of(CallEnded)[0].cause is EndCause.LOST


def numbers(pair: Pair, method: str) -> list[int]:
    """Of the requests, each once."""
    return sorted({request.cseq.number for request in heard(pair, method)})


@BOTH_WAYS
@pytest.mark.parametrize(("status", "headers"), [(491, {}), (500, {"Retry_After": "2"})])
def test_a_refresh_that_meets_something_else_comes_again_in_two_to_four_seconds(
    allow: str, status: int, headers: dict[str, str]
) -> None:
    pair, method = refreshing(allow)
    refused_by_hand(pair, heard(pair, method)[-1], status, **headers)
    count = len(numbers(pair, method))
    pair.run(1.9)
    assert len(numbers(pair, method)) == count
    pair.run(2.2)
    assert len(numbers(pair, method)) == count + 1
    refused_by_hand(pair, heard(pair, method)[-1], 200, Session_Expires="1800;refresher=uac", Contact="<sip:192.0.2.2>")
    pair.run(910.0)
    assert not pair.phone.of(CallEnded)
    assert len(numbers(pair, method)) == count + 2


@BOTH_WAYS
def test_a_refresh_that_is_refused_otherwise_leaves_the_call_until_its_session_ends(allow: str) -> None:
    pair, method = refreshing(allow)
    refused_by_hand(pair, heard(pair, method)[-1], 488)
    count = len(numbers(pair, method))
    pair.run(890.0)
    assert len(numbers(pair, method)) == count
    assert not pair.phone.of(CallEnded)
    pair.run(20.0)
    assert pair.phone.of(CallEnded)[0].cause is EndCause.LOST


@pytest.mark.parametrize("text", ["", "x", "-1", "1;;", "99999999999"])
def test_what_is_no_interval_is_not_valid(text: str) -> None:
    with pytest.raises(ValueError, match=r"not valid|range"):
        SessionExpires.parse(text)


def test_intervals_are_written_as_they_are_read() -> None:
    assert str(SessionExpires.parse("1800 ;refresher=UAS")) == "1800;refresher=uas"
