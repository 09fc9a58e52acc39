"""The endpoint against SIPp where two things happen at once, or a peer wants something else than we do."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from callagent.sip import CallAnswered, CallEnded, Credentials, EndCause, Negotiation, UserAgentSettings
from tests.end_to_end.sipp_scenario import Scenario
from tests.end_to_end.test_sip_peers import Server, closed, desk_of, finished, scenario, serving, sipp

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]
SHORT = UserAgentSettings(admit=lambda host: "local", session_seconds=4, shortest_session=2)
WAYS = pytest.mark.parametrize("way", ["u1", "t1"])


# A caller that gives up


def cancelled_while_it_rings() -> Scenario:
    one = Scenario("CANCEL after 180").request("INVITE", 1, sdp=True).hear("100", optional=True).hear("180")
    one.request("CANCEL", 1, 'Reason: SIP;cause=200;text="Call completed elsewhere"', branch_back=3)
    return one.hear("200", "CSeq: CANCEL").hear("487").request("ACK", 1, branch_back=6)


def cancelled_too_late() -> Scenario:
    one = Scenario("CANCEL crosses the 200").request("INVITE", 1, sdp=True)
    one.hear("100", optional=True).hear("180", optional=True).hear("200", "CSeq: INVITE")
    one.request("CANCEL", 1, branch_back=4).hear("200", "CSeq: CANCEL")
    return one.request("ACK", 1).left()


def cancelled_after_all() -> Scenario:
    one = Scenario("CANCEL of an established call").request("INVITE", 1, sdp=True).hear("100", optional=True)
    one.hear("180", optional=True).hear("200", "To: tag=.*").request("ACK", 1)
    # The 481 has a tag of its own.
    one.request("CANCEL", 1, branch_back=5).hear("481")
    return one.request("BYE", 2, tag=";[$1]").hear("200")


@WAYS
@pytest.mark.parametrize(
    ("made", "user", "cause"),
    [
        (cancelled_while_it_rings, "ring", EndCause.CANCELLED),
        (cancelled_too_late, "agent", EndCause.CANCELLED),
        (cancelled_after_all, "agent", EndCause.REMOTE),
    ],
)
async def test_a_caller_gives_up_at_each_moment(
    made: Callable[[], Scenario], user: str, cause: EndCause, way: str, tmp_path: Path
) -> None:
    async with serving(SHORT) as server:
        await sipp(server, *made().write(tmp_path), "-s", user, "-m", "3", "-t", way)
        await closed(server, 3)
        ended = [event for event in server.events if isinstance(event, CallEnded)]
        assert [event.cause for event in ended] == [cause] * 3
        if made is cancelled_while_it_rings:
            assert ended[0].headers.get("Reason") == 'SIP;cause=200;text="Call completed elsewhere"'


@pytest.mark.parametrize("way", ["udp", "tcp"])
async def test_a_cancel_right_behind_its_invite(way: str) -> None:
    async with serving(SHORT) as server:
        port = server.endpoint.local_address[1]
        kind = socket.SOCK_DGRAM if way == "udp" else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET, kind) as peer:
            peer.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(peer, ("127.0.0.1", port))
            requests = [
                f"{method} sip:ring@127.0.0.1:{port} SIP/2.0\r\n"
                f"Via: SIP/2.0/{way.upper()} 127.0.0.1:{peer.getsockname()[1]};branch=z9hG4bKonce;rport\r\n"
                "From: <sip:ann@127.0.0.1>;tag=1\r\nTo: <sip:ring@127.0.0.1>\r\nCall-ID: once\r\n"
                f"CSeq: 1 {method}\r\nContact: <sip:ann@127.0.0.1>\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
                for method in ("INVITE", "CANCEL")
            ]
            # In one segment over TCP, without a look at what comes back.
            for data in ["".join(requests)] if way == "tcp" else requests:
                await loop.sock_sendall(peer, data.encode())
            heard = b""
            async with asyncio.timeout(30):
                while b"SIP/2.0 487" not in heard:
                    heard += await loop.sock_recv(peer, 8192)
            assert heard.index(b"SIP/2.0 100") < heard.index(b"SIP/2.0 200") < heard.index(b"SIP/2.0 487")
            (ended,) = [event for event in server.events if isinstance(event, CallEnded)]
            assert ended.cause is EndCause.CANCELLED


# Session timers

TIMED = ("Supported: timer", "Session-Expires: 4;refresher=uas")
UPDATES = "Allow: INVITE, ACK, BYE, CANCEL, UPDATE"
PLAIN = "Allow: INVITE, ACK, BYE, CANCEL"


def we_update() -> Scenario:
    one = Scenario("refreshed by UPDATE").call(*TIMED, UPDATES)
    for _ in range(2):
        one.hear("UPDATE", "Session-Expires: 4;refresher=uac").response("200 OK", "Session-Expires: 4;refresher=uac")
    return one.leave(2)


def we_invite_again() -> Scenario:
    one = Scenario("refreshed by re-INVITE").call(*TIMED, PLAIN)
    one.hear("INVITE", "Session-Expires: 4;refresher=uac")
    one.response("200 OK", "Session-Expires: 4;refresher=uac", sdp=True).hear("ACK")
    return one.leave(2)


def we_are_too_quick() -> Scenario:
    one = Scenario("a refresh that is too short").call(*TIMED, UPDATES)
    one.hear("UPDATE").response("422 Session Interval Too Small", "Min-SE: 6")
    one.hear("UPDATE", "Min-SE: 6").response("200 OK", "Session-Expires: 6;refresher=uac")
    return one.leave(2)


def we_meet_a_change() -> Scenario:
    # The second refresh comes up to two seconds after the first, well before the session ends.
    one = Scenario("a refresh that meets a change").call("Supported: timer", "Session-Expires: 8;refresher=uas", PLAIN)
    one.hear("INVITE").response("491 Request Pending").hear("ACK")
    one.hear("INVITE").response("200 OK", "Session-Expires: 4;refresher=uac", sdp=True).hear("ACK")
    return one.leave(2)


def it_updates() -> Scenario:
    caller = ("Supported: timer", "Session-Expires: 4;refresher=uac", UPDATES)
    one = Scenario("refreshes by UPDATE and stops").call(*caller).wait(1.5)
    return one.request("UPDATE", 2, *caller).hear("200", "Session-Expires: 4;refresher=uac").left()


def it_invites_again() -> Scenario:
    caller = ("Supported: timer", "Session-Expires: 4;refresher=uac", PLAIN)
    one = Scenario("refreshes by re-INVITE and stops").call(*caller).wait(1.5)
    one.request("INVITE", 2, *caller, sdp=True).hear("100", optional=True)
    return one.hear("200", "Session-Expires: 4;refresher=uac").request("ACK", 2).left()


def it_is_too_quick() -> Scenario:
    one = Scenario("asks for a refresh that is too short for us").call("Supported: timer", UPDATES)
    one.request("UPDATE", 2, "Supported: timer", "Session-Expires: 1").hear("422", "Min-SE: 2")
    return one.request("UPDATE", 3, "Supported: timer", "Session-Expires: 2", "Min-SE: 2").hear("200").leave(4)


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (we_update, EndCause.REMOTE),
        (we_invite_again, EndCause.REMOTE),
        (we_are_too_quick, EndCause.REMOTE),
        (we_meet_a_change, EndCause.REMOTE),
        (it_updates, EndCause.LOST),
        (it_invites_again, EndCause.LOST),
        (it_is_too_quick, EndCause.REMOTE),
    ],
)
async def test_either_side_refreshes_the_session(made: Callable[[], Scenario], cause: EndCause, tmp_path: Path) -> None:
    async with serving(SHORT) as server:
        await sipp(server, *made().write(tmp_path), "-s", "agent", "-m", "1")
        await closed(server, 1)
        assert [event.cause for event in server.events if isinstance(event, CallEnded)] == [cause]


# Desks that we call


def _challenge(nonce: str, more: str = "") -> str:
    return f'WWW-Authenticate: Digest realm="carrier", nonce="{nonce}", algorithm=MD5, qop="auth"{more}'


def asks_again() -> Scenario:
    one = Scenario("a nonce that is too old").hear("INVITE").response("401 Unauthorized", _challenge("first"), tag="a")
    one.hear("ACK").hear("INVITE", "Authorization: first")
    one.response("401 Unauthorized", _challenge("second", ", stale=true"), tag="b").hear("ACK")
    return one.hear("INVITE", "Authorization: second").response("200 OK", tag="c", sdp=True).hear("ACK").left()


def never_has_enough() -> Scenario:
    one = Scenario("a wrong password").hear("INVITE")
    one.response("401 Unauthorized", _challenge("first"), tag="a").hear("ACK").hear("INVITE", "Authorization: first")
    return one.response("401 Unauthorized", _challenge("second"), tag="b").hear("ACK").wait(1.0)


def wants_longer_sessions() -> Scenario:
    one = Scenario("a longer session").hear("INVITE", "Session-Expires: 4")
    one.response("422 Session Interval Too Small", "Min-SE: 90", tag="a").hear("ACK").hear("INVITE", "Min-SE: 90")
    return one.response("200 OK", "Session-Expires: 90;refresher=uac", tag="b", sdp=True).hear("ACK").left()


def forks() -> Scenario:
    one = Scenario("two phones answer").hear("INVITE", "Via: .*")
    one.response("180 Ringing", tag="a").response("180 Ringing", tag="b")
    one.response("200 OK", tag="a", sdp=True).hear("ACK", "To: tag=a").answer_again("b", via="[$1]")
    return one.hear("ACK", "To: tag=b").hear("BYE", "To: tag=b").response("200 OK").left()


class Caller:
    """Stays for half a second once its call is answered."""

    def __init__(self) -> None:
        self.events: list[object] = []

    async def call(self, server: Server, target: str) -> None:
        credentials = Credentials("we", "secret", "carrier")
        call = await server.endpoint.call(
            target, body=lambda host: Negotiation(host, 40000, 1, loopback=True).offer(), credentials=credentials
        )

        def hear(event: object) -> None:
            self.events.append(event)
            if isinstance(event, CallAnswered):
                asyncio.get_running_loop().call_later(0.5, call.hang_up)

        call.listen(hear)
        async with asyncio.timeout(60):
            await call.closed.wait()


@WAYS
@pytest.mark.parametrize(
    ("made", "cause", "status"),
    [
        (asks_again, EndCause.LOCAL, 200),
        (never_has_enough, EndCause.REFUSED, 401),
        (wants_longer_sessions, EndCause.LOCAL, 200),
        (forks, EndCause.LOCAL, 200),
        (None, EndCause.TIMEOUT, 487),
    ],
)
async def test_a_desk_that_makes_it_hard(
    made: Callable[[], Scenario] | None, cause: EndCause, status: int, way: str, tmp_path: Path
) -> None:
    # The last one rings for ever.
    played = scenario("desk_rings") if made is None else made().write(tmp_path)
    process, port = await desk_of(played, way)
    limits = UserAgentSettings(admit=lambda host: "local", session_seconds=4, shortest_session=2, ring_limit=1.5)
    async with serving(limits) as server:
        caller = Caller()
        await caller.call(server, f"sip:desk@127.0.0.1:{port};transport={'tcp' if way == 't1' else 'udp'}")
        await finished(process)
    (ended,) = [event for event in caller.events if isinstance(event, CallEnded)]
    assert (ended.cause, ended.status) == (cause, status)
    assert len([event for event in caller.events if isinstance(event, CallAnswered)]) == (status == 200)
