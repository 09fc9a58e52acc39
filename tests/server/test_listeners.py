"""SIP as the settings say: sockets, trunks that prove themselves, trunks that we register at."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.config import SipSettings, Trunk, load_config
from callagent.errors import ConfigError, UserError
from callagent.legs import TransferTarget
from callagent.legs.leg import TooManyCalls
from callagent.legs.sip import SipLeg
from callagent.server.listeners import Signalling, SignallingLimits, SipAdmission
from callagent.sip import CallAnswered, CallEnded, Credentials, Endpoint, Event, Negotiation, TlsSettings
from callagent.sip import UserAgentSettings as Settings
from tests.sip.test_connections import make_certificate


def settings(**changes: object) -> SipSettings:
    return SipSettings.model_validate({"listen": "127.0.0.1:0", **changes})


def offer(host: str) -> bytes:
    return Negotiation(host, 40002, 1, loopback=True).offer()


async def outcome(phone: Endpoint, target: str, password: str) -> Event:
    call = await phone.call(target, body=offer, credentials=Credentials("ann", password, "here"))
    events: asyncio.Queue[Event] = asyncio.Queue()
    call.listen(events.put_nowait)
    async with asyncio.timeout(60):
        while not isinstance(event := await events.get(), CallAnswered | CallEnded):
            pass
        call.hang_up()
        await call.closed.wait()
    return event


async def answer(leg: SipLeg) -> None:
    await leg.answer()


async def test_a_trunk_calls_over_each_transport_once_it_has_proven_its_password(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    sip = settings(
        listen_tcp="127.0.0.1:0",
        listen_tls="127.0.0.1:0",
        certificate=str(certificate),
        key=str(key),
        realm="here",
        rtp_ports="21000-21998",
        trunks=[{"name": "office", "inbound_username": "ann", "inbound_password": "secret"}],
    )
    taken: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        signalling = await Signalling.open(
            sip, lambda leg: taken.append(asyncio.create_task(answer(leg))), lambda: None, stack
        )
        assert [address[0] for address in signalling.addresses] == ["udp", "tcp", "tls"]
        phone = await Endpoint.open(
            "127.0.0.1", 0, Settings(admit=lambda host: "local"), tls=TlsSettings(trusted=certificate)
        )
        for transport, host, port in signalling.addresses:
            target = f"sip:agent@{host}:{port};transport={transport}"
            assert isinstance(await outcome(phone, target, "secret"), CallAnswered)
            refused = await outcome(phone, target, "wrong")
            assert isinstance(refused, CallEnded)
            assert refused.status == 401
        assert len(taken) == 3
        await phone.close()


async def test_calls_of_a_trunk_that_come_too_fast_are_told_when_to_come_again() -> None:
    trunk = {"name": "carrier", "sources": ["127.0.0.1"], "calls_per_second": 0.01}
    taken: list[asyncio.Task[None]] = []
    reached: list[tuple[str, str]] = []
    async with AsyncExitStack() as stack:
        signalling = await Signalling.open(
            settings(trunks=[trunk], rtp_ports="21000-21998"),
            lambda leg: taken.append(asyncio.create_task(answer(leg))),
            lambda: None,
            stack,
            SignallingLimits(on_reached=lambda limit, trunk: reached.append((limit, trunk))),
        )
        ((_, host, port),) = signalling.addresses
        phone = await Endpoint.open("127.0.0.1", 0, Settings(admit=lambda host: "local"))
        assert isinstance(await outcome(phone, f"sip:agent@{host}:{port}", "none"), CallAnswered)
        refused = await outcome(phone, f"sip:agent@{host}:{port}", "none")
        assert isinstance(refused, CallEnded)
        assert (refused.status, refused.headers.get("Retry-After")) == (503, "1")
        assert reached == [("calls_per_second", "carrier")]
        await phone.close()


async def test_calls_of_ours_through_a_trunk_are_not_placed_faster_than_it_takes_them() -> None:
    phone = await Endpoint.open("127.0.0.1", 0, Settings(admit=lambda host: "local"))
    server = f"sip:127.0.0.1:{phone.local_address[1]}"
    trunk = {"name": "carrier", "server": server, "calls_per_second": 0.01}
    async with AsyncExitStack() as stack:
        signalling = await Signalling.open(settings(trunks=[trunk]), lambda leg: None, lambda: None, stack)
        target = TransferTarget("desk", "+442079460000", trunk="carrier")
        leg = await signalling.legs.dial_for(target)
        with pytest.raises(TooManyCalls) as refused:
            await signalling.legs.dial_for(target)
        assert refused.value.limit == "calls_per_second"
        leg.leave(EndReason.HANDOFF)
    await phone.close()


async def test_a_server_with_a_public_host_name_answers_calls_and_names_it_in_contact_alone() -> None:
    sip = settings(public_host="phone.example.com", public_address="127.0.0.1", rtp_ports="21000-21998")
    taken: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        signalling = await Signalling.open(
            sip, lambda leg: taken.append(asyncio.create_task(answer(leg))), lambda: None, stack
        )
        ((_, host, port),) = signalling.addresses
        phone = await Endpoint.open("127.0.0.1", 0, Settings(admit=lambda host: "local"))
        answered = await outcome(phone, f"sip:agent@{host}:{port}", "none")
        assert isinstance(answered, CallAnswered)
        assert b"c=IN IP4 127.0.0.1" in answered.body
        assert answered.call.dialog is not None
        assert answered.call.dialog.remote_target.host == "phone.example.com"
        await phone.close()


async def test_a_trunk_that_is_not_there_shows_in_the_metrics() -> None:
    trunk = {"name": "far", "server": "sip:127.0.0.1:9;transport=tcp", "username": "a", "registration": True}
    async with AsyncExitStack() as stack:
        signalling = await Signalling.open(settings(trunks=[trunk]), lambda leg: None, lambda: None, stack)
        async with asyncio.timeout(60):
            while signalling.trunks.states["far"].reachable is None:
                await asyncio.sleep(0.01)
        assert 'callagent_sip_trunk_registered{trunk="far"} 0' in signalling.metrics()
        assert 'callagent_sip_trunk_reachable{trunk="far"} 0' in signalling.metrics()


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for changes, words in (
        ({"listen_tls": "127.0.0.1:0"}, "sip.certificate"),
        ({"listen_tls": "127.0.0.1:0", "certificate": str(tmp_path / "none.pem")}, "sip.listen_tls"),
        ({"trunks": [{"name": "x", "server": "example.com"}]}, "'example.com' is not a SIP URI"),
    ):
        async with AsyncExitStack() as stack:
            with pytest.raises((ConfigError, UserError), match=words):
                await Signalling.open(settings(**changes), lambda leg: None, lambda: None, stack)


@pytest.mark.parametrize(
    "trunk",
    [
        {"name": "x"},
        {"name": "x", "sources": ["192.0.2.1"], "registration": True},
        {"name": "x", "sources": ["192.0.2.1"], "keep_alive": 10},
        {"name": "x", "inbound_username": "a"},
    ],
)
def test_a_trunk_that_makes_no_sense_is_refused(trunk: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="need"):
        Trunk.model_validate(trunk)


def test_who_has_to_prove_who_it_is() -> None:
    sip = settings(
        trunks=[
            {"name": "plain", "sources": ["192.0.2.1"]},
            {"name": "both", "sources": ["192.0.2.2"], "inbound_username": "b", "inbound_password": "p"},
        ]
    )
    assert [SipAdmission(sip).admit(f"192.0.2.{number}") for number in (1, 2, 3)] == ["plain", "", None]
    anywhere = settings(trunks=[{"name": "open", "inbound_username": "b", "inbound_password": "p"}])
    assert SipAdmission(anywhere).admit("198.51.100.1") == ""


def test_the_password_of_a_trunk_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "callagent.toml"
    path.write_text('[[sip.trunks]]\nname = "my-trunk"\nserver = "sip:example.com"\nusername = "u"\n')
    (tmp_path / "secret").write_text("from file\n")
    config = load_config(path, {"SIP_MY_TRUNK_PASSWORD": "from environment"})
    assert config.sip.trunks[0].password.get_secret_value() == "from environment"
    config = load_config(path, {"SIP_MY_TRUNK_PASSWORD_FILE": str(tmp_path / "secret")})
    assert config.sip.trunks[0].password.get_secret_value() == "from file"
    assert "from file" not in repr(config)
