"""Digest, both sides: who proves what to whom, replays, locks, and who never hears a password."""

from __future__ import annotations

import pytest

from callagent.sip import (
    UNPROVEN,
    Account,
    CallAnswered,
    CallEnded,
    CallPath,
    Credentials,
    DigestSettings,
    Event,
    Hop,
    InviteReceived,
    Request,
    parse_message,
)
from callagent.sip.digest import DigestInput, parse_digest, write_digest
from callagent.sip.message.message import respond_to
from tests.sip.pair import PHONE, SERVER, Pair, settings

DIGEST = DigestSettings("here", {"ann": Account("carrier", "secret")})
GUARDED = settings(admit=lambda host: UNPROVEN, digest=DIGEST)


def way(password: str = "secret", realm: str = "here", user: str = "ann") -> CallPath:
    return CallPath((Hop(*SERVER),), Credentials(user, password, realm))


def answer_at_once(pair: Pair) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, InviteReceived):
            event.call.answer(pair.answer_to(event.call), pair.now)

    pair.server.on_event = on_event


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        # The worked examples of RFC 7616 §3.9.1.
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_the_examples_of_the_rfc(algorithm: str, response: str) -> None:
    proof = DigestInput(
        "Mufasa", "http-auth@example.org", "GET", "/dir/index.html", "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
        algorithm, "auth", "00000001", "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
    )  # fmt: skip
    assert proof.response("Circle of Life") == response


def test_a_caller_that_proves_its_password_is_let_in_as_its_trunk_and_can_hang_up() -> None:
    pair = Pair(server=GUARDED)
    answer_at_once(pair)
    ours = pair.dial(path=way())
    pair.run(1.0)
    assert pair.phone.statuses("INVITE") == [401, 100, 200]
    assert [event.trunk for event in pair.server.of(InviteReceived)] == ["carrier"]
    assert "SHA-256" in (pair.server.requests("INVITE")[-1].headers.get("Authorization") or "")
    ours.hang_up(pair.now)
    pair.run()
    assert pair.phone.statuses("BYE") == [200]
    assert pair.idle()


@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer_and_one_try(user: str) -> None:
    pair = Pair(server=GUARDED)
    pair.dial(path=way("wrong", user=user))
    pair.run()
    assert pair.phone.statuses("INVITE") == [401, 401]
    assert pair.phone.of(CallEnded)[0].status == 401
    assert not pair.server.calls
    assert pair.idle()


def test_after_five_failures_the_address_is_not_listened_to_for_a_minute() -> None:
    pair = Pair(server=GUARDED)
    for _ in range(5):
        pair.dial(path=way("wrong"))
        pair.run(1.0)
    heard = len(pair.phone.heard)
    late = pair.dial(path=way())
    pair.run(10.0)
    assert len(pair.phone.heard) == heard
    late.hang_up(pair.now)
    pair.run(70.0)
    answer_at_once(pair)
    pair.dial(path=way())
    pair.run(1.0)
    assert pair.phone.of(CallAnswered)


FORGED = (
    'Digest username="ann", realm="here", nonce="0000000186a012345678-0123456789abcdef0123456789abcdef", '
    'uri="sip:agent@192.0.2.2", response="0", algorithm=MD5, qop=auth, nc=00000001, cnonce="c"'
)


def forged(pair: Pair, count: int, authorization: str = FORGED, source: tuple[str, int] = (PHONE[0], 5061)) -> None:
    """INVITEs with a proof, sent in the name of an address by somebody who does not hear the answers."""
    for number in range(count):
        pair.server.core.receive_datagram(
            f"INVITE sip:agent@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP {source[0]}:{source[1]};branch=z9hG4bKf{number}"
            f"\r\nFrom: <sip:x@b>;tag={number}\r\nTo: <sip:a@b>\r\nCall-ID: forged{number}\r\nCSeq: 1 INVITE\r\n"
            f"Authorization: {authorization}\r\n\r\n".encode(),
            source,
            pair.now,
        )


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(FORGED, id="a nonce that was never signed"),
        pytest.param('Digest username="ann", realm="here", response="0"', id="no nonce"),
        pytest.param(FORGED.replace("algorithm=MD5", "algorithm=SHA-1"), id="an unknown algorithm"),
    ],
)
def test_forged_proofs_with_a_nonce_that_is_not_ours_lock_nobody_out(authorization: str) -> None:
    pair = Pair(server=GUARDED)
    answer_at_once(pair)
    forged(pair, 20, authorization)
    pair.dial(path=way())
    pair.run(1.0)
    assert pair.phone.of(CallAnswered)


def test_a_nonce_of_another_address_does_not_count_against_this_one() -> None:
    pair = Pair(server=GUARDED)
    answer_at_once(pair)
    forged(pair, 1, source=("192.0.2.66", 5060))
    (challenge,) = [data for data, _ in pair.server.core.messages_to_send() if b" 401 " in data]
    nonce = parse_digest(parse_message(challenge).headers.get("WWW-Authenticate") or "")["nonce"]
    forged(pair, 20, FORGED.replace("0000000186a012345678-0123456789abcdef0123456789abcdef", nonce))
    pair.dial(path=way())
    pair.run(1.0)
    assert pair.phone.of(CallAnswered)


def test_a_right_password_on_a_nonce_that_is_not_ours_is_answered_as_a_wrong_one_is() -> None:
    """Else passwords could be tried out on nonces of one's own, which never lock."""
    pair = Pair(server=GUARDED)
    pair.dial(path=way())
    pair.run(1.0)
    proven = parse_digest(pair.server.requests("INVITE")[-1].headers.get("Authorization") or "")
    proof = DigestInput(
        "ann", "here", "INVITE", proven["uri"], "own", "SHA-256", proven["qop"], proven["nc"], proven["cnonce"]
    )
    answers = []
    for response in (proof.response("secret"), proof.response("wrong")):
        assert replayed(pair, {"nonce": "own", "response": response}) == [401]
        challenge = pair.phone.heard[-1].headers.get("WWW-Authenticate") or ""
        answers.append({name for name, _ in parse_digest(challenge).items()})
        assert parse_digest(challenge)["stale"] == "true"
    assert answers[0] == answers[1]


def test_a_peer_that_has_proven_itself_is_answered_while_its_address_is_locked() -> None:
    """Others behind the same translator may fail as often as they like."""
    pair = Pair(server=GUARDED)
    answer_at_once(pair)
    pair.dial(path=way())
    pair.run(1.0)
    neighbour = Pair(server=GUARDED)
    neighbour.server = pair.server
    neighbour.phone.address = (PHONE[0], 40000)
    neighbour.now = pair.now
    for _ in range(5):
        neighbour.dial(path=way("wrong"))
        neighbour.run(1.0)
    heard = len(neighbour.phone.heard)
    neighbour.dial(path=way())
    neighbour.run(1.0)
    assert len(neighbour.phone.heard) == heard
    pair.now = neighbour.now
    pair.dial(path=way())
    pair.run(1.0)
    assert len(pair.phone.of(CallAnswered)) == 2


def test_a_flood_in_the_name_of_a_proven_peer_does_not_take_its_share() -> None:
    pair = Pair(server=GUARDED)
    answer_at_once(pair)
    pair.dial(path=way())
    pair.run(1.0)
    forged(pair, 1000)
    pair.dial(path=way())
    pair.run(1.0)
    assert len(pair.phone.of(CallAnswered)) == 2


def replayed(pair: Pair, changes: dict[str, str]) -> list[int]:
    """What the last proven INVITE is answered when it comes again as a new request."""
    proven = pair.server.requests("INVITE")[-1]
    before = len(pair.phone.statuses("INVITE"))
    again = parse_message(bytes(proven).replace(b"z9hG4bK", b"z9hG4bKagain").replace(b"Call-ID: ", b"Call-ID: x"))
    assert isinstance(again, Request)
    fields = {**parse_digest(again.headers.get("Authorization") or ""), **changes}
    again.headers.set("Authorization", write_digest(fields))
    pair.send(bytes(again))
    pair.run(0.1)
    return pair.phone.statuses("INVITE")[before:]


def test_a_proof_counts_once() -> None:
    pair = Pair(server=GUARDED)
    pair.dial(path=way())
    pair.run(1.0)
    assert replayed(pair, {}) == [401]
    assert len(pair.server.calls) == 1
    assert b"stale=true" in bytes(pair.phone.heard[-1])


def test_a_higher_count_without_the_password_proves_nothing() -> None:
    pair = Pair(server=GUARDED)
    pair.dial(path=way())
    pair.run(1.0)
    assert replayed(pair, {"nc": "00000002"}) == [401]
    assert b"stale" not in bytes(pair.phone.heard[-1])


def test_a_proof_is_old_after_a_minute() -> None:
    pair = Pair(server=GUARDED, phone=settings(ring_limit=500.0))
    pair.lose = lambda number, data: b"Authorization" in data
    pair.dial(path=way())
    pair.run(10.0)
    lost = pair.phone.core.calls
    pair.lose = lambda number, data: False
    (call,) = lost
    pair.now += 61.0
    pair.send(bytes(call.invite))
    pair.run(0.1)
    assert not pair.server.calls
    assert b"stale=true" in bytes(pair.phone.heard[-1])


def test_a_proof_is_good_for_the_address_it_was_asked_of_only() -> None:
    pair = Pair(server=GUARDED)
    pair.lose = lambda number, data: b"Authorization" in data
    (call,) = [pair.dial(path=way())]
    pair.run(0.2)
    pair.server.core.receive_datagram(bytes(call.invite), ("192.0.2.66", 5060), pair.now)
    assert not pair.server.core.calls


@pytest.mark.parametrize("realm", ["elsewhere", ""])
def test_another_realm_never_hears_of_us(realm: str) -> None:
    pair = Pair(server=GUARDED)
    pair.dial(path=way(realm=realm))
    pair.run()
    assert pair.phone.statuses("INVITE") == [401]
    assert not any("Authorization" in request.headers for request in pair.server.requests("INVITE"))


def test_a_peer_that_asks_for_proof_of_our_bye_gets_none() -> None:
    pair = Pair()
    answer_at_once(pair)
    ours = pair.dial(path=way())
    pair.run(1.0)
    pair.lose = lambda number, data: data.startswith(b"SIP/2.0 200")
    ours.hang_up(pair.now)
    pair.run(0.1)
    (bye,) = pair.server.requests("BYE")
    challenge = 'Digest realm="here", nonce="1", qop="auth"'
    response = respond_to(bye, 401, headers=[("WWW-Authenticate", challenge)])
    pair.send(bytes(response), to="phone")
    pair.run()
    assert len(pair.server.requests("BYE")) == 1
    assert pair.phone.of(CallEnded)


def test_requests_within_an_unknown_call_get_no_service() -> None:
    pair = Pair(server=GUARDED)
    for method in ("OPTIONS", "MESSAGE", "NONSENSE", "REGISTER"):
        pair.send(
            f"{method} sip:a@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP {PHONE[0]};branch=z9hG4bK{method}\r\n"
            f"From: <sip:a@b>;tag=1\r\nTo: <sip:a@b>\r\nCall-ID: 1\r\nCSeq: 1 {method}\r\n\r\n".encode()
        )
    pair.run(1.0)
    assert {m.status for m in pair.phone.heard} == {401}


def test_a_flood_without_proof_is_dropped_before_it_is_read() -> None:
    pair = Pair(server=GUARDED)
    for number in range(1000):
        pair.send(
            f"OPTIONS sip:a@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP {PHONE[0]};branch=z9hG4bK{number}\r\n"
            f"From: <sip:a@b>;tag=1\r\nTo: <sip:a@b>\r\nCall-ID: {number}\r\nCSeq: 1 OPTIONS\r\n\r\n".encode()
        )
    pair.run(1.0)
    assert len(pair.phone.heard) == 100
