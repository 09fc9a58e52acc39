"""Every recogniser against a server that speaks its provider's documented protocol, and against one that does not."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from callagent.audio import FRAME_BYTES
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech import RecognizerSettings, Transcript
from callagent.speech.providers import SpeechProvider, declarations, open_provider_recognizer
from callagent.speech.providers import recognizer_streams as stream_module
from tests.speech.providers.server import Handler, ProviderServer, Say, answers, black_hole, socket, tone, unused_port

WHOLE = ("azure", "google", "openai")
"""Asked over HTTP when an utterance is over."""
TCP = ("faster_whisper",)
HTTP = [name for name, one in declarations().items() if one.recognizer and name not in TCP]
SOCKETS = sorted(set(HTTP) - set(WHOLE))
FRAMES = [tone(0.02)] * 50
TRANSCRIPTION = "conversation.item.input_audio_transcription."


@dataclass
class Provider:
    """One provider's side of a conversation: partial "hello", then the final "hello there" when it is asked for."""

    name: str
    received: list[Any] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)
    finals: list[str] = field(default_factory=lambda: ["hello there"])

    @property
    def item(self) -> str:
        return f"item_{len(self.finals)}"

    def handler(self) -> Handler:
        greeting = {
            "assemblyai": {"type": "Begin", "id": "1", "expires_at": 0},
            "elevenlabs": {"message_type": "session_started", "session_id": "1"},
            "openai-realtime": {"type": "session.created", "event_id": "1", "session": {}},
        }
        return socket(self.react, greeting.get(self.name))

    async def react(self, say: Say, message: str | bytes) -> None:
        ulaw = self.audio_in(message)
        if ulaw:
            first = not self.audio
            self.audio += ulaw
            if first:
                await say(self.partial("hello"))
            return
        self.received.append(message)
        if self.is_finish(message):
            for answer in self.final(self.finals.pop(0)):
                await say(answer)

    def audio_in(self, message: str | bytes) -> bytes:
        if isinstance(message, bytes):
            return message
        data = json.loads(message) if message.startswith("{") else {}
        return base64.b64decode(data.get("audio_base_64", "") or data.get("audio", ""))

    def is_finish(self, message: str | bytes) -> bool:
        wanted = {
            "assemblyai": "ForceEndpoint", "cartesia": "finalize",
            "deepgram": '"Finalize"', "elevenlabs": '"commit": true', "openai-realtime": "buffer.commit",
        }  # fmt: skip
        return wanted[self.name] in str(message)

    def partial(self, text: str) -> dict[str, Any]:
        return {
            "assemblyai": {
                "type": "Turn", "turn_order": 0, "end_of_turn": False, "transcript": "",
                "words": [{"text": text, "word_is_final": False, "confidence": 0.5}],
            },
            "cartesia": {"type": "transcript", "text": text, "is_final": False},
            "deepgram": deepgram(text),
            "elevenlabs": {"message_type": "partial_transcript", "text": text},
            "openai-realtime": {"type": TRANSCRIPTION + "delta", "item_id": self.item, "delta": text},
        }[self.name]  # fmt: skip

    def final(self, text: str) -> list[dict[str, Any]]:
        words = [{"text": word, "word_is_final": True, "confidence": 0.75} for word in text.split()]
        return {
            "assemblyai": [{"type": "Turn", "turn_order": 0, "end_of_turn": True, "transcript": text, "words": words}],
            "cartesia": [{"type": "transcript", "text": text, "is_final": True}, {"type": "flush_done"}],
            "deepgram": [deepgram(text, is_final=True, from_finalize=True, confidence=0.75)],
            "elevenlabs": [{"message_type": "committed_transcript", "text": text}],
            "openai-realtime": [
                {"type": "input_audio_buffer.committed", "item_id": self.item},
                {"type": TRANSCRIPTION + "completed", "item_id": self.item, "transcript": text},
            ],
        }[self.name]  # fmt: skip


def deepgram(text: str, confidence: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"type": "Results", "channel": {"alternatives": [{"transcript": text, "confidence": confidence}]}, **more}


@dataclass
class Ear:
    """A stream and what it heard."""

    stream: Any = None
    heard: list[Transcript] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, transcript: Transcript) -> None:
        self.heard.append(transcript)
        self.changed.set()

    async def says(self, frames: list[bytes] = FRAMES, settings: RecognizerSettings | None = None) -> None:
        """An utterance; returns when a transcript of it came or the stream failed."""
        self.stream.begin(settings or RecognizerSettings())
        for frame in frames:
            self.stream.feed(frame)
        await self.until(lambda: bool(self.heard) or self.stream.failed)
        self.stream.finish()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    @property
    def finals(self) -> list[Transcript]:
        return [transcript for transcript in self.heard if transcript.final]


@asynccontextmanager
async def listening(name: str, handler: Handler, **more: Any) -> AsyncIterator[tuple[Ear, ProviderServer]]:
    server = ProviderServer(handler)
    async with server.settings(**more) as settings:
        recognizer = open_provider_recognizer(name, settings)
        ear = Ear()
        ear.stream = await recognizer.open(ear.take)
        try:
            yield ear, server
        finally:
            ear.stream.close()
            await recognizer.close()


async def failure(name: str, handler: Handler, **more: Any) -> ProviderError:
    async with listening(name, handler, **more) as (ear, _):
        ear.stream.begin(RecognizerSettings())
        ear.stream.feed(FRAMES[0] * 10)
        ear.stream.finish()
        await ear.until(lambda: ear.stream.failed)
        assert not ear.finals
        assert isinstance(ear.stream.failed, ProviderError)
        assert "secret" not in str(ear.stream.failed)
        return ear.stream.failed


@pytest.mark.parametrize("name", SOCKETS)
async def test_partial_and_final_transcripts(name: str) -> None:
    provider = Provider(name)
    async with listening(name, provider.handler()) as (ear, _):
        await ear.says()
        await ear.until(lambda: ear.finals)
    assert ear.heard[0] == Transcript("hello", False, 1)
    assert (ear.heard[-1].text, ear.heard[-1].final, ear.heard[-1].utterance) == ("hello there", True, 1)
    assert ear.heard[-1].confidence == (0.75 if name in ("assemblyai", "deepgram") else None)
    assert len(ear.finals) == 1


@pytest.mark.parametrize("name", SOCKETS)
async def test_audio_is_the_utterance_with_half_a_second_before_it(name: str) -> None:
    provider = Provider(name)
    async with listening(name, provider.handler()) as (ear, _):
        for _ in range(200):
            ear.stream.feed(bytes(FRAME_BYTES))
        await ear.says()
        for _ in range(200):
            ear.stream.feed(bytes(FRAME_BYTES))
        await ear.until(lambda: ear.finals)
    assert len(provider.audio) == (25 + 50) * FRAME_BYTES // 2


@pytest.mark.parametrize("name", SOCKETS)
async def test_several_utterances_share_a_socket_and_keep_their_numbers(name: str) -> None:
    provider = Provider(name, finals=["one", "", "three"])
    async with listening(name, provider.handler()) as (ear, server):
        for number in (1, 2, 3):
            await ear.says()
            await ear.until(lambda number=number: len(ear.finals) == number)
    assert [(final.utterance, final.text) for final in ear.finals] == [(1, "one"), (2, ""), (3, "three")]
    assert len(server.asked) == 1


@pytest.mark.parametrize("name", SOCKETS)
async def test_the_next_utterance_may_begin_before_the_answer_to_the_last(name: str) -> None:
    provider = Provider(name, finals=["one", "two"])
    async with listening(name, provider.handler()) as (ear, _):
        for _ in range(2):
            ear.stream.begin(RecognizerSettings())
            ear.stream.feed(FRAMES[0] * 10)
            ear.stream.finish()
        await ear.until(lambda: len(ear.finals) == 2 or ear.stream.failed)
    assert ear.stream.failed is None
    assert [(final.utterance, final.text) for final in ear.finals] == [(1, "one"), (2, "two")]


async def test_deepgram_is_asked_for_telephone_audio_and_told_the_keywords() -> None:
    provider = Provider("deepgram")
    async with listening("deepgram", provider.handler()) as (ear, server):
        await ear.says(settings=RecognizerSettings("en-GB", keywords=("parcel",)))
        await ear.until(lambda: ear.finals)
    query = server.asked[0].query
    assert server.asked[0].path == "/v1/listen"
    assert server.asked[0].headers["Authorization"] == "Token secret"
    assert (query["encoding"], query["sample_rate"], query["language"]) == ("mulaw", "8000", "en-GB")
    assert query["keyterm"] == "parcel"
    assert '{"type":"CloseStream"}' in provider.received


@pytest.mark.parametrize(("provider", "name"), [("cartesia", "keyterm"), ("elevenlabs", "keyterms")])
async def test_keywords_are_handed_over_as_far_as_the_provider_takes_them(provider: str, name: str) -> None:
    words = ("parcel", *("x" * 1300,), *(f"word {number}" for number in range(120)))
    async with listening(provider, Provider(provider).handler()) as (ear, server):
        await ear.says(settings=RecognizerSettings(keywords=words))
        await ear.until(lambda: ear.finals)
    given = [value for key, value in server.asked[0].repeated if key == name]
    assert given[:2] == ["parcel", "word 0"]
    assert len(given) <= 100
    assert sum(map(len, given)) <= 1200


async def test_other_keywords_open_another_socket() -> None:
    provider = Provider("deepgram", finals=["one", "two"])
    async with listening("deepgram", provider.handler()) as (ear, server):
        for number, word in enumerate(("parcel", "letter"), 1):
            await ear.says(settings=RecognizerSettings(keywords=(word,)))
            await ear.until(lambda number=number: len(ear.finals) == number)
    assert [asked.query["keyterm"] for asked in server.asked] == ["parcel", "letter"]
    assert [final.text for final in ear.finals] == ["one", "two"]


async def test_assemblyai_is_asked_for_telephone_audio() -> None:
    async with listening("assemblyai", Provider("assemblyai").handler()) as (ear, server):
        await ear.says(settings=RecognizerSettings("fr-FR", keywords=("colis",)))
        await ear.until(lambda: ear.finals)
    query = server.asked[0].query
    assert server.asked[0].path == "/v3/ws"
    assert server.asked[0].headers["Authorization"] == "secret"
    assert (query["encoding"], query["sample_rate"]) == ("pcm_mulaw", "8000")
    assert query["speech_model"] == "universal-streaming-multilingual"
    assert json.loads(query["keyterms_prompt"]) == ["colis"]


async def test_cartesia_is_asked_for_telephone_audio() -> None:
    async with listening("cartesia", Provider("cartesia").handler()) as (ear, server):
        await ear.says()
        await ear.until(lambda: ear.finals)
    expected = {"model": "ink-2", "language": "en", "encoding": "pcm_mulaw", "sample_rate": "8000"}
    assert (server.asked[0].path, server.asked[0].query) == ("/stt/websocket", expected)


async def test_elevenlabs_is_asked_for_telephone_audio() -> None:
    async with listening("elevenlabs", Provider("elevenlabs").handler()) as (ear, server):
        await ear.says()
        await ear.until(lambda: ear.finals)
    assert server.asked[0].path == "/v1/speech-to-text/realtime"
    assert server.asked[0].query["audio_format"] == "ulaw_8000"
    assert server.asked[0].query["commit_strategy"] == "manual"


async def test_committed_parts_of_deepgram_are_joined() -> None:
    async def react(say: Say, message: str | bytes) -> None:
        if message == '{"type":"Finalize"}':
            await say(deepgram("for two", is_final=True))
            await say(deepgram("", is_final=True, from_finalize=True))
        elif react.first:  # type: ignore[attr-defined]
            react.first = False  # type: ignore[attr-defined]
            await say(deepgram("A table", is_final=True))
            await say({"type": "Metadata"})

    react.first = True  # type: ignore[attr-defined]
    async with listening("deepgram", socket(react)) as (ear, _):
        await ear.says()
        await ear.until(lambda: ear.finals)
    assert ear.finals[0].text == "A table for two"


async def test_deepgram_need_not_answer_where_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "FINAL_GRACE_SECONDS", 0.05)

    async def react(say: Say, message: str | bytes) -> None:
        if isinstance(message, bytes):
            await say(deepgram("all of it", is_final=True))

    async with listening("deepgram", socket(react)) as (ear, _):
        await ear.says(FRAMES[:3])
        await ear.until(lambda: ear.finals)
    assert ear.finals[0].text.startswith("all of it")


async def test_the_socket_is_kept_alive_between_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "KEEP_ALIVE_SECONDS", 0.02)
    provider = Provider("deepgram")
    async with listening("deepgram", provider.handler()) as (ear, _):
        await ear.says()
        await ear.until(lambda: '{"type":"KeepAlive"}' in provider.received)


@pytest.mark.parametrize("name", SOCKETS)
async def test_a_socket_closed_in_silence_is_opened_again_for_the_next_utterance(name: str) -> None:
    provider = Provider(name, finals=["one", "two"])
    inner = provider.react

    async def react(say: Say, message: str | bytes) -> None:
        await inner(say, message)
        if provider.finals == ["two"] and provider.is_finish(message) and not provider.audio_in(message):
            await say(None)

    async with listening(name, socket(react)) as (ear, server):
        await ear.says()
        await ear.until(lambda: ear.finals)
        await ear.until(lambda: ear.stream._task.done())
        assert ear.stream.failed is None
        await ear.says()
        await ear.until(lambda: len(ear.finals) == 2)
    assert len(server.asked) == 2
    assert ear.finals[1].text == "two"


def form_of(body: bytes, content_type: str) -> dict[str, bytes]:
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    parts = [part.partition(b"\r\n\r\n") for part in body.split(b"--" + boundary)[1:-1]]
    return {head.split(b'name="')[1].split(b'"')[0].decode(): value.removesuffix(b"\r\n") for head, _, value in parts}


async def test_openai_gets_the_whole_utterance_as_a_file() -> None:
    async with listening("openai", answers(200, '{"text": " A table for two. "}')) as (ear, server):
        for _ in range(200):
            ear.stream.feed(bytes(FRAME_BYTES))
        ear.stream.begin(RecognizerSettings("en-US", expected="5 5 5 0 1 4 2"))
        for frame in FRAMES:
            ear.stream.feed(frame)
        ear.stream.finish()
        await ear.until(lambda: ear.finals)
    assert ear.finals == [Transcript("A table for two.", True, 1)]
    asked = server.asked[0]
    form = form_of(asked.body, asked.headers["Content-Type"])
    assert asked.path == "/audio/transcriptions"
    assert (form["language"], form["prompt"]) == (b"en", b"5 5 5 0 1 4 2")
    with wave.open(io.BytesIO(form["file"])) as recording:
        assert (recording.getframerate(), recording.getnframes()) == (8000, (25 + 50) * 160)


# Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HTTP)
async def test_nobody_listens(name: str) -> None:
    recognizer = open_provider_recognizer(name, SpeechProvider("secret", f"http://127.0.0.1:{await unused_port()}"))
    ear = Ear()
    ear.stream = await recognizer.open(ear.take)
    await ear.says(FRAMES) if name in SOCKETS else (ear.stream.begin(RecognizerSettings()), ear.stream.finish())
    await ear.until(lambda: ear.stream.failed)
    ear.stream.close()
    await recognizer.close()
    assert not ear.heard


@pytest.mark.parametrize("name", HTTP)
async def test_a_refused_key(name: str) -> None:
    error = await failure(name, answers(401, '{"err_msg": "bad key"}'))
    assert isinstance(error, ProviderRefused)
    assert error.status == 401


@pytest.mark.parametrize("name", HTTP)
async def test_over_quota_says_when_to_come_back(name: str) -> None:
    error = await failure(name, answers(429, headers={"Retry-After": "7"}))
    assert isinstance(error, ProviderRefused)
    assert (error.status, error.retry_after) == (429, 7)


@pytest.mark.parametrize("name", HTTP)
async def test_a_broken_server(name: str) -> None:
    assert not isinstance(await failure(name, answers(500, "<html>")), ProviderRefused)


@pytest.mark.parametrize("name", HTTP)
async def test_a_black_hole(name: str) -> None:
    assert isinstance(await failure(name, black_hole, connect_timeout=0.1), ProviderTimeout)


@pytest.mark.parametrize("name", SOCKETS)
async def test_a_socket_that_stays_silent_answers_nothing(name: str) -> None:
    async def react(say: Say, message: str | bytes) -> None:
        return None

    async with listening(name, socket(react)) as (ear, _):
        ear.stream.begin(RecognizerSettings())
        ear.stream.feed(FRAMES[0] * 10)
        ear.stream.finish()
        await asyncio.sleep(0.1)
    assert not ear.heard


@pytest.mark.parametrize("name", SOCKETS)
async def test_cut_within_an_utterance(name: str) -> None:
    async def react(say: Say, message: str | bytes) -> None:
        await say(None)

    await failure(name, socket(react))


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize("garbage", ["no json", "[]", "[" * 100_000, '"' + "x" * 500_000 + '"'])
async def test_what_is_no_message(name: str, garbage: str) -> None:
    async def react(say: Say, message: str | bytes) -> None:
        await say(garbage)

    await failure(name, socket(react))


ERRORS: list[tuple[str, Any]] = [
    ("assemblyai", {"error": "too fast"}), ("assemblyai", {"type": "Turn", "transcript": 5}),
    ("cartesia", {"type": "error", "message": "bad", "status_code": 400}), ("cartesia", {"type": "transcript"}),
    ("deepgram", {"type": "Error", "description": "bad"}), ("deepgram", {"type": "Results"}),
    ("elevenlabs", {"message_type": "auth_error", "error": "bad"}),
    ("elevenlabs", {"message_type": "committed_transcript"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message"), ERRORS)
async def test_an_error_that_is_reported(name: str, message: Any) -> None:
    async def react(say: Say, received: str | bytes) -> None:
        await say(message)

    error = await failure(name, socket(react))
    assert not isinstance(error, ProviderRefused) or error.status in (400, 401)


@pytest.mark.parametrize("body", ["<html>", "[]", '{"text": 5}', "x" * (2 << 20)])
async def test_what_is_no_transcription(body: str) -> None:
    await failure("openai", answers(200, body))


async def test_closing_ends_the_request() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    async with listening("openai", handler) as (ear, server):
        ear.stream.begin(RecognizerSettings())
        ear.stream.finish()
        await ear.until(lambda: server.asked)
        ear.stream.close()
        async with asyncio.timeout(60):
            await server.gone.wait()
    assert not ear.heard
