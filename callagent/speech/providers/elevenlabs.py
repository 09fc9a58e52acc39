"""ElevenLabs: `POST /v1/text-to-speech/{voice}/stream/with-timestamps`, a socket at `/v1/speech-to-text/realtime`."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote, urlencode

from callagent.errors import ProviderError, ProviderRefused
from callagent.json_values import JsonObject, MutableJsonObject, list_at, object_at
from callagent.speech import protocol
from callagent.speech.providers import connections
from callagent.speech.providers.recognizer_streams import Message, RecognizedText, SocketRecognizer, TextKind

WHO = "ElevenLabs"
BASE_URL = "https://api.elevenlabs.io"
SPEAK_MODEL = "eleven_flash_v2_5"
# Voices are named by identifiers only; this is one of ElevenLabs' own.
VOICE = "21m00Tcm4TlvDq8ikWAM"
LISTEN_MODEL = "scribe_v2_realtime"
LINE_LIMIT = 1 << 20
"""Bytes."""
MESSAGE_LIMIT = 1 << 18
"""Bytes."""
MAX_KEYWORDS, KEYWORD_CHARACTERS = 50, 20
"""ElevenLabs refuses a request with more keywords, or with a longer one."""
# Error types that mean the same as an HTTP status: they are raised as `ProviderRefused` with that status.
_REFUSALS = {"auth_error": 401, "quota_exceeded": 429, "rate_limited": 429, "resource_exhausted": 429}


class ElevenLabsVoice:
    """A voice over HTTP. Its answer has the time of every character, from which the times of words are made."""

    max_text_bytes = 5000
    """Every model accepts this much (ElevenLabs' documentation: Models, character limits)."""

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings
        self._client = connections.ProviderClient(WHO, settings)

    async def speak(self, text: str, settings: protocol.VoiceSettings) -> AsyncGenerator[protocol.SpeechChunk, None]:
        voice = quote(settings.name or self._settings.voice or VOICE, safe="")
        url = self._settings.url(BASE_URL, f"/v1/text-to-speech/{voice}/stream/with-timestamps?output_format=ulaw_8000")
        model = self._settings.model or SPEAK_MODEL
        body: MutableJsonObject = {"text": text, "model_id": model}
        # Multilingual v2 accepts no language: it detects the language of the text.
        if "multilingual_v2" not in model:
            body["language_code"] = protocol.primary_language(settings.language)
        # The API refuses speeds outside of 0.7 to 1.2: speech at the nearest allowed speed is better than none.
        if settings.speed != 1.0:
            body["voice_settings"] = {"speed": min(max(settings.speed, 0.7), 1.2)}
        lines = self._client.lines(url, {"xi-api-key": self._settings.api_key}, LINE_LIMIT, body)
        words, size, limit = _WordAssembler(), 0, connections.max_audio_bytes(text, connections.ULAW_BYTES_PER_SECOND)
        async with aclosing(lines):
            async for line in lines:
                data = connections.parse_object(WHO, line, LINE_LIMIT)
                ulaw = _audio(data)
                size += len(ulaw)
                if size > limit:
                    raise ProviderError(f"{WHO} sent more than {limit} bytes of audio")
                if ulaw:
                    yield protocol.SpeechChunk(
                        connections.decode_ulaw(ulaw), words.add_characters(object_at(data, "alignment"))
                    )
        if not size:
            raise ProviderError(f"{WHO} sent no audio")
        if last := words.end():
            yield protocol.SpeechChunk(b"", last)

    async def close(self) -> None:
        await self._client.close()


def _audio(data: JsonObject) -> bytes:
    """Return the audio of a line; some lines have times only. Raises `ProviderError`."""
    encoded = data.get("audio_base64")
    if not isinstance(encoded, str) and encoded is not None:
        raise ProviderError(f"{WHO} sent no audio: {str(data)[:200]}")
    return connections.decode_audio(WHO, encoded or "")


class _WordAssembler:
    """The word assembled from timed characters; it may begin in one line of the answer and end in the next."""

    def __init__(self) -> None:
        self._word = ""
        self._start = self._end = 0.0

    def add_characters(self, alignment: JsonObject) -> tuple[protocol.WordTime, ...]:
        """Add the characters of a line, given as three parallel lists; return the words that end in the line."""
        names = ("characters", "character_start_times_seconds", "character_end_times_seconds")
        found: list[protocol.WordTime] = []
        for character, start, end in zip(*(list_at(alignment, name) for name in names), strict=False):
            # A missing time only leaves the rest of the line without times: the audio needs none.
            if not (isinstance(character, str) and isinstance(start, int | float) and isinstance(end, int | float)):
                break
            found += self._add(character, float(start), float(end))
        return tuple(found)

    def end(self) -> tuple[protocol.WordTime, ...]:
        """Return the last word, which no space follows."""
        return tuple(self._add(" ", self._end, self._end))

    def _add(self, character: str, start: float, end: float) -> list[protocol.WordTime]:
        if not character.isspace():
            self._start = self._start if self._word else start
            self._word += character
            self._end = end
            return []
        word, self._word = self._word, ""
        return [protocol.WordTime(word, self._start, self._end)] if word else []


class ElevenLabsDialect:
    """The messages of ElevenLabs' recogniser: base64 audio chunks; one with `commit` asks for the transcript."""

    who: str = WHO
    joiner: str = " "
    keep_alive: str | None = None

    def __init__(self, settings: protocol.SpeechProvider) -> None:
        self._settings = settings

    def address(self, settings: protocol.RecognizerSettings) -> tuple[str, Mapping[str, str]]:
        query = [
            ("model_id", self._settings.model or LISTEN_MODEL),
            ("audio_format", "ulaw_8000"),
            ("commit_strategy", "manual"),
            ("language_code", protocol.primary_language(settings.language)),
        ]
        query += [
            ("keyterms", word)
            for word in protocol.accepted_keywords(settings.keywords, MAX_KEYWORDS, max_characters=KEYWORD_CHARACTERS)
        ]
        url = self._settings.url(BASE_URL, f"/v1/speech-to-text/realtime?{urlencode(query)}", socket=True)
        return url, {"xi-api-key": self._settings.api_key}

    def opening_messages(self, settings: protocol.RecognizerSettings) -> Sequence[Message]:
        return ()

    def audio_message(self, ulaw: bytes) -> Message:
        return _chunk(ulaw, commit=False)

    def finish_messages(self) -> Sequence[Message]:
        return (_chunk(b"", commit=True),)

    def closing_messages(self) -> Sequence[Message]:
        return ()

    def receive(self, message: Message) -> RecognizedText | None:
        data = connections.parse_object(WHO, message, MESSAGE_LIMIT)
        kind = data.get("message_type")
        if error := data.get("error"):
            status = _REFUSALS.get(str(kind))
            reason = f"{WHO} reported {kind}: {str(error)[:300]}"
            raise ProviderRefused(reason, status) if status else ProviderError(reason)
        kinds = {"partial_transcript": TextKind.PARTIAL, "committed_transcript": TextKind.COMPLETE}
        found = kinds.get(str(kind))
        if found is None:
            return None
        if not isinstance(text := data.get("text"), str):
            raise ProviderError(f"{WHO} sent a transcript without text")
        return RecognizedText(found, text.strip())


def _chunk(ulaw: bytes, *, commit: bool) -> str:
    audio = base64.b64encode(ulaw).decode()
    return json.dumps(
        {"message_type": "input_audio_chunk", "audio_base_64": audio, "commit": commit, "sample_rate": 8000}
    )


def open_recognizer(settings: protocol.SpeechProvider) -> SocketRecognizer:
    return SocketRecognizer(lambda: ElevenLabsDialect(settings), settings.connect_timeout)


_ENGLISH_MODELS = ("eleven_flash_v2", "eleven_monolingual_v1", "eleven_turbo_v2")


DECLARATIONS = (
    protocol.Declaration(
        "elevenlabs",
        "ElevenLabs",
        key="ELEVENLABS_API_KEY",
        recognizer=open_recognizer,
        voice=ElevenLabsVoice,
        voice_languages=lambda model, voice: frozenset({"en"}) if model in _ENGLISH_MODELS else None,
    ),
)
