"""Media through rtpengine behind Kamailio: plain from the phone, encrypted towards us, and back."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.call_info import EndReason
from callagent.legs.leg import CallerHungUp, DigitPressed
from callagent.legs.sip.leg import TrunkMedia
from callagent.sip import Encryption
from tests.end_to_end.baresip import BARESIP, START_SECONDS, baresip, free_port, is_open
from tests.end_to_end.scripted import until
from tests.end_to_end.test_media_peers import PATIENCE, Server, heard_clearly, media, served, write_tone

__all__ = ["media", "served"]

RELAY_PORTS = (46000, 46400)
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(BARESIP is None, reason="baresip is not installed"),
    pytest.mark.skipif(shutil.which("kamailio") is None, reason="kamailio is not installed"),
    pytest.mark.skipif(shutil.which("rtpengine") is None, reason="rtpengine is not installed"),
]


@asynccontextmanager
async def running(command: Sequence[str], log: Path) -> AsyncIterator[None]:
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def carrier(folder: Path, agent: str) -> AsyncIterator[int]:
    """Its SIP port; it hands calls to the agent's address."""
    port, control = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)
    text = (Path(__file__).parent / "kamailio_media.cfg").read_text()
    for name, value in (("UDP_PORT", port), ("CONTROL_PORT", control), ("AGENT_PORT", agent.rpartition(":")[2])):
        text = text.replace(name, str(value))
    (folder / "kamailio.cfg").write_text(text)
    relay = [
        "rtpengine", "--table=-1", "--interface=127.0.0.1", f"--listen-ng=127.0.0.1:{control}", "--foreground",
        f"--port-min={RELAY_PORTS[0]}", f"--port-max={RELAY_PORTS[1]}", "--num-threads=1", "--log-stderr",
        "--config-file=none", f"--pidfile={folder / 'rtpengine.pid'}",
    ]  # fmt: skip
    proxy = [
        "kamailio", "-f", str(folder / "kamailio.cfg"), "-DD", "-E", "-m", "32", "-M", "4",
        "-Y", str(folder), "-P", str(folder / "kamailio.pid"),
    ]  # fmt: skip
    async with running(relay, folder / "rtpengine.log"):
        await until(lambda: is_open(socket.SOCK_DGRAM, control), START_SECONDS, (folder / "rtpengine.log").read_text)
        async with running(proxy, folder / "kamailio.log"):
            await until(lambda: is_open(socket.SOCK_DGRAM, port), START_SECONDS, (folder / "kamailio.log").read_text)
            yield port


@pytest.mark.parametrize("media", [TrunkMedia(encryption=Encryption.REQUIRED)], indirect=True)
async def test_a_call_through_the_relay_is_heard_pressed_held_and_ended(
    served: tuple[Server, str], tmp_path: Path
) -> None:
    server, address = served
    microphone = write_tone(tmp_path / "tone.wav", 8000)
    async with asyncio.timeout(2 * PATIENCE), carrier(tmp_path, address) as port:
        with baresip(tmp_path / "phone", microphone) as phone:
            phone.command("dial", f"sip:agent@127.0.0.1:{port}")
            leg = await server.take()
            await server.hear(50)
            phone.command("sndcode", "7")
            assert await server.events.get() == DigitPressed("7")
            await leg.send_digits("15*")
            await until(lambda: phone.digits() == "15*", PATIENCE, phone.digits)
            phone.command("hold")
            await until(lambda: leg._session._held, PATIENCE)
            phone.command("resume")
            await until(lambda: not leg._session._held, PATIENCE)
            await server.hear(50)
            # The relay's address, not the phone's: what comes past it is a stranger's.
            destination = leg._session._destination
            statistics = leg._session.statistics()
            phone.command("hangup")
            assert await server.events.get() == CallerHungUp(EndReason.CALLER_HANGUP)
    assert destination is not None
    assert RELAY_PORTS[0] <= destination[1] <= RELAY_PORTS[1]
    assert statistics.encryption
    assert heard_clearly(phone.heard()[0]) > 0.4
