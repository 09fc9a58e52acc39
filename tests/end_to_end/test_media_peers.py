"""Media against a softphone: every codec, with and without encryption, heard on both sides."""

from __future__ import annotations

import asyncio
import audioop
import math
import struct
import wave
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from callagent.audio import InBandDigits
from callagent.audio.dtmf import _energy
from callagent.call_info import EndReason
from callagent.legs.leg import DigitPressed, LegEvent
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.legs.sip.leg import TrunkMedia
from callagent.rtp import Pump, RtpPorts
from callagent.sip import Encryption, TlsSettings, UserAgentSettings
from tests.end_to_end.baresip import BARESIP, baresip
from tests.end_to_end.scripted import until
from tests.sip.test_connections import make_certificate

PATIENCE = 60.0
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(BARESIP is None, reason="baresip is not installed")]

THEIR_HERTZ, OUR_HERTZ = 697, 1209
CODECS = {
    "PCMU": ("PCMU/8000/1", 8000, "PCMU/8000"),
    "PCMA": ("PCMA/8000/1", 8000, "PCMA/8000"),
    "G722": ("G722/16000/1", 16000, "G722/8000"),
    "OPUS": ("opus/48000/2", 48000, "OPUS/48000"),
}


def write_tone(path: Path, rate: int) -> Path:
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        samples = (int(8000 * math.sin(2 * math.pi * THEIR_HERTZ * n / rate)) for n in range(rate))
        # Longer than any test: the phone hangs up at the end of its file.
        out.writeframes(b"".join(struct.pack("<h", sample) for sample in samples) * int(2 * PATIENCE))
    return path


def tone(hertz: int = OUR_HERTZ) -> Iterator[bytes]:
    for index in count():
        start = index * 160
        yield struct.pack(
            "<160h", *(int(8000 * math.sin(2 * math.pi * hertz * (start + n) / 8000)) for n in range(160))
        )


def is_tone(frame: bytes, hertz: int) -> bool:
    """Whether the frame is loud, and mostly at this frequency."""
    return audioop.rms(frame, 2) > 2000 and _energy(frame, hertz) > 0.8 * audioop.rms(frame, 2) ** 2


class Server:
    """Answers every call, listens for the phone's tone and plays its own."""

    def __init__(self) -> None:
        self.legs: asyncio.Queue[SipLeg] = asyncio.Queue()
        self.events: asyncio.Queue[LegEvent] = asyncio.Queue()
        self.clear_frames = 0
        self.addresses: dict[str, str] = {}
        """By transport."""

    async def take(self) -> SipLeg:
        leg = await self.legs.get()
        leg.listen(self.events.put_nowait)
        frames = tone()
        media = await leg.answer()
        media.start(self._hear, lambda: next(frames))
        return leg

    async def hear(self, frames: int = 100) -> None:
        self.clear_frames = 0
        while self.clear_frames < frames:
            await asyncio.sleep(0.02)

    def _hear(self, frame: bytes, now: float) -> None:
        self.clear_frames += is_tone(frame, THEIR_HERTZ)


@pytest.fixture
def media(request: pytest.FixtureRequest) -> TrunkMedia:
    return getattr(request, "param", TrunkMedia())


@pytest.fixture
async def served(media: TrunkMedia, tmp_path: Path) -> AsyncIterator[tuple[Server, str]]:
    pump = Pump()
    pump.start()
    server = Server()
    ports = RtpPorts("127.0.0.1", 24000, 26998, rest_seconds=0.0)
    legs = SipLegFactory(ports, pump, server.legs.put_nowait, media=lambda trunk: media)
    certificate, key = make_certificate(tmp_path, "server")
    settings = UserAgentSettings(admit=lambda host: "local")
    _, port = await legs.open("127.0.0.1", 0, settings, TlsSettings(certificate, key))
    server.addresses = {"udp": f"sip:agent@127.0.0.1:{port}"}
    for transport in ("tcp", "tls"):
        _, port = await legs.listen(transport, "127.0.0.1", 0)
        server.addresses[transport] = f"sip:agent@127.0.0.1:{port};transport={transport}"
    yield server, server.addresses["udp"]
    await legs.close()
    pump.stop()


def heard_clearly(recording: Path) -> float:
    """The share of the phone's recorded frames that are our tone."""
    with wave.open(str(recording)) as file:
        rate, pcm = file.getframerate(), file.readframes(file.getnframes())
        if file.getnchannels() == 2:
            pcm = audioop.tomono(pcm, 2, 0.5, 0.5)
    if rate != 8000:
        pcm, _ = audioop.ratecv(pcm, 2, 1, rate, 8000, None)
    frames = [pcm[at : at + 320] for at in range(0, len(pcm) - 320, 320)]
    return sum(is_tone(frame, OUR_HERTZ) for frame in frames) / len(frames)


@pytest.mark.parametrize(
    ("name", "encrypted"),
    [
        ("PCMU", False), ("PCMA", True), ("G722", True), ("OPUS", False),
        *(pytest.param(*pair, marks=pytest.mark.acceptance("media"))
          for pair in (("PCMU", True), ("PCMA", False), ("G722", False), ("OPUS", True))),
    ],
)  # fmt: skip
async def test_both_sides_hear_each_other(
    name: str, encrypted: bool, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, address = served
    codecs, rate, agreed = CODECS[name]
    more = ";mediaenc=srtp-mand" if encrypted else ""
    microphone = write_tone(tmp_path / "tone.wav", rate)
    with baresip(tmp_path / "phone", microphone, codecs=codecs, rate=rate, more=more) as phone:
        async with asyncio.timeout(PATIENCE):
            phone.command("dial", address)
            leg = await server.take()
            await server.hear()
            phone.command("sndcode", "7")
            assert await server.events.get() == DigitPressed("7")
            await server.hear()
            statistics = leg._session.statistics()
            await leg.hang_up(EndReason.AGENT_HANGUP)
    assert statistics.codec == agreed
    assert bool(statistics.encryption) is encrypted
    # The phone's first packet leaves before it has keys.
    assert statistics.packets_refused <= encrypted
    assert statistics.packets_lost == 0
    assert heard_clearly(phone.heard()[-1]) > 0.6


@pytest.mark.parametrize("media", [TrunkMedia(encryption=Encryption.REQUIRED)], indirect=True)
async def test_where_encryption_is_required_a_plain_call_is_refused(served: tuple[Server, str], tmp_path: Path) -> None:
    _, address = served
    with baresip(tmp_path / "phone", write_tone(tmp_path / "tone.wav", 8000)) as phone:
        phone.command("dial", address)
        closed = await asyncio.to_thread(phone.wait_for, "CALL_CLOSED")
    assert "488" in closed["param"]


async def test_encryption_goes_on_after_hold_and_resume(served: tuple[Server, str], tmp_path: Path) -> None:
    server, address = served
    microphone = write_tone(tmp_path / "tone.wav", 8000)
    with baresip(tmp_path / "phone", microphone, more=";mediaenc=srtp-mand", mux=True) as phone:
        async with asyncio.timeout(PATIENCE):
            phone.command("dial", address)
            leg = await server.take()
            await server.hear(50)
            phone.command("hold")
            await until(lambda: leg._session._held, PATIENCE)
            phone.command("resume")
            await until(lambda: not leg._session._held, PATIENCE)
            await server.hear(50)
            assert leg._session.statistics().encryption
            await leg.hang_up(EndReason.AGENT_HANGUP)


@pytest.mark.parametrize(
    ("transport", "name"),
    [
        ("udp", "OPUS"), ("tcp", "G722"), ("tls", "OPUS"),
        *(pytest.param(*pair, marks=pytest.mark.acceptance("media"))
          for pair in (("udp", "G722"), ("tcp", "OPUS"), ("tls", "G722"))),
    ],
)  # fmt: skip
async def test_a_whole_encrypted_call_over_every_transport(
    name: str, transport: str, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, _ = served
    codecs, rate, agreed = CODECS[name]
    microphone = write_tone(tmp_path / "tone.wav", rate)
    both = tmp_path / "both.pem"
    certificate, key = make_certificate(tmp_path, "phone")
    both.write_text(certificate.read_text() + key.read_text())
    with baresip(
        tmp_path / "phone", microphone, codecs=codecs, rate=rate, more=";mediaenc=srtp-mand",
        transport=transport, certificate=both,
    ) as phone:  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            # The account's transport is added.
            phone.command("dial", server.addresses[transport].partition(";")[0])
            leg = await server.take()
            await server.hear(25)
            for digit in "7#":
                phone.command("sndcode", digit)
                assert await server.events.get() == DigitPressed(digit)
            await leg.send_digits("15*D")
            await until(lambda: phone.digits() == "15*D", PATIENCE, phone.digits)
            phone.command("hold")
            await until(lambda: leg._session._held, PATIENCE)
            phone.command("resume")
            await until(lambda: not leg._session._held, PATIENCE)
            await server.hear(25)
            await leg.send_digits("8")
            await until(lambda: phone.digits() == "15*D8", PATIENCE, phone.digits)
            statistics = leg._session.statistics()
            await leg.hang_up(EndReason.AGENT_HANGUP)
    assert (statistics.codec, bool(statistics.encryption)) == (agreed, True)
    assert server.events.empty()
    assert heard_clearly(phone.heard()[0]) > 0.4


@pytest.mark.parametrize("name", ["PCMU", "OPUS"])
async def test_a_phone_that_asks_for_longer_packets_gets_them(
    name: str, served: tuple[Server, str], tmp_path: Path
) -> None:
    server, address = served
    codecs, rate, _ = CODECS[name]
    microphone = write_tone(tmp_path / "tone.wav", rate)
    with baresip(tmp_path / "phone", microphone, codecs=codecs, rate=rate, ptime=40) as phone:
        async with asyncio.timeout(PATIENCE):
            phone.command("dial", address)
            leg = await server.take()
            await server.hear(50)
            await leg.send_digits("3")
            await until(lambda: phone.digits() == "3", PATIENCE, phone.digits)
            assert leg._session._parameters.packet_frames == 2
            await server.hear(50)
            await leg.hang_up(EndReason.AGENT_HANGUP)
    assert heard_clearly(phone.heard()[-1]) > 0.6


@pytest.mark.parametrize("media", [TrunkMedia(("PCMU",), in_band_digits=True)], indirect=True)
async def test_a_phone_without_telephone_events_hears_tones(served: tuple[Server, str], tmp_path: Path) -> None:
    server, address = served
    phone = tmp_path / "phone"
    with baresip(phone, write_tone(tmp_path / "tone.wav", 8000)) as caller:
        async with asyncio.timeout(PATIENCE):
            caller.command("dial", address)
            leg = await server.take()
            await server.hear(25)
            # It would take events; what its own SDP says is another thing.
            leg._session._parameters = replace(leg._session._parameters, telephone_event=None)
            await leg.send_digits("15")
            # By the phone's clock it has played them then.
            await server.hear(25)
            await leg.hang_up(EndReason.AGENT_HANGUP)
    detector = InBandDigits()
    with wave.open(str(caller.heard()[-1])) as file:
        pcm = file.readframes(file.getnframes())
    heard = [detector.receive(pcm[at : at + 320]) for at in range(0, len(pcm) - 319, 320)]
    assert "".join(filter(None, heard)) == "15"
