"""Changes of the media in a call, where the two sides or the wire get in each other's way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from callagent.sip import (
    CallEnded,
    DigitReceived,
    EndCause,
    Event,
    Negotiation,
    OfferAnswered,
    OfferReceived,
    OfferRefused,
    Request,
    Response,
)
from callagent.sip.dialog.call import SipCall, send_digit
from callagent.sip.dialog.invite import cancel_of
from tests.sip.pair import PHONE, SERVER, Pair
from tests.sip.test_user_agent import in_dialog


def offer(port: int = 4100) -> bytes:
    return Negotiation(PHONE[0], port, 1, loopback=False).offer()


def raw_offer(call: SipCall, method: str, branch: str, cseq: int) -> Request:
    request = in_dialog(call, method, branch, cseq, Contact="<sip:192.0.2.1:5060>", Content_Type="application/sdp")
    request.body = offer()
    return request


def accept_at_once(pair: Pair) -> None:
    negotiation = Negotiation(SERVER[0], 5000, 2, loopback=False)

    def on_event(event: Event) -> None:
        if isinstance(event, OfferReceived):
            body = negotiation.answer(event.body)[0] if event.body else negotiation.offer()
            event.call.accept_offer(body, pair.now)

    pair.server.on_event = on_event


def test_an_update_with_an_offer_is_answered_without_an_ack() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    accept_at_once(pair)
    pair.send(bytes(raw_offer(ours, "UPDATE", "z9hG4bKu", 20)))
    pair.run(40.0)
    (answer,) = [m for m in pair.phone.heard if isinstance(m, Response) and m.cseq.method == "UPDATE"]
    assert answer.status == 200
    assert b"m=audio 5000" in answer.body
    assert theirs.is_established


@pytest.mark.parametrize("branch", ["z9hG4bKsame", None])
def test_a_peer_that_gives_all_its_requests_one_branch_gets_its_answers(branch: str | None) -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    accept_at_once(pair)
    branch = branch or ours.invite.via.branch or ""
    for cseq in (20, 21):
        pair.send(bytes(raw_offer(ours, "INVITE", branch, cseq)))
        pair.run(0.2)
        pair.send(bytes(in_dialog(ours, "ACK", branch, cseq)))
        pair.run(0.2)
    pair.send(bytes(raw_offer(ours, "INVITE", branch, 21)))
    pair.run(0.2)
    assert [event.body for event in pair.server.of(OfferReceived)] == [offer()] * 2
    assert [m.cseq.number for m in pair.phone.heard if isinstance(m, Response) and m.status == 200][-2:] == [20, 21]
    assert theirs.is_established


def test_a_reinvite_without_an_offer_gets_ours_and_its_ack_answers() -> None:
    pair = Pair()
    ours, _ = pair.establish()
    accept_at_once(pair)
    request = in_dialog(ours, "INVITE", "z9hG4bKe", 20, Contact="<sip:192.0.2.1:5060>")
    pair.send(bytes(request))
    pair.run(0.2)
    ack = in_dialog(ours, "ACK", "z9hG4bKack", 20, Content_Type="application/sdp")
    ack.body = offer()
    pair.send(bytes(ack))
    pair.run(40.0)
    assert [event.body for event in pair.server.of(OfferAnswered)] == [ack.body]
    assert pair.phone.statuses("INVITE").count(200) == 2


def test_a_second_reinvite_before_the_first_is_decided_is_told_to_wait() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    pair.send(bytes(raw_offer(ours, "INVITE", "z9hG4bK1", 20)))
    pair.send(bytes(raw_offer(ours, "INVITE", "z9hG4bK2", 21)))
    pair.run(0.2)
    (refusal,) = [m for m in pair.phone.heard if isinstance(m, Response) and m.status == 500]
    assert refusal.headers.get("Retry-After")
    theirs.refuse_offer(pair.now)
    pair.run(40.0)
    assert 488 in pair.phone.statuses("INVITE")
    assert theirs.is_established


def test_a_reinvite_may_be_taken_back() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    request = raw_offer(ours, "INVITE", "z9hG4bK1", 20)
    pair.send(bytes(request))
    pair.run(0.2)
    pair.send(bytes(cancel_of(request)))
    pair.run(0.2)
    assert pair.phone.statuses("CANCEL") == [200]
    assert pair.phone.statuses("INVITE")[-1] == 487
    theirs.accept_offer(b"", pair.now)
    pair.run(40.0)
    assert theirs.is_established


def test_a_reinvite_whose_200_is_never_acknowledged_ends_the_call() -> None:
    pair = Pair()
    ours, _ = pair.establish()
    accept_at_once(pair)
    pair.send(bytes(raw_offer(ours, "INVITE", "z9hG4bK1", 20)))
    pair.run(33.0)
    assert pair.phone.requests("BYE")
    assert pair.server.of(CallEnded)[0].cause is EndCause.LOCAL


def test_a_reinvite_before_the_first_ack_is_told_to_wait() -> None:
    pair = Pair(lambda number, data: data.startswith(b"ACK"))
    ours = pair.dial()
    pair.run(0.5)
    theirs = pair.server.calls[0]
    theirs.answer(pair.answer_to(theirs), pair.now)
    pair.run(0.2)
    pair.send(bytes(raw_offer(ours, "INVITE", "z9hG4bK1", 20)))
    pair.run(0.2)
    assert pair.phone.statuses("INVITE")[-1] == 491


@pytest.mark.parametrize("loss", [b"INVITE", b"SIP/2.0 481"])
def test_a_peer_that_has_forgotten_the_call_ends_it(loss: bytes) -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    pair.lose = lambda number, data: data.startswith(loss)
    if loss != b"INVITE":
        pair.lose = lambda number, data: data.startswith(b"BYE") and ours.outgoing
        ours.hang_up(pair.now)
        pair.run(0.2)
    theirs.reoffer(offer(5100), pair.now)
    pair.run(40.0)
    assert len(pair.server.of(CallEnded)) == 1


def test_a_digit_of_ours_goes_by_info() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    send_digit(theirs, "#", pair.now)
    pair.run(1.0)
    assert [event.digit for event in pair.phone.of(DigitReceived)] == ["#"]
    ours.hang_up(pair.now)
    send_digit(ours, "1", pair.now)
    pair.run()
    assert pair.idle()


def delays(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Let our offers that have to wait do so for these times, one after the other."""
    left: Iterator[float] = iter(seconds)
    monkeypatch.setattr("callagent.sip.dialog.reinvite.random.uniform", lambda low, high: next(left))


def ports(pair: Pair) -> list[int]:
    """The media ports of the offers that reached the server after the first, each once."""
    offers = {request.cseq.number: request.body for request in pair.server.requests("INVITE")[1:]}
    return [int(body.split(b"m=audio ")[1].split()[0]) for _, body in sorted(offers.items())]


def accept_later(pair: Pair, call: SipCall) -> None:
    call.accept_offer(Negotiation(SERVER[0], 5000, 2, loopback=False).answer(offer())[0], pair.now)


def test_of_offers_that_have_to_wait_only_the_newest_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    delays(monkeypatch, 3.9, 2.2)
    pair = Pair()
    ours, theirs = pair.establish()
    for port in (4100, 4200, 4300):
        ours.reoffer(offer(port), pair.now)
    pair.run(0.2)
    accept_later(pair, theirs)
    accept_at_once(pair)
    pair.run(10.0)
    assert ports(pair) == [4100, 4300]
    assert len(pair.phone.of(OfferAnswered)) == 2


def test_an_offer_that_crossed_one_of_the_peer_gives_way_to_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    delays(monkeypatch, 2.2, 2.5, 2.6)
    pair = Pair()
    ours, theirs = pair.establish()
    ours.reoffer(offer(4100), pair.now)
    pair.run(0.2)
    theirs.refuse_offer(pair.now, 491)
    pair.run(0.2)
    ours.reoffer(offer(4200), pair.now)
    accept_at_once(pair)
    pair.run(10.0)
    assert ports(pair) == [4100, 4200]
    assert len(pair.phone.of(OfferAnswered)) == 1


def test_an_offer_gives_way_to_a_newer_one_that_waits_when_it_is_told_to_wait_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays(monkeypatch, 2.2, 3.9)
    pair = Pair()
    ours, theirs = pair.establish()
    ours.reoffer(offer(4100), pair.now)
    ours.reoffer(offer(4200), pair.now)
    pair.run(2.0)
    theirs.refuse_offer(pair.now, 491)
    accept_at_once(pair)
    # The peer has the whole time of a new delay, and not the rest of the first one.
    pair.run(3.5)
    assert ports(pair) == [4100]
    pair.run(10.0)
    assert ports(pair) == [4100, 4200]


def test_an_offer_that_waited_for_the_peers_is_repeated_when_it_then_crosses_another() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    theirs.reoffer(Negotiation(SERVER[0], 5100, 2, loopback=False).offer(), pair.now)
    pair.run(0.2)
    ours.reoffer(offer(4100), pair.now)
    received = pair.phone.of(OfferReceived)[0].body
    ours.accept_offer(Negotiation(PHONE[0], 4000, 1, loopback=False).answer(received)[0], pair.now)
    pair.run(4.5)
    assert ports(pair) == [4100]
    theirs.refuse_offer(pair.now, 491)
    accept_at_once(pair)
    pair.run(10.0)
    assert ports(pair) == [4100, 4100]
    assert len(pair.phone.of(OfferAnswered)) == 1
    assert not pair.phone.of(OfferRefused)


@pytest.mark.parametrize("crossed", [False, True])
def test_a_refresh_that_had_to_wait_repeats_the_description_then_in_force(crossed: bool) -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    if crossed:
        ours.repeat_offer(pair.now)
        pair.run(0.2)
        theirs.refuse_offer(pair.now, 491)
    theirs.reoffer(Negotiation(SERVER[0], 5100, 2, loopback=False).offer(), pair.now)
    pair.run(0.2)
    if not crossed:
        ours.repeat_offer(pair.now)
    answer = Negotiation(PHONE[0], 4500, 1, loopback=False).answer(pair.phone.of(OfferReceived)[0].body)[0]
    ours.accept_offer(answer, pair.now)
    accept_at_once(pair)
    pair.run(10.0)
    assert ports(pair) == ([4000, 4500] if crossed else [4500])


def test_a_refresh_does_not_repeat_a_description_that_the_peer_refused() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    ours.reoffer(offer(4100), pair.now)
    pair.run(0.2)
    theirs.refuse_offer(pair.now)
    pair.run(0.2)
    ours.repeat_offer(pair.now)
    pair.run(0.2)
    assert ports(pair) == [4100, 4000]


@pytest.mark.parametrize("accepted", [True, False])
def test_an_offer_stands_for_a_refresh_that_becomes_due_beside_it_unless_it_is_refused(accepted: bool) -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    ours.reoffer(offer(4100), pair.now)
    ours.repeat_offer(pair.now)
    pair.run(0.2)
    if accepted:
        accept_later(pair, theirs)
    else:
        theirs.refuse_offer(pair.now)
    accept_at_once(pair)
    pair.run(10.0)
    assert ports(pair) == ([4100] if accepted else [4100, 4000])
