"""Wyoming against servers that read and write it with the protocol's own package, and against ones that do not."""

from __future__ import annotations

import asyncio
import audioop
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.tts import Synthesize

from callagent.errors import ConfigError, ProviderError, ProviderTimeout
from callagent.speech import RecognizerSettings, SpeechOptions, VoiceSettings, open_recognizer
from callagent.speech import Transcript as Heard
from callagent.speech.providers import SpeechProvider, open_provider_recognizer, open_provider_voice
from tests.speech.providers.server import tone, unused_port

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
FRAMES = [tone(0.02)] * 50


@asynccontextmanager
async def server(serve: Serve, **more: Any) -> AsyncIterator[SpeechProvider]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield SpeechProvider(base_url=f"tcp://127.0.0.1:{port}", **{"connect_timeout": 60.0, **more})
    finally:
        listening.close()


async def hear(settings: SpeechProvider) -> tuple[list[Heard], ProviderError | None]:
    recognizer = open_provider_recognizer("faster_whisper", settings)
    heard: list[Heard] = []
    stream: Any = await recognizer.open(heard.append)
    stream.begin(RecognizerSettings("de-DE"))
    for frame in FRAMES:
        stream.feed(frame)
    stream.finish()
    async with asyncio.timeout(60):
        while not heard and stream.failed is None:
            await asyncio.sleep(0.005)
    stream.close()
    await recognizer.close()
    return heard, stream.failed


async def say(settings: SpeechProvider, text: str = "Hello there") -> bytes:
    voice = open_provider_voice("piper", settings)
    return b"".join([chunk.pcm async for chunk in voice.speak(text, VoiceSettings("en-US", "amy"))])


async def test_a_recogniser_gets_the_whole_utterance_at_16_khz() -> None:
    events: list[Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (event := await async_read_event(reader)) is not None:
            events.append(event)
            if AudioStop.is_type(event.type):
                await async_write_event(Transcript("Ein Tisch für zwei. ", language="de").event(), writer)
                return

    async with server(serve, model="small") as settings:
        heard, failed = await hear(settings)
    assert (heard, failed) == ([Heard("Ein Tisch für zwei.", True, 1)], None)
    asked = Transcribe.from_event(events[0])
    assert (asked.language, asked.name) == ("de", "small")
    assert AudioStart.from_event(events[1]) == AudioStart(16000, 2, 1)
    chunks = [AudioChunk.from_event(event) for event in events[2:-1]]
    assert {(chunk.rate, chunk.width, chunk.channels) for chunk in chunks} == {(16000, 2, 1)}
    assert sum(len(chunk.audio) for chunk in chunks) == pytest.approx(2 * 16000, abs=8)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100])
@pytest.mark.parametrize("channels", [1, 2])
async def test_a_voice_is_brought_to_8_khz(rate: int, channels: int) -> None:
    asked: list[Synthesize] = []
    pcm = tone(0.5, rate)
    pcm = audioop.tostereo(pcm, 2, 1, 1) if channels == 2 else pcm

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        event = await async_read_event(reader)
        assert event is not None
        asked.append(Synthesize.from_event(event))
        await async_write_event(AudioStart(rate, 2, channels).event(), writer)
        for at in range(0, len(pcm), 1022):
            await async_write_event(AudioChunk(rate, 2, channels, pcm[at : at + 1022]).event(), writer)
        await async_write_event(AudioStop().event(), writer)

    async with server(serve) as settings:
        spoken = await say(settings)
    assert (asked[0].text, asked[0].voice and asked[0].voice.name) == ("Hello there", "amy")
    assert len(spoken) / 16000 == pytest.approx(0.5, abs=0.01)
    assert audioop.rms(spoken, 2) == pytest.approx(audioop.rms(tone(0.5), 2), rel=0.05)
    crossings = audioop.cross(spoken, 2)
    assert crossings == pytest.approx(440, abs=6)


async def test_what_a_server_reports() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await async_write_event(Error("no such voice", "unknown").event(), writer)
        await reader.read()

    async with server(serve) as settings:
        _, failed = await hear(settings)
        assert "no such voice" in str(failed)
        with pytest.raises(ProviderError, match="no such voice"):
            await say(settings)


GARBAGE = [
    b"no json\n", b"[]\n", b'{"data_length": 5}\nabcde', b'{"type": 5}\n', b'{"type": "x", "payload_length": -1}\n',
    b'{"type": "x", "payload_length": 99999999999}\n', b"x" * 200_000, b"",
    b'{"type": "transcript", "data": {"text": 5}}\n',
    b'{"type": "audio-chunk", "data": {"rate": 1, "width": 2, "channels": 1}}\n', b'{"type": "audio-stop"}\n',
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_what_is_no_answer(garbage: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        await writer.drain()

    async with server(serve) as settings:
        heard, failed = await hear(settings)
        assert (heard, type(failed)) == ([], ProviderError)
        with pytest.raises(ProviderError):
            await say(settings)


async def test_a_server_that_drips_is_not_waited_for_for_ever() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b'{"type": "info"}\n')
            await writer.drain()
            await asyncio.sleep(0.02)

    async with server(serve, total_timeout=0.3) as settings:
        heard, failed = await hear(settings)
        assert (heard, type(failed)) == ([], ProviderTimeout)
        with pytest.raises(ProviderTimeout):
            await say(settings)


async def test_cut_in_the_middle() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await async_write_event(AudioChunk(8000, 2, 1, tone(0.1)).event(), writer)
        header = {"type": "audio-chunk", "payload_length": 1000}
        writer.write(json.dumps(header).encode() + b"\n" + bytes(10))
        await writer.drain()

    async with server(serve) as settings:
        speaking = open_provider_voice("piper", settings).speak("Hello there", VoiceSettings())
        assert (await anext(speaking)).pcm == tone(0.1)
        with pytest.raises(ProviderError, match="cut the connection"):
            await anext(speaking)


async def test_nobody_listens() -> None:
    settings = SpeechProvider(base_url=f"tcp://127.0.0.1:{await unused_port()}")
    _, failed = await hear(settings)
    assert "cannot be reached" in str(failed)
    with pytest.raises(ProviderError, match="cannot be reached"):
        await say(settings)


async def test_an_address_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"speech\.providers\.faster_whisper\.base_url"):
        await open_recognizer("faster_whisper", SpeechOptions())
