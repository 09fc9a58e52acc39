"""Calls of ours: other servers, redirections, longer sessions, reliable provisional responses."""

from __future__ import annotations

import pytest

from callagent.sip import (
    Address,
    CallAnswered,
    CallEnded,
    CallPath,
    CallRinging,
    Credentials,
    Dialog,
    EndCause,
    Event,
    Headers,
    Hop,
    InviteReceived,
    Negotiation,
    OfferReceived,
    Request,
    Response,
    parse_message,
)
from callagent.sip.dialog.call import SipCall
from callagent.sip.message.message import respond_to
from tests.sip.pair import SERVER, Pair, settings

GONE = Hop("192.0.2.9", 5060)


def answer_at_once(pair: Pair) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, InviteReceived):
            event.call.ring(pair.now)
            event.call.answer(pair.answer_to(event.call), pair.now)

    pair.server.on_event = on_event


def answered_by_hand(pair: Pair, number: int, status: int, tag: str = "far", body: bytes = b"", **headers: str) -> None:
    """Answer the server's nth INVITE as a peer of our making."""
    invite = pair.server.requests("INVITE")[number]
    extra = [(name.replace("_", "-"), value) for name, value in headers.items()]
    extra.append(("Contact", f"<sip:{SERVER[0]}>")) if "Contact" not in headers else None
    pair.send(bytes(respond_to(invite, status, tag=tag, headers=extra, body=body)), to="phone")
    pair.run(0.1)


def by_hand() -> Pair:
    """A server that never answers by itself."""
    return Pair(server=settings(admit=lambda host: None))


def heard(pair: Pair, method: str) -> list[Request]:
    return pair.server.requests(method)


def test_the_next_server_is_called_when_the_first_does_not_answer() -> None:
    pair = Pair()
    answer_at_once(pair)
    pair.dial(path=CallPath((GONE, Hop(*SERVER))))
    pair.run(31.0)
    assert not pair.server.calls
    pair.run(3.0)
    assert len(pair.phone.of(CallAnswered)) == 1
    assert len(pair.server.calls) == 1


def test_the_next_server_is_called_at_once_when_there_is_no_connection() -> None:
    pair = Pair()
    answer_at_once(pair)
    gone = Hop("192.0.2.9", 5060, "tcp")
    pair.dial(path=CallPath((gone, Hop(*SERVER))))
    pair.phone.core.fail_connection(gone, pair.now)
    pair.run(0.5)
    assert len(pair.phone.of(CallAnswered)) == 1


def test_a_server_that_is_busy_sends_us_to_the_next_and_the_last_one_ends_the_call() -> None:
    pair = Pair(server=settings(busy=lambda: 5))
    pair.dial(path=CallPath((Hop(*SERVER), Hop(*SERVER))))
    pair.run()
    assert pair.phone.statuses("INVITE").count(503) == 2
    (ended,) = pair.phone.of(CallEnded)
    assert ended.status == 503
    assert pair.idle()


@pytest.mark.parametrize(("servers", "asked", "spent"), [(3, 3, False), (8, 8, False), (20, 8, True)])
def test_a_call_is_tried_at_so_many_servers(servers: int, asked: int, spent: bool) -> None:
    pair = Pair(server=settings(busy=lambda: 5))
    ours = pair.dial(path=CallPath((Hop(*SERVER),) * servers))
    pair.run()
    assert pair.phone.statuses("INVITE").count(503) == asked
    assert ours.attempts_spent is spent
    assert len(pair.phone.of(CallEnded)) == 1
    assert pair.idle()


def test_users_that_we_are_sent_to_are_attempts_too() -> None:
    pair = Pair(server=settings(admit=lambda host: None), phone=settings(max_attempts=2))
    ours = pair.dial()
    pair.run(0.1)
    for _ in range(2):
        answered_by_hand(pair, -1, 302, Contact="<sip:other@192.0.2.2>")
    assert len({str(each.via.branch) for each in heard(pair, "INVITE")}) == 2
    assert ours.attempts_spent
    assert pair.phone.of(CallEnded)


def test_hanging_up_stops_the_search() -> None:
    pair = Pair(server=settings(busy=lambda: 5))
    ours = pair.dial(path=CallPath((GONE, Hop(*SERVER))))
    ours.hang_up(pair.now)
    pair.run()
    assert not pair.server.heard
    assert pair.phone.of(CallEnded)[0].cause is EndCause.LOCAL
    assert pair.idle()


def test_a_redirection_within_the_host_is_followed_and_another_host_is_not() -> None:
    pair = by_hand()
    pair.dial()
    pair.run(0.1)
    answered_by_hand(pair, 0, 302, Contact="<sip:desk@198.51.100.1>, <sip:desk@192.0.2.2>")
    assert str(heard(pair, "INVITE")[-1].uri) == "sip:desk@192.0.2.2"
    answered_by_hand(pair, -1, 302, Contact="<sip:desk@198.51.100.1>")
    (ended,) = pair.phone.of(CallEnded)
    assert (ended.status, ended.cause) == (302, EndCause.REFUSED)
    assert "198.51.100.1" in (ended.headers.get("Contact") or "")


def test_redirections_in_a_circle_end() -> None:
    pair = by_hand()
    pair.dial()
    pair.run(0.1)
    for _ in range(10):
        if not pair.phone.of(CallEnded):
            answered_by_hand(pair, -1, 301, Contact="<sip:round@192.0.2.2>")
    assert pair.phone.of(CallEnded)


def test_a_session_that_is_too_short_for_the_peer_is_asked_for_again_once() -> None:
    pair = by_hand()
    pair.dial()
    pair.run(0.1)
    answered_by_hand(pair, 0, 422, Min_SE="3600")
    again = heard(pair, "INVITE")[-1]
    assert (again.headers.get("Min-SE"), again.headers.get("Session-Expires")) == ("3600", "3600")
    assert again.cseq.number == 2
    answered_by_hand(pair, -1, 422, Min_SE="7200")
    assert pair.phone.of(CallEnded)[0].status == 422


# Reliable provisional responses (RFC 3262)


def answer_sdp() -> bytes:
    return Negotiation(SERVER[0], 5000, 2, loopback=False).offer()


def test_a_reliable_183_is_acknowledged_once_and_its_answer_stands() -> None:
    pair = by_hand()
    ours = pair.dial()
    pair.run(0.1)
    for _ in range(2):
        answered_by_hand(pair, 0, 183, body=answer_sdp(), Require="100rel", RSeq="7")
    (prack,) = heard(pair, "PRACK")
    assert prack.headers.get("RAck") == "7 1 INVITE"
    assert prack.cseq.number == 2
    assert [event.status for event in pair.phone.of(CallRinging)] == [183]
    assert b"m=audio" in pair.phone.of(CallRinging)[0].body
    answered_by_hand(pair, 0, 200)
    assert b"m=audio" in pair.phone.of(CallAnswered)[0].body
    ours.hang_up(pair.now)
    pair.run(0.1)
    assert heard(pair, "BYE")[0].cseq.number > prack.cseq.number


def test_each_branch_of_a_fork_counts_for_itself() -> None:
    pair = by_hand()
    pair.dial()
    pair.run(0.1)
    answered_by_hand(pair, 0, 180, tag="one", Require="100rel", RSeq="1")
    answered_by_hand(pair, 0, 180, tag="two", Require="100rel", RSeq="90")
    answered_by_hand(pair, 0, 183, tag="two", Require="100rel", RSeq="91")
    answered_by_hand(pair, 0, 183, tag="two", Require="100rel", RSeq="93")
    assert [(p.recipient.tag, p.headers.get("RAck")) for p in heard(pair, "PRACK")] == [
        ("one", "1 1 INVITE"), ("two", "90 1 INVITE"), ("two", "91 1 INVITE"),
    ]  # fmt: skip


def reliable_caller() -> tuple[Pair, Request]:
    pair = Pair()
    invite = pair.dial(headers={"Require": "100rel"}).invite
    pair.run(0.2)
    return pair, invite


def test_our_ringing_is_repeated_until_it_is_acknowledged() -> None:
    lost = iter([True, True])
    pair, _ = reliable_caller()
    pair.lose = lambda number, data: data.startswith(b"PRACK") and next(lost, False)
    theirs = pair.server.calls[0]
    theirs.ring(pair.now)
    pair.run(10.0)
    assert pair.phone.statuses("INVITE").count(180) > 1
    assert len(pair.server.requests("PRACK")) == 1
    assert pair.phone.statuses("PRACK") == [200]
    ringing = pair.phone.statuses("INVITE").count(180)
    pair.run(10.0)
    assert pair.phone.statuses("INVITE").count(180) == ringing
    theirs.answer(pair.answer_to(theirs), pair.now)
    pair.run(1.0)
    assert theirs.is_established


def test_a_caller_that_never_acknowledges_is_refused() -> None:
    pair, _ = reliable_caller()
    pair.lose = lambda number, data: data.startswith(b"PRACK")
    pair.server.calls[0].ring(pair.now)
    pair.run(40.0)
    assert pair.phone.of(CallEnded)[0].status == 504
    pair.lose = lambda number, data: False
    pair.run()
    assert pair.idle()


@pytest.mark.parametrize("rack", ["1 1 INVITE", "x", ""])
def test_a_prack_of_something_else_is_refused(rack: str) -> None:
    pair, invite = reliable_caller()
    theirs = pair.server.calls[0]
    assert theirs.dialog is not None
    headers = Headers([("Via", "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKp"), ("RAck", rack), ("CSeq", "2 PRACK")])
    for name, value in (("From", invite.headers.get("From")), ("To", str(theirs.dialog.local))):
        headers.add(name, value or "")
    headers.add("Call-ID", invite.call_id)
    pair.send(bytes(Request(headers, method="PRACK", uri=invite.uri)))
    pair.run(0.1)
    assert pair.phone.statuses("PRACK") == [481]


def test_a_message_of_ours_is_read_back() -> None:
    pair = Pair()
    invite = parse_message(bytes(pair.dial().invite))
    assert not isinstance(invite, Response)
    assert invite.headers.tokens("Supported") == ["100rel", "replaces", "norefersub", "timer"]


CREDENTIALS = Credentials("we", "secret", "carrier")
CHALLENGE = 'Digest realm="carrier", nonce="1", qop="auth", algorithm=SHA-256'


def proven(pair: Pair) -> SipCall:
    """A call of ours through a trunk that wanted proof for the INVITE."""
    call = pair.dial(path=CallPath((Hop(*SERVER),), CREDENTIALS))
    pair.run(0.1)
    answered_by_hand(pair, 0, 407, Proxy_Authenticate=CHALLENGE)
    answered_by_hand(pair, 1, 200, body=pair.answer_to(call))
    return call


def refused_by_hand(pair: Pair, request: Request, status: int, **headers: str) -> None:
    extra = [(name.replace("_", "-"), value) for name, value in headers.items()]
    pair.send(bytes(respond_to(request, status, headers=extra)), to="phone")
    pair.run(0.1)


def test_a_trunk_that_asks_again_within_the_call_is_answered_once() -> None:
    pair = by_hand()
    proven(pair).hang_up(pair.now)
    pair.run(0.1)
    refused_by_hand(pair, heard(pair, "BYE")[0], 407, Proxy_Authenticate=CHALLENGE)
    first, second = heard(pair, "BYE")
    assert "Proxy-Authorization" in second.headers
    assert second.cseq.number == first.cseq.number + 1
    refused_by_hand(pair, second, 407, Proxy_Authenticate=CHALLENGE)
    assert len(heard(pair, "BYE")) == 2
    pair.run()
    assert pair.idle()


def test_a_wrong_password_is_told_once() -> None:
    pair = by_hand()
    pair.dial(path=CallPath((Hop(*SERVER),), CREDENTIALS))
    pair.run(0.1)
    for number in range(2):
        answered_by_hand(pair, number, 407, Proxy_Authenticate=CHALLENGE)
    assert len(heard(pair, "INVITE")) == 2
    (ended,) = pair.phone.of(CallEnded)
    assert (ended.cause, ended.status) == (EndCause.REFUSED, 407)


STALE = 'Digest realm="carrier", nonce="{}", qop="auth", algorithm=SHA-256, stale=TRUE'


def test_a_nonce_that_was_too_old_is_answered_with_the_new_one_but_not_for_ever() -> None:
    pair = by_hand()
    pair.dial(path=CallPath((Hop(*SERVER),), CREDENTIALS))
    pair.run(0.1)
    answered_by_hand(pair, 0, 401, WWW_Authenticate=CHALLENGE)
    for number in range(1, 4):
        answered_by_hand(pair, number, 401, WWW_Authenticate=STALE.format(f"new{number}"))
    invites = heard(pair, "INVITE")
    assert [invite.cseq.number for invite in invites] == [1, 2, 3, 4]
    proofs = [invite.headers.values("Authorization") for invite in invites]
    assert [len(each) for each in proofs] == [0, 1, 1, 1]
    assert ['nonce="1"' in proofs[1][0], 'nonce="new1"' in proofs[2][0], 'nonce="new2"' in proofs[3][0]] == [True] * 3
    (ended,) = pair.phone.of(CallEnded)
    assert (ended.cause, ended.status) == (EndCause.REFUSED, 401)


def test_a_nonce_that_was_too_old_within_the_call_is_answered_too() -> None:
    pair = by_hand()
    proven(pair).hang_up(pair.now)
    pair.run(0.1)
    refused_by_hand(pair, heard(pair, "BYE")[0], 407, Proxy_Authenticate=CHALLENGE)
    for number in range(1, 5):
        refused_by_hand(pair, heard(pair, "BYE")[-1], 407, Proxy_Authenticate=STALE.format(number))
    byes = heard(pair, "BYE")
    assert [bye.cseq.number - byes[0].cseq.number for bye in byes] == [0, 1, 2, 3]
    pair.run()
    assert pair.idle()


def test_a_route_that_is_known_before_the_call_is_on_the_invite_its_repetition_and_its_cancel() -> None:
    pair = by_hand()
    route = tuple(Address.parse_list("<sip:192.0.2.2;lr>, <sip:home.example.com;lr>"))
    call = pair.dial(path=CallPath((Hop(*SERVER),), CREDENTIALS, route))
    pair.run(0.1)
    answered_by_hand(pair, 0, 407, Proxy_Authenticate=CHALLENGE)
    answered_by_hand(pair, 1, 180)
    call.hang_up(pair.now)
    pair.run(0.1)
    for request in (*heard(pair, "INVITE"), *heard(pair, "CANCEL")):
        assert request.headers.values("Route") == ["<sip:192.0.2.2;lr>", "<sip:home.example.com;lr>"]
        assert str(request.uri) == "sip:agent@192.0.2.2"
    assert len(heard(pair, "CANCEL")) == 1


@pytest.mark.parametrize("challenge", [CHALLENGE.replace("carrier", "elsewhere"), "Basic realm=carrier"])
def test_nobody_else_gets_a_proof_within_the_call(challenge: str) -> None:
    pair = by_hand()
    proven(pair).hang_up(pair.now)
    pair.run(0.1)
    refused_by_hand(pair, heard(pair, "BYE")[0], 401, WWW_Authenticate=challenge)
    assert len(heard(pair, "BYE")) == 1


def update_of(pair: Pair, tag: str, body: bytes = b"") -> Request:
    """An UPDATE of a branch of our INVITE, before it has answered."""
    invite = heard(pair, "INVITE")[0]
    update = Request(method="UPDATE", uri=invite.contacts[0].uri, body=body)
    via = f"SIP/2.0/UDP {SERVER[0]}:5060;branch=z9hG4bK{tag}{len(body)}"
    lines = [("Via", via), ("Max-Forwards", "70"), ("From", f"{invite.recipient};tag={tag}")]
    lines += [("To", str(invite.sender)), ("Call-ID", invite.call_id), ("CSeq", "7 UPDATE")]
    lines += [("Contact", f"<sip:moved@{SERVER[0]}>")]
    lines += [("Content-Type", "application/sdp")] if body else []
    for name, value in lines:
        update.headers.add(name, value)
    return update


def test_an_early_update_moves_the_branch_that_sent_it() -> None:
    pair = by_hand()
    call = pair.dial()
    pair.run(0.1)
    answered_by_hand(pair, 0, 183, tag="one")
    pair.send(bytes(update_of(pair, "one")), to="phone")
    pair.send(bytes(update_of(pair, "other")), to="phone")
    pair.run(0.1)
    assert sorted(pair.server.statuses("UPDATE")) == [200, 481]
    answered_by_hand(pair, 0, 200, tag="one", body=pair.answer_to(call))
    assert pair.phone.of(CallAnswered)


def test_an_early_update_may_change_the_media() -> None:
    pair = by_hand()
    call = pair.dial()
    pair.run(0.1)
    answered_by_hand(pair, 0, 183, tag="one", body=pair.answer_to(call))
    offer = Negotiation(SERVER[0], 6000, 3, loopback=False).offer()
    pair.send(bytes(update_of(pair, "one", offer)), to="phone")
    pair.run(0.1)
    (received,) = pair.phone.of(OfferReceived)
    assert isinstance(received, OfferReceived)
    assert received.body == offer
    call.accept_offer(b"v=0\r\n", pair.now)
    pair.run(0.1)
    assert pair.server.statuses("UPDATE") == [200]
    call.hang_up(pair.now)
    pair.run()


def test_an_offer_before_the_first_has_its_answer_is_told_to_wait() -> None:
    pair = Pair()
    ours = pair.dial()
    pair.run(0.1)
    (theirs,) = pair.server.calls
    theirs.ring(pair.now)
    pair.run(0.1)
    dialog = Dialog.of_client(ours.invite, pair.phone.heard[-1], Hop(*SERVER), ours.invite.contacts[0])  # type: ignore[arg-type]
    for number, body in ((2, b""), (3, ours.invite.body)):
        update = dialog.request("UPDATE", number)
        update.headers.insert_first("Via", f"SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKearly{number}")
        if body:
            update.headers.add("Content-Type", "application/sdp")
        update.body = body
        pair.send(bytes(update))
        pair.run(0.1)
    assert pair.phone.statuses("UPDATE") == [200, 500]
