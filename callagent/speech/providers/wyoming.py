"""Wyoming, the protocol of self-hosted speech servers (faster-whisper, Piper): JSON lines and audio over TCP.

Each utterance has a connection of its own, because those servers close it after one. A message is a line of JSON,
`data_length` bytes of more JSON, and `payload_length` bytes of audio.
"""

from __future__ import annotations

import asyncio
import audioop
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from callagent.audio import SAMPLE_RATE, Decimator, prepare_decimators
from callagent.errors import ProviderError, ProviderTimeout
from callagent.json_values import JsonObject, MutableJsonObject
from callagent.speech import protocol
from callagent.speech.providers.connections import max_audio_bytes, parse_object
from callagent.speech.providers.recognizer_streams import WIDEBAND_RATE, UtteranceStream, UtteranceText, to_wideband

LINE_LIMIT = 1 << 16
"""Bytes."""
PAYLOAD_LIMIT = 1 << 22
"""Bytes."""
CHUNK_BYTES = 2 * WIDEBAND_RATE // 5
"""0.2 s of audio in a message."""
CLOSE_SECONDS = 1.0
"""Time for a connection to close."""
_DECIMATOR_RATE = 24000
"""Samples per second of the audio that `Decimator` brings down to 8 kHz."""


@dataclass(frozen=True, slots=True)
class Event:
    """One message, in either direction."""

    type: str
    data: JsonObject = field(default_factory=dict)
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        data = json.dumps(self.data).encode()
        header = {"type": self.type, "version": "1.5.4", "data_length": len(data)}
        if self.payload:
            header["payload_length"] = len(self.payload)
        return json.dumps(header).encode() + b"\n" + data + self.payload


class Connection:
    """One exchange with a server, which has to be over by `deadline`."""

    def __init__(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deadline: float) -> None:
        self._who = who
        self._reader = reader
        self._writer = writer
        self._deadline = deadline

    @classmethod
    @asynccontextmanager
    async def open(cls, who: str, settings: protocol.SpeechProvider) -> AsyncIterator[Connection]:
        """Connect to the server of the settings, and disconnect at the end. Raises `ProviderError`."""
        loop = asyncio.get_running_loop()
        parts = urlsplit(settings.base_url)
        try:
            async with asyncio.timeout(settings.connect_timeout):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=LINE_LIMIT)
        except TimeoutError:
            raise ProviderTimeout(f"{who} did not open a connection in time") from None
        except (OSError, ValueError) as error:
            raise ProviderError(f"{who} cannot be reached: {error}") from error
        try:
            yield cls(who, reader, writer, loop.time() + settings.total_timeout)
        finally:
            writer.close()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                pass

    async def send(self, *events: Event) -> None:
        """Send messages. Raises `ProviderError`."""
        try:
            async with asyncio.timeout_at(self._deadline):
                for event in events:
                    self._writer.write(bytes(event))
                    await self._writer.drain()
        except TimeoutError:
            raise ProviderTimeout(f"{self._who} did not take the audio in time") from None
        except OSError as error:
            raise ProviderError(f"{self._who} cut the connection: {error}") from error

    async def receive(self) -> Event:
        """Return the next message. Raises `ProviderError`, also for an `error` event and for an invalid message."""
        try:
            async with asyncio.timeout_at(self._deadline):
                event = await self._read()
        except TimeoutError:
            raise ProviderTimeout(f"{self._who} did not finish in time") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise ProviderError(f"{self._who} cut the connection or sent an invalid message: {error}") from error
        if event.type == "error":
            raise ProviderError(f"{self._who} reported: {str(event.data.get('text'))[:300]}")
        return event

    async def _read(self) -> Event:
        line = await self._reader.readuntil(b"\n")
        header = parse_object(self._who, line, LINE_LIMIT)
        # Servers put data into the header, after it, or into both places.
        data = header.get("data") or {}
        if size := self._length(header, "data_length"):
            more = parse_object(self._who, await self._reader.readexactly(size), PAYLOAD_LIMIT)
            data = {**data, **more} if isinstance(data, dict) else more
        size = self._length(header, "payload_length")
        payload = await self._reader.readexactly(size) if size else b""
        kind = header.get("type")
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise ProviderError(f"{self._who} sent a message without a type")
        return Event(kind, data, payload)

    def _length(self, header: JsonObject, name: str) -> int:
        size = header.get(name) or 0
        if not isinstance(size, int) or not 0 <= size <= PAYLOAD_LIMIT:
            raise ProviderError(f"{self._who} announced a message of {str(size)[:20]} bytes")
        return size


class WyomingRecognizer:
    """A recogniser at a Wyoming server, an utterance at a time."""

    WHO = "the Wyoming recogniser"

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings

    async def open(self, on_transcript: Callable[[protocol.Transcript], None]) -> UtteranceStream:
        return UtteranceStream(self.transcribe, on_transcript)

    async def close(self) -> None:
        """There is nothing between two utterances."""

    async def transcribe(self, pcm: bytes, settings: protocol.RecognizerSettings) -> UtteranceText:
        """Return the text of an utterance in 16-bit PCM at 8 kHz. Raises `ProviderError`."""
        request: MutableJsonObject = {"language": protocol.primary_language(settings.language)}
        if self._settings.model:
            request["name"] = self._settings.model
        audio, audio_format = to_wideband(pcm), {"rate": WIDEBAND_RATE, "width": 2, "channels": 1}
        chunks = [audio[at : at + CHUNK_BYTES] for at in range(0, len(audio), CHUNK_BYTES)]
        async with Connection.open(self.WHO, self._settings) as connection:
            await connection.send(
                Event("transcribe", request),
                Event("audio-start", audio_format),
                *(Event("audio-chunk", audio_format, chunk) for chunk in chunks),
                Event("audio-stop"),
            )
            # Other events, such as pieces of the transcript, come before the transcript.
            while (event := await connection.receive()).type != "transcript":
                pass
        if not isinstance(text := event.data.get("text"), str):
            raise ProviderError(f"{self.WHO} sent a transcript without text")
        return UtteranceText(text)


class WyomingVoice:
    """A voice at a Wyoming server."""

    WHO = "the Wyoming voice"

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        prepare_decimators()
        self._settings = settings

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        voice = {"language": settings.language}
        if name := settings.name or self._settings.voice:
            voice["name"] = name
        converter: _TelephoneConverter | None = None
        size, limit = 0, max_audio_bytes(text, 2 * SAMPLE_RATE)
        async with Connection.open(self.WHO, self._settings) as connection:
            await connection.send(Event("synthesize", {"text": text, "voice": voice}))
            while (event := await connection.receive()).type != "audio-stop":
                if event.type != "audio-chunk":
                    continue
                # Every chunk names its format, and a voice never changes it within an utterance.
                converter = converter or _TelephoneConverter(self.WHO, event.data)
                pcm = converter.feed(event.payload)
                size += len(pcm)
                if size > limit:
                    raise ProviderError(f"{self.WHO} sent more than {limit} bytes of audio")
                if pcm:
                    yield protocol.SpeechChunk(pcm)
        if not size:
            raise ProviderError(f"{self.WHO} sent no audio")

    async def close(self) -> None:
        """There is nothing between two utterances."""


class _TelephoneConverter:
    """A converter of a server's audio, in pieces of any length, to 16 bits, mono, 8 kHz."""

    def __init__(self, who: str, audio_format: JsonObject) -> None:
        rate, channels, width = (audio_format.get(key) for key in ("rate", "channels", "width"))
        if not isinstance(rate, int) or not 8000 <= rate <= 48000 or channels not in (1, 2) or width != 2:
            raise ProviderError(f"{who} sent audio that is not 16-bit PCM of 8 to 48 kHz with 1 or 2 channels")
        self._rate, self._channels = rate, 2 if channels == 2 else 1
        self._decimator = Decimator()
        self._state: tuple[int, tuple[tuple[int, int], ...]] | None = None
        """The state of `audioop.ratecv` between two pieces."""
        self._odd = b""
        """The incomplete sample at the end of the last piece."""

    def feed(self, pcm: bytes) -> bytes:
        pcm = self._odd + pcm
        # A message may end in the middle of a sample, which is kept for the next one.
        whole = len(pcm) - len(pcm) % (2 * self._channels)
        pcm, self._odd = pcm[:whole], pcm[whole:]
        if self._channels == 2:
            pcm = audioop.tomono(pcm, 2, 0.5, 0.5)
        if self._rate == SAMPLE_RATE:
            return pcm
        if self._rate != _DECIMATOR_RATE:
            # `ratecv` only interpolates; the decimator, which works from 24 kHz, has the filter against aliasing.
            pcm, self._state = audioop.ratecv(pcm, 2, 1, self._rate, _DECIMATOR_RATE, self._state)
        return self._decimator.feed(pcm)


DECLARATIONS = (
    protocol.Declaration(
        "faster_whisper",
        "a faster-whisper of your own behind the Wyoming protocol; `base_url` is `tcp://HOST:PORT`",
        recognizer=WyomingRecognizer,
    ),
    protocol.Declaration(
        "piper",
        "a Piper of your own behind the Wyoming protocol; `base_url` is `tcp://HOST:PORT`",
        voice=WyomingVoice,
    ),
)
