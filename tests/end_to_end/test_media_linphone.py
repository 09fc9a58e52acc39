"""Media against linphonec: encryption that it insists on, codecs that it offers by itself, and digits."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import DigitPressed
from callagent.legs.sip_media import TrunkMedia
from tests.end_to_end.baresip import free_port
from tests.end_to_end.test_media_peers import PATIENCE, Server, served, write_tone

__all__ = ["served"]

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("linphonec") is None, reason="linphonec is not installed"),
]

_CONFIG = """\
[sip]
sip_port={port}
sip_tcp_port=0
bind_address=127.0.0.1
ipv6_migration_done=1
use_ipv6=0
media_encryption={encryption}
media_encryption_mandatory={mandatory}

[net]
firewall_policy=0

[rtp]
audio_rtp_port={media}
"""
START_SECONDS = 2.0
"""Until it has found the network; it says nothing when it has."""
LOOPBACK = ip_network("127.0.0.0/8")
"""Its SDP names the machine's address in the network, its packets come from loopback."""
CODECS = {"PCMU": "PCMU/8000", "OPUS": "OPUS/48000"}


@pytest.fixture
def media(request: pytest.FixtureRequest) -> TrunkMedia:
    assert isinstance(request.param, TrunkMedia)
    return request.param


@asynccontextmanager
async def linphone(folder: Path, *, encrypted: bool) -> AsyncIterator[asyncio.StreamWriter]:
    """Its command line; it plays a tone for its microphone."""
    config = folder / "linphonerc"
    config.write_text(
        _CONFIG.format(
            port=free_port(socket.SOCK_DGRAM),
            media=free_port(socket.SOCK_DGRAM),
            encryption="srtp" if encrypted else "none",
            mandatory=int(encrypted),
        )
    )
    (folder / ".local" / "share" / "linphone").mkdir(parents=True)
    tone = write_tone(folder / "tone.wav", 8000)
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "linphonec", "-c", str(config), stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    assert process.stdin is not None
    for command in ("soundcard use files", f"play {tone}"):
        await asyncio.sleep(START_SECONDS / 2)
        process.stdin.write(f"{command}\n".encode())
    try:
        yield process.stdin
    finally:
        process.stdin.write(b"quit\n")
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "srtp"])
@pytest.mark.parametrize(
    "media", [TrunkMedia((name,), networks=(LOOPBACK,)) for name in CODECS], ids=[*CODECS], indirect=True
)
async def test_linphone_is_heard_and_its_digits_too(
    media: TrunkMedia, encrypted: bool, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, address = served
    async with asyncio.timeout(PATIENCE), linphone(tmp_path, encrypted=encrypted) as command:
        command.write(f"call {address}\n".encode())
        leg = await server.take()
        await server.hear(50)
        command.write(b"5\n")
        assert await server.events.get() == DigitPressed("5")
        statistics = leg._session.statistics()
        await leg.hang_up(EndReason.AGENT_HANGUP)
    assert statistics.codec == CODECS[media.codecs[0]]
    assert bool(statistics.encryption) is encrypted
