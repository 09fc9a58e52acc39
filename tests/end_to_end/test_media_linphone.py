"""Media against linphonec: encryption that it insists on, codecs that it offers by itself, and digits."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import DigitPressed, TransferStatus, TransferTarget
from callagent.legs.sip.leg import TrunkMedia
from tests.end_to_end.baresip import START_SECONDS, free_port, is_open
from tests.end_to_end.scripted import until
from tests.end_to_end.test_media_peers import PATIENCE, Server, served, write_tone

__all__ = ["served"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("linphonec") is None, reason="linphonec is not installed"),
]

_CONFIG = """\
[sip]
sip_port={udp}
sip_tcp_port={tcp}
sip_tls_port={tls}
verify_server_certs=0
verify_server_cn=0
bind_address=127.0.0.1
ipv6_migration_done=1
use_ipv6=0
media_encryption={encryption}
media_encryption_mandatory={mandatory}

[net]
firewall_policy=0

[rtp]
audio_rtp_port={media}

[audio_codec_0]
mime=G722
rate=8000
channels=1
enabled=1

[audio_codec_1]
mime=opus
rate=48000
channels=2
enabled=1

[audio_codec_2]
mime=PCMU
rate=8000
channels=1
enabled=1
"""
NETWORK_SECONDS = 2.0
"""Until it has found the network, once it listens; it says nothing when it has."""
LOOPBACK = ip_network("127.0.0.0/8")
"""Its SDP names the machine's address in the network, its packets come from loopback."""
CODECS = {"PCMU": "PCMU/8000", "G722": "G722/8000", "OPUS": "OPUS/48000"}


@pytest.fixture
def media(request: pytest.FixtureRequest) -> TrunkMedia:
    assert isinstance(request.param, TrunkMedia)
    return request.param


@asynccontextmanager
async def linphone(
    folder: Path, *, encrypted: bool, transport: str = "udp"
) -> AsyncIterator[tuple[asyncio.StreamWriter, Path]]:
    """Its command line, and what it says; it plays a tone for its microphone."""
    config = folder / "linphonerc"
    kind = socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
    port = free_port(kind)
    config.write_text(
        _CONFIG.format(
            udp=port if transport == "udp" else 0,
            tcp=port if transport == "tcp" else 0,
            tls=port if transport == "tls" else 0,
            media=free_port(socket.SOCK_DGRAM),
            encryption="srtp" if encrypted else "none",
            mandatory=int(encrypted),
        )
    )
    (folder / ".local" / "share" / "linphone").mkdir(parents=True)
    tone = write_tone(folder / "tone.wav", 8000)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "stdbuf", "-oL", "linphonec", "-c", str(config), stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    assert process.stdin is not None
    await until(lambda: is_open(kind, port) or process.returncode is not None, START_SECONDS)
    for command in ("soundcard use files", f"play {tone}"):
        await asyncio.sleep(NETWORK_SECONDS / 2)
        process.stdin.write(f"{command}\n".encode())
    try:
        yield process.stdin, folder / "log"
    finally:
        process.stdin.write(b"quit\n")
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def only(name: str) -> TrunkMedia:
    return TrunkMedia((name,), networks=(LOOPBACK,))


@pytest.mark.parametrize(
    ("media", "encrypted"),
    [
        (only("PCMU"), False), (only("G722"), True), (only("OPUS"), False),
        *(pytest.param(only(name), encrypted, marks=pytest.mark.acceptance("media"))
          for name, encrypted in (("PCMU", True), ("G722", False), ("OPUS", True))),
    ],
    indirect=["media"],
)  # fmt: skip
async def test_linphone_is_heard_and_its_digits_too(
    media: TrunkMedia, encrypted: bool, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, address = served
    async with asyncio.timeout(PATIENCE), linphone(tmp_path, encrypted=encrypted) as (command, _):
        command.write(f"call {address}\n".encode())
        leg = await server.take()
        await server.hear(50)
        command.write(b"5\n")
        assert await server.events.get() == DigitPressed("5")
        statistics = leg._session.statistics()
        await leg.hang_up(EndReason.AGENT_HANGUP)
    assert statistics.codec == CODECS[media.codecs[0]]
    assert bool(statistics.encryption) is encrypted


@pytest.mark.parametrize(
    ("transport", "media"),
    [
        ("udp", only("G722")), ("tcp", only("OPUS")), ("tls", only("G722")),
        *(pytest.param(transport, only(name), marks=pytest.mark.acceptance("media"))
          for transport, name in (("udp", "OPUS"), ("tcp", "G722"), ("tls", "OPUS"))),
    ],
    indirect=["media"],
)  # fmt: skip
async def test_a_whole_encrypted_call_over_every_transport(
    media: TrunkMedia, transport: str, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, _ = served
    async with asyncio.timeout(PATIENCE), linphone(tmp_path, encrypted=True, transport=transport) as (command, log):
        command.write(f"call {server.addresses[transport]}\n".encode())
        leg = await server.take()
        await server.hear(25)
        for digit in "5#":
            command.write(f"{digit}\n".encode())
            assert await server.events.get() == DigitPressed(digit)
        first = leg._session._parameters.keys
        command.write(b"pause\n")
        # It can take the call back once it knows that we have let it go.
        await until(lambda: "is now paused" in log.read_text(), PATIENCE, log.read_text)
        assert leg._session._held
        command.write(b"resume\n")
        await until(lambda: not leg._session._held, PATIENCE)
        await server.hear(25)
        # It repeats its key: so do we, and the numbering of the packets goes on.
        assert leg._session._parameters.keys == first
        await leg.send_digits("42*")
        await until(lambda: told(log) == "42*", PATIENCE, log.read_text)
        statistics = leg._session.statistics()
        await leg.hang_up(EndReason.AGENT_HANGUP)
    assert (statistics.codec, bool(statistics.encryption)) == (CODECS[media.codecs[0]], True)
    assert server.events.empty()


@pytest.mark.parametrize("transport", ["udp", pytest.param("tcp", marks=pytest.mark.acceptance("media")), "tls"])
@pytest.mark.parametrize("media", [only("PCMU")], indirect=True)
async def test_linphone_is_transferred_and_follows(
    media: TrunkMedia, transport: str, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, _ = served
    async with asyncio.timeout(2 * PATIENCE), linphone(tmp_path, encrypted=True, transport=transport) as (command, log):
        command.write(f"call {server.addresses[transport]}\n".encode())
        leg = await server.take()
        await server.hear(25)
        target = TransferTarget("desk", server.addresses[transport].replace("agent@", "desk@"))
        transferring = asyncio.create_task(leg.transfer(target))
        desk = await server.take()
        outcome = await transferring
        assert outcome.status is TransferStatus.SUCCEEDED, log.read_text()
        assert desk.info.callee == "desk"
        await server.hear(25)
        await desk.hang_up(EndReason.AGENT_HANGUP)


def told(log: Path) -> str:
    """The keys that linphonec says it heard."""
    return "".join(re.findall(r"Receiving tone (\S)", log.read_text()))
