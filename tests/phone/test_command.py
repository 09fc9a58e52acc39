"""`callagent call` as a command: what it refuses before it dials, and a call against our own legs."""

from __future__ import annotations

import argparse
import asyncio
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callagent.audio import FRAME_BYTES
from callagent.call_info import EndReason
from callagent.commands import _parser
from callagent.config import Config
from callagent.errors import MissingExtra, UserError
from callagent.legs.leg import CallerHungUp
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.phone import command
from callagent.phone.command import run_phone
from callagent.phone.lines import dial_sip
from callagent.rtp import Pump, RtpPorts
from callagent.sip import Endpoint, EndpointCall, UserAgentSettings
from tests.end_to_end.scripted import until
from tests.rtp.test_session import free_range

LOUD = b"\x10\x20" * (FRAME_BYTES // 2)


def options(*arguments: str) -> argparse.Namespace:
    return _parser().parse_args(["call", *arguments])


def refused(*arguments: str) -> str:
    with pytest.raises(UserError) as error:
        run_phone(Config(), options(*arguments))
    return str(error.value)


@pytest.fixture(autouse=True)
def _no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the extra `local`: nothing is loaded."""

    async def missing(*_: object) -> None:
        raise MissingExtra("the recogniser 'local'", "local")

    monkeypatch.setattr("callagent.speech.open_recognizer", missing)
    monkeypatch.setattr("callagent.speech.open_voice", missing)


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(LOUD * 20)
    return tmp_path / "tone.wav"


def test_mistakes_are_told_before_anything_is_dialled(tmp_path: Path, tone: Path) -> None:
    target = "sip:agent@127.0.0.1:9"
    assert "use sip:USER@HOST:PORT or the URL of a server's voice webhook" in refused("tel:123")
    assert "'sip:' is not a SIP URI" in refused("sip:")
    assert "nowhere.wav: cannot be played: No such file" in refused(target, "--play", "nowhere.wav")
    assert "nowhere.yaml: cannot be read" in refused(target, "--script", "nowhere.yaml")
    assert "--dtmf: 'xyz' are not keys" in refused(target, "--dtmf", "xyz")
    assert "--dtmf does not go with --script" in refused(target, "--script", "a.yaml", "--dtmf", "1")
    message = refused(target, "--play", str(tone), "--record", "/proc/nowhere/call.wav")
    assert "--record /proc/nowhere/call.wav: cannot be written" in message
    assert "pip install 'callagent[local]'" in refused(target, "--say", "hello")
    assert "http://127.0.0.1:9/twilio/voice could not be called" in refused("http://127.0.0.1:9/twilio/voice")


def test_a_target_where_nobody_listens_is_told_at_once() -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        message = refused(f"sip:agent@{host}:9")
        assert "nobody listens on" in message
        assert "start the server there: callagent serve" in message
    assert "nowhere.invalid has no address" in refused("sip:agent@nowhere.invalid")


@asynccontextmanager
async def agent(seconds: float) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers, speaks for 0.4 s and once more, hangs up after `seconds` or when the caller has; the address and what it
    hears."""
    heard: list[bytes] = []
    pump = Pump()
    pump.start()
    async with asyncio.TaskGroup() as group:

        async def serve(leg: SipLeg) -> None:
            left = asyncio.Event()
            leg.listen(lambda event: left.set() if isinstance(event, CallerHungUp) else None)
            media = await leg.answer()
            frames = [LOUD] * 20 + [None] * 150 + [LOUD] * 20
            media.start(lambda pcm, now: heard.append(pcm), lambda: frames.pop(0) if frames else None)
            try:
                await asyncio.wait_for(left.wait(), seconds)
            except TimeoutError:
                await leg.hang_up(EndReason.AGENT_HANGUP)

        tasks: list[asyncio.Task[None]] = []
        ports = RtpPorts("127.0.0.1", *free_range(40))
        legs = SipLegFactory(ports, pump, lambda leg: tasks.append(group.create_task(serve(leg))))
        host, port = await legs.open("127.0.0.1", 0, UserAgentSettings(admit=lambda source: "test"))
        yield f"sip:agent@{host}:{port}", heard
        await asyncio.wait(tasks)
        await legs.close()
    pump.stop()


async def test_a_call_with_keys_a_file_and_a_recording(
    tone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "new" / "call.wav"
    async with agent(8.0) as (target, heard):
        arguments = options(target, "--play", str(tone), "--record", str(recording), "--json")
        status = await command._run_call(Config(), arguments, [command.Step("play", str(tone))], command._json_report)
    assert status == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["answered", "agent", "caller", "agent", "ended", "recording"]
    assert events[2]["text"] == "tone.wav"
    assert events[1]["text"] is None
    assert events[1]["seconds"] == pytest.approx(0.4, abs=0.1)
    assert sum(frame.strip(b"\0") != b"" for frame in heard) >= 20
    with wave.open(str(recording)) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, 8000)
        assert file.getnframes() > 8000


async def test_a_server_that_refuses_is_quoted() -> None:
    def refuse(call: EndpointCall) -> None:
        call.hang_up(status=486)

    server = await Endpoint.open("127.0.0.1", 0, UserAgentSettings(admit=lambda source: "test"), refuse)
    target = f"sip:agent@127.0.0.1:{server.local_address[1]}"
    with pytest.raises(UserError, match="did not answer: 486 Busy Here"):
        await command._run_call(Config(), options(target), [], command._json_report)
    await server.close()


def test_events_are_told_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    command._text_report({"at": 1.5, "event": "agent", "text": None, "seconds": 0.4, "response_delay": 0.81})
    command._text_report({"at": 2.0, "event": "caller", "text": "stop", "interrupting": True})
    assert capsys.readouterr().out.splitlines() == [
        "   1.50  agent        (0.4 s of speech)   [answered after 0.81 s]",
        "   2.00  caller       stop   [interrupting]",
    ]


async def test_a_bad_line_loses_a_share_of_what_is_sent(tone: Path) -> None:
    async with agent(60.0) as (target, heard):

        def words() -> int:
            return sum(frame.strip(b"\0") != b"" for frame in heard)

        async with dial_sip(target, "+15550100") as line:
            line.lose(1.0)
            line.media.start(lambda pcm, now: None, lambda: LOUD)
            await until(lambda: len(heard) >= 30, 60)
            assert words() == 0
            line.lose(0.0)
            await until(lambda: words() >= 10, 60, lambda: f"{words()} of {len(heard)}")
