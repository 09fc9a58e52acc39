"""The endpoint against SIPp: proxies, forks, transfers, proofs, registrars, and what goes wrong with each."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from callagent.sip import (
    UNPROVEN,
    Account,
    CallAnswered,
    CallClosed,
    CallEnded,
    Credentials,
    DigestSettings,
    EndCause,
    Endpoint,
    Negotiation,
    TransferProgressed,
    TransferRequested,
    TransferState,
    Trunks,
    TrunkSettings,
    Uri,
    UserAgentSettings,
)
from tests.end_to_end.test_sip_peers import Caller, Server, closed, desk_of, finished, scenario, serving, sipp

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]
WAYS = pytest.mark.parametrize("way", ["u1", "t1"])


def settings(**more: object) -> UserAgentSettings:
    return UserAgentSettings(admit=lambda host: "local", **more)  # type: ignore[arg-type]


def last_transfer(served: Server) -> TransferProgressed:
    event = served.of(TransferProgressed)[-1]
    assert isinstance(event, TransferProgressed)
    return event


@WAYS
async def test_refer_and_bye_go_the_way_of_the_proxies(way: str) -> None:
    async with serving(settings()) as served:
        await sipp(served, *scenario("routed"), "-s", "transfer", "-m", "3", "-t", way)
        await closed(served, 3)
        assert last_transfer(served).state is TransferState.SUCCEEDED


@WAYS
async def test_a_transfer_that_is_refused_leaves_the_call(way: str) -> None:
    async with serving(settings()) as served:
        await sipp(served, *scenario("transfer_refused"), "-s", "transfer", "-m", "1", "-t", way)
        await closed(served, 1)
        outcome = last_transfer(served)
        assert (outcome.state, outcome.status) == (TransferState.REFUSED, 603)
        (ended,) = served.of(CallEnded)
        assert isinstance(ended, CallEnded)
        assert ended.cause is EndCause.REMOTE


async def test_a_transfer_that_nobody_tells_of_ends_in_time() -> None:
    async with serving(settings(notify_limit=1.0)) as served:
        await sipp(served, *scenario("transfer_silent"), "-s", "transfer", "-m", "1")
        await closed(served, 1)
        assert last_transfer(served).state is TransferState.NO_ANSWER


@WAYS
async def test_who_asks_us_to_call_is_told_the_outcome(way: str) -> None:
    async with serving(settings(accepts_transfers=True)) as served:
        await sipp(served, *scenario("refers_us"), "-s", "agent", "-m", "1", "-t", way)
        (asked,) = served.of(TransferRequested)
        assert isinstance(asked, TransferRequested)
        assert str(asked.target) == "sip:desk@127.0.0.1:9"


@WAYS
async def test_another_phone_takes_the_place_of_the_first(way: str) -> None:
    async with serving(settings()) as served:
        await sipp(served, *scenario("replaced"), "-s", "agent", "-m", "1", "-t", way)
        await closed(served, 2)
        assert [event.cause for event in served.of(CallEnded) if isinstance(event, CallEnded)] == [
            EndCause.LOCAL,
            EndCause.REMOTE,
        ]


@WAYS
async def test_a_phone_takes_our_place_in_the_call_with_the_desk(way: str) -> None:
    async with serving(settings()) as served:
        process, port = await desk_of(scenario("desk_answers"), way)
        transport = "tcp" if way == "t1" else "udp"
        served.desk = await served.endpoint.call(
            f"sip:desk@127.0.0.1:{port};transport={transport}",
            body=lambda host: Negotiation(host, 40010, 1, loopback=True).offer(),
        )
        answered = asyncio.Event()
        served.desk.listen(lambda event: answered.set() if isinstance(event, CallAnswered) else None)
        async with asyncio.timeout(60):
            await answered.wait()
        await sipp(served, *scenario("transferred_attended"), "-s", "transfer", "-m", "1", "-t", way)
        await closed(served, 1)
        assert last_transfer(served).state is TransferState.SUCCEEDED
        served.desk.hang_up()
        await finished(process)


@pytest.mark.parametrize(("name", "calls"), [("merged", 3), ("looped", 0), ("late_cancel", 3)])
@WAYS
async def test_requests_that_come_twice_or_too_late(name: str, calls: int, way: str) -> None:
    async with serving(settings()) as served:
        await sipp(served, *scenario(name), "-s", "agent", "-m", "3", "-t", way)
        await closed(served, calls)
        assert len(served.calls) == calls
        assert all(event.cause is EndCause.REMOTE for event in served.of(CallEnded) if isinstance(event, CallEnded))


@WAYS
async def test_what_a_trunk_tells_of_a_call_reaches_us_whole(way: str) -> None:
    async with serving(settings()) as served:
        await sipp(served, *scenario("with_headers"), "-s", "leave", "-m", "1", "-t", way)
        headers = served.calls[0].core.invite.headers
        assert headers.get("P-Asserted-Identity") == '"Ann" <sip:+15550111@trunk.example>'
        assert headers.get("Privacy") == "id"
        assert headers.get("Diversion") == "<sip:+15550122@trunk.example>;reason=no-answer;counter=1"
        assert headers.get("History-Info") == "<sip:+15550133@trunk.example>;index=1"
        assert headers.get("User-to-User") == "56a390f3d2b7310023;encoding=hex"
        assert headers.get("Reason") == 'SIP;cause=302;text="moved"'
        assert headers.get("X-Account") == "4711"


@WAYS
async def test_a_wrong_proof_sounds_the_same_for_known_and_unknown_users(way: str) -> None:
    digest = DigestSettings("callagent", {"ann": Account("carrier", "secret")}, ["MD5"])
    async with serving(UserAgentSettings(admit=lambda host: UNPROVEN, digest=digest)) as served:
        await sipp(served, *scenario("wrong_proof"), "-s", "agent", "-m", "1", "-t", way)
        assert not served.calls


async def test_a_stranger_hears_nothing() -> None:
    async with serving(UserAgentSettings(admit=lambda host: None)) as served:
        await sipp(served, *scenario("stranger"), "-s", "agent", "-m", "1")


async def test_calls_over_ipv6() -> None:
    served = Server()
    served.endpoint = await Endpoint.open("::1", 0, settings(), served.accept)
    port = served.endpoint.local_address[1]
    process = await asyncio.create_subprocess_exec(
        "sipp", "-sn", "uac", "-s", "agent", "-m", "5", "-d", "100", "-i", "[::1]", "-mi", "[::1]", "-nd", "-nostdin",
        "-timeout", "40", "-timeout_error", f"[::1]:{port}",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    await closed(served, 5)
    await served.endpoint.close()


@WAYS
@pytest.mark.parametrize("name", ["desk_forks", "desk_routed", "desk_reliable"])
async def test_a_desk_that_we_call(name: str, way: str) -> None:
    async with serving(settings()) as served:
        process, port = await desk_of(scenario(name), way)
        caller = Caller()
        target = f"sip:desk@127.0.0.1:{port};transport={'tcp' if way == 't1' else 'udp'}"
        await caller.call(served.endpoint, target, None, gives_up=False)
        await finished(process)
        (ended,) = caller.of(CallEnded)
        assert isinstance(ended, CallEnded)
        assert (ended.cause, ended.status) == (EndCause.LOCAL, 200)
        assert len(caller.of(CallClosed)) == 1


@WAYS
async def test_we_register_with_a_proof_and_leave(way: str) -> None:
    async with serving(settings()) as served:
        process, port = await desk_of(scenario("registrar"), way)
        server = Uri.parse(f"sip:127.0.0.1:{port};transport={'tcp' if way == 't1' else 'udp'}")
        credentials = Credentials("agent", "secret", "carrier.test")
        trunks = Trunks(served.endpoint, [TrunkSettings("carrier", server, credentials, register=True)])
        trunks.start()
        async with asyncio.timeout(60):
            while not trunks.states["carrier"].registered:
                await asyncio.sleep(0.02)
        await trunks.close()
        await finished(process)
