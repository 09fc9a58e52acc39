"""SIP legs against baresip: a softphone's dialogs and its audio, over loopback."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import struct
import wave
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import CallerHungUp, DigitPressed, LegEvent, Media, TransferStatus, TransferTarget
from callagent.legs.sip.factory import SipLegFactory
from callagent.legs.sip.leg import SipLeg
from callagent.observability import Metrics
from callagent.records import CallRecord
from callagent.rtp import Pump, RtpPorts
from callagent.sip import TlsSettings, UserAgentSettings
from tests.end_to_end.baresip import START_SECONDS, free_port, is_open
from tests.end_to_end.scripted import until
from tests.lossy_link import Damage, LossyLink, relay
from tests.sip.test_connections import make_certificate

MODULES = Path("/usr/lib/baresip/modules")
PATIENCE = 60.0
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("baresip") is None or not MODULES.exists(), reason="baresip is not installed"),
]


def write_tone(path: Path) -> None:
    """Longer than any test: the phone hangs up at the end of its file."""
    second = [int(8000 * math.sin(2 * math.pi * 440 * n / 8000)) for n in range(8000)]
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(struct.pack("<8000h", *second) * int(2 * PATIENCE))


class Baresip:
    """A running softphone, driven over its control socket."""

    def __init__(self, folder: Path, transport: str = "udp") -> None:
        self.folder = folder
        self.transport = transport
        self.port = free_port(socket.SOCK_DGRAM, socket.SOCK_STREAM)
        self._control = free_port(socket.SOCK_STREAM)
        self._process: asyncio.subprocess.Process
        self._writer: asyncio.StreamWriter
        self._reader: asyncio.StreamReader

    async def start(self) -> None:
        write_tone(self.folder / "tone.wav")
        lines = [
            f"sip_listen 127.0.0.1:{self.port}", "net_interface 127.0.0.1", f"module_path {MODULES}",
            f"audio_player aubridge,p{self.port}", f"audio_alert aubridge,a{self.port}",
            f"audio_source aufile,{self.folder / 'tone.wav'}", "ausrc_srate 8000", "auplay_srate 8000",
            "ausrc_channels 1", "auplay_channels 1", "module g711.so", "module aufile.so", "module aubridge.so",
            "module_tmp uuid.so", "module_tmp account.so", "module_app menu.so", "module_app ctrl_tcp.so",
            f"ctrl_tcp_listen 127.0.0.1:{self._control}",
            "rtp_ports 10000-19998",
        ]  # fmt: skip
        if self.transport == "tls":
            certificate, key = make_certificate(self.folder, "phone")
            both = self.folder / "both.pem"
            both.write_text(certificate.read_text() + key.read_text())
            lines.append(f"sip_certificate {both}")
        (self.folder / "config").write_text("\n".join(lines) + "\n")
        account = f"<sip:phone@127.0.0.1:{self.port};transport={self.transport}>;regint=0;answermode=auto"
        (self.folder / "accounts").write_text(account + "\n")
        (self.folder / "contacts").write_text("")
        self._process = await asyncio.create_subprocess_exec(
            "baresip", "-f", str(self.folder), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        await until(lambda: is_open(socket.SOCK_STREAM, self._control), START_SECONDS)
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._control)

    @property
    def uri(self) -> str:
        # baresip listens with TLS one port above.
        port = self.port + 1 if self.transport == "tls" else self.port
        return f"sip:phone@127.0.0.1:{port};transport={self.transport}"

    def command(self, name: str, parameters: str = "") -> None:
        text = json.dumps({"command": name, "params": parameters}).encode()
        self._writer.write(b"%d:%s," % (len(text), text))

    async def stop(self) -> None:
        self._writer.close()
        self._process.terminate()
        await self._process.wait()


class Server:
    def __init__(self) -> None:
        self.legs: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.events: asyncio.Queue[LegEvent] = asyncio.Queue()
        self.loudest = 0
        self.heard = asyncio.Event()

    async def take(self) -> tuple[SipLeg, Media]:
        async with asyncio.timeout(PATIENCE):
            leg = await self.legs.get()
            leg.listen(self.events.put_nowait)
            leg.ring()
            media = await leg.answer()
        media.start(self._hear, lambda: None)
        return leg, media

    async def next_event(self) -> LegEvent:
        async with asyncio.timeout(PATIENCE):
            return await self.events.get()

    def _hear(self, frame: bytes, now: float) -> None:
        if max(struct.unpack("<160h", frame)) > 4000:
            self.heard.set()


@pytest.fixture
async def baresip(tmp_path: Path) -> AsyncIterator[Baresip]:
    phone = Baresip(tmp_path)
    await phone.start()
    yield phone
    await phone.stop()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Server, SipLegFactory, str]]:
    pump = Pump()
    pump.start()
    server = Server()
    legs = SipLegFactory(RtpPorts("127.0.0.1", 21000, 23998, rest_seconds=0.0), pump, server.legs.put_nowait)
    settings = UserAgentSettings(admit=lambda host: "local", accepts_transfers=True)
    _, port = await legs.open("127.0.0.1", 0, settings)
    yield server, legs, f"127.0.0.1:{port}"
    await legs.close()
    pump.stop()


async def test_baresip_calls_speaks_presses_holds_and_hangs_up(
    baresip: Baresip, served: tuple[Server, SipLegFactory, str]
) -> None:
    server, _, address = served
    baresip.command("dial", f"sip:agent@{address}")
    leg, media = await server.take()
    async with asyncio.timeout(PATIENCE):
        await server.heard.wait()
    baresip.command("sndcode", "5")
    baresip.command("sndcode", "#")
    assert [await server.next_event(), await server.next_event()] == [DigitPressed("5"), DigitPressed("#")]
    baresip.command("hold")
    await until(lambda: leg._session._held, PATIENCE)
    server.heard.clear()
    baresip.command("resume")
    async with asyncio.timeout(PATIENCE):
        await server.heard.wait()
    assert media.statistics().packets_refused == 0
    baresip.command("hangup")
    assert await server.next_event() == CallerHungUp(EndReason.CALLER_HANGUP)
    assert leg.info.callee == "agent"


async def test_baresip_behind_a_translator_that_changes_its_port_is_heard_from_the_first_packet(
    baresip: Baresip, served: tuple[Server, SipLegFactory, str]
) -> None:
    server, _, address = served
    elsewhere = free_port(socket.SOCK_DGRAM)
    changed: list[bytes] = []

    def misname(data: bytes) -> bytes:
        changed.extend(re.findall(rb"m=audio ([0-9]{5}) ", data))
        return re.sub(rb"m=audio [0-9]{5} ", b"m=audio %d " % elsewhere, data)

    async with relay(LossyLink(Damage(), 1), misname) as between:
        between.join(("127.0.0.1", baresip.port), ("127.0.0.1", int(address.rpartition(":")[2])))
        baresip.command("dial", f"sip:agent@127.0.0.1:{between.left.address[1]}")
        leg, media = await server.take()
        async with asyncio.timeout(PATIENCE):
            await server.heard.wait()
        (named,) = map(int, changed)
        assert named != elsewhere
        heard = media.statistics()
        assert heard.packets_refused == 0
        assert heard.packets_lost == 0
        assert leg._session._destination == ("127.0.0.1", named)
        await leg.hang_up(EndReason.AGENT_HANGUP)


async def test_what_baresip_reports_is_in_the_record_and_the_metrics(
    tmp_path: Path, served: tuple[Server, SipLegFactory, str]
) -> None:
    server, _, address = served
    baresip = Baresip(tmp_path)
    await baresip.start()
    baresip.command("dial", f"sip:agent@{address}")
    _, media = await server.take()
    async with asyncio.timeout(PATIENCE):
        while not media.statistics().round_trip_ms:
            await asyncio.sleep(0.1)
    baresip.command("hangup")
    assert isinstance(await server.next_event(), CallerHungUp)
    # As the call keeps it, and as it is counted.
    record = CallRecord("x", end_reason="caller_hangup", media=asdict(media.statistics()))
    heard = record.to_json()["media"]
    assert heard["peer_reports"] >= 1
    assert heard["packets_received"] > 100
    assert (heard["packets_lost"], heard["peer_packets_lost"]) == (0, 0)
    assert 0 < heard["round_trip_ms"] < 1000
    assert 0 < heard["jitter_ms"] < 100
    assert 0 <= heard["peer_jitter_ms"] < 100
    metrics = Metrics()
    metrics.ended(record)
    lines = metrics.text({}).splitlines()
    for name in ("round_trip", "jitter", "peer_jitter", "send_lateness"):
        assert f"callagent_rtp_{name}_milliseconds_count 1.0" in lines
    assert f'callagent_rtp_packets_total{{kind="received"}} {float(heard["packets_received"])}' in lines
    await baresip.stop()


async def test_baresip_is_transferred_and_follows(baresip: Baresip, served: tuple[Server, SipLegFactory, str]) -> None:
    server, _, address = served
    baresip.command("dial", f"sip:agent@{address}")
    leg, _ = await server.take()
    transferring = asyncio.create_task(leg.transfer(TransferTarget("desk", f"sip:desk@{address}")))
    desk, _ = await server.take()
    async with asyncio.timeout(PATIENCE):
        outcome = await transferring
    assert outcome.status is TransferStatus.SUCCEEDED
    assert desk.info.callee == "desk"
    await desk.hang_up(EndReason.AGENT_HANGUP)


@pytest.mark.parametrize("transport", ["tcp", "tls"])
async def test_baresip_is_transferred_over_a_connection(transport: str, tmp_path: Path) -> None:
    phone = Baresip(tmp_path, transport)
    await phone.start()
    certificate, key = make_certificate(tmp_path, "server")
    pump = Pump()
    pump.start()
    server = Server()
    legs = SipLegFactory(RtpPorts("127.0.0.1", 24000, 24998, rest_seconds=0.0), pump, server.legs.put_nowait)
    await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "local"), TlsSettings(certificate, key))
    _, port = await legs.listen(transport, "127.0.0.1", 0)
    try:
        phone.command("dial", f"sip:agent@127.0.0.1:{port}")
        leg, _ = await server.take()
        target = TransferTarget("desk", f"sip:desk@127.0.0.1:{port};transport={transport}")
        transferring = asyncio.create_task(leg.transfer(target))
        desk, _ = await server.take()
        async with asyncio.timeout(PATIENCE):
            outcome = await transferring
            assert outcome.status is TransferStatus.SUCCEEDED
            assert desk.info.callee == "desk"
            server.heard.clear()
            await server.heard.wait()
            await desk.hang_up(EndReason.AGENT_HANGUP)
    finally:
        await phone.stop()
        await legs.close()
        pump.stop()


async def test_we_call_baresip(baresip: Baresip, served: tuple[Server, SipLegFactory, str]) -> None:
    server, legs, _ = served
    leg = await legs.dial(f"sip:phone@127.0.0.1:{baresip.port}")
    async with asyncio.timeout(PATIENCE):
        media = await leg.answer()
    media.start(server._hear, lambda: None)
    async with asyncio.timeout(PATIENCE):
        await server.heard.wait()
    await leg.hang_up(EndReason.AGENT_HANGUP)


@pytest.mark.parametrize("transport", ["tcp", "tls"])
async def test_calls_both_ways_over_a_connection(transport: str, tmp_path: Path) -> None:
    phone = Baresip(tmp_path, transport)
    await phone.start()
    certificate, key = make_certificate(tmp_path, "server")
    pump = Pump()
    pump.start()
    server = Server()
    legs = SipLegFactory(RtpPorts("127.0.0.1", 24000, 24998, rest_seconds=0.0), pump, server.legs.put_nowait)
    tls = TlsSettings(certificate, key, trusted=tmp_path / "phone.pem")
    await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda host: "local"), tls)
    _, port = await legs.listen(transport, "127.0.0.1", 0)
    # baresip adds its account's transport.
    target = f"sip:agent@127.0.0.1:{port}"
    try:
        phone.command("dial", target)
        leg, _ = await server.take()
        async with asyncio.timeout(PATIENCE):
            await server.heard.wait()
        phone.command("sndcode", "7")
        assert await server.next_event() == DigitPressed("7")
        phone.command("hold")
        await until(lambda: leg._session._held, PATIENCE)
        server.heard.clear()
        phone.command("resume")
        async with asyncio.timeout(PATIENCE):
            await server.heard.wait()
        # Our BYE goes to where the phone called from.
        await leg.hang_up(EndReason.AGENT_HANGUP)
        server.heard.clear()
        phone.command("dial", target)
        await server.take()
        # A phone that has our answer sends audio; one that has not would cancel instead of hanging up.
        async with asyncio.timeout(PATIENCE):
            await server.heard.wait()
        phone.command("hangup")
        assert await server.next_event() == CallerHungUp(EndReason.CALLER_HANGUP)
        ours = await legs.dial(phone.uri)
        async with asyncio.timeout(PATIENCE):
            await ours.answer()
        await ours.hang_up(EndReason.AGENT_HANGUP)
    finally:
        await phone.stop()
        await legs.close()
        pump.stop()
