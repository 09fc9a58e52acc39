"""Every voice against a server that speaks its provider's documented protocol, and against one that does not."""

from __future__ import annotations

import asyncio
import audioop
import base64
import json
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import web

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech import SpeechChunk, VoiceSettings, WordTime
from callagent.speech.providers import SpeechProvider, declarations, open_provider_voice
from tests.speech.providers.server import (
    Handler,
    ProviderServer,
    Say,
    answers,
    black_hole,
    socket,
    streams,
    tone,
    unused_port,
)

PCM = tone(0.5)
ULAW = audioop.lin2ulaw(PCM, 2)
HEARD = audioop.ulaw2lin(ULAW, 2)
TEXT = "Hello there"
HTTP = [name for name, one in declarations().items() if one.voice and one.key]
HALF = len(ULAW) // 2


def wav(ulaw: bytes) -> bytes:
    """A WAV file with μ-law samples, as Google answers."""
    fmt = b"fmt \x12\0\0\0\x07\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0\0\0"
    return b"RIFF\0\0\0\0WAVE" + fmt + b"data" + len(ulaw).to_bytes(4, "little") + ulaw


def line(ulaw: bytes, characters: str = "", start: float = 0.0) -> bytes:
    times = [start + 0.05 * number for number in range(len(characters))]
    alignment = {
        "characters": list(characters),
        "character_start_times_seconds": times,
        "character_end_times_seconds": [time + 0.05 for time in times],
    }
    answer = {"audio_base64": base64.b64encode(ulaw).decode(), "alignment": alignment if characters else None}
    return json.dumps(answer).encode() + b"\n"


def cartesia(*answers: dict[str, Any] | str | None, requests: list[Any] | None = None) -> Handler:
    """Each answer gets the context of the request; `None` cuts."""

    async def react(say: Say, message: str | bytes) -> None:
        request = json.loads(message)
        if requests is not None:
            requests.append(request)
        for answer in () if request.get("cancel") else answers:
            await say({**answer, "context_id": request["context_id"]} if isinstance(answer, dict) else answer)

    return socket(react)


def chunk(ulaw: bytes) -> dict[str, Any]:
    return {"type": "chunk", "data": base64.b64encode(ulaw).decode(), "done": False, "status_code": 206}


WORDS = {
    "type": "timestamps",
    "word_timestamps": {"words": ["Hello", "there"], "start": [0, 0.25], "end": [0.2, 0.45]},
    "done": False,
}
DONE = {"type": "done", "done": True, "status_code": 206}

GOOD: dict[str, Handler] = {
    "azure": streams(ULAW[:HALF], ULAW[HALF:], content_type="audio/basic"),
    "cartesia": cartesia(chunk(ULAW[:HALF]), WORDS, chunk(ULAW[HALF:]), DONE),
    "deepgram": streams(ULAW[:HALF], ULAW[HALF:]),
    "elevenlabs": streams(
        line(ULAW[:HALF], "Hello t"), line(ULAW[HALF:], "here", 0.35), content_type="application/json"
    ),
    "google": answers(200, json.dumps({"audioContent": base64.b64encode(wav(ULAW)).decode()})),
    "openai": streams(audioop.tomono(b"", 2, 1, 0) + tone(0.25, 24000), tone(0.25, 24000), content_type="audio/pcm"),
    "rime": streams(ULAW[:HALF], ULAW[HALF:], content_type="audio/PCMU"),
}
HALVES: dict[str, Handler] = {
    "azure": streams(ULAW[:HALF], cut=True),
    "cartesia": cartesia(chunk(ULAW[:HALF]), None),
    "deepgram": streams(ULAW[:HALF], cut=True),
    "elevenlabs": streams(line(ULAW[:HALF]), content_type="application/json", cut=True),
    "google": streams(b'{"audioContent": "AAAA', content_type="application/json", cut=True),
    "openai": streams(tone(0.25, 24000), content_type="audio/pcm", cut=True),
    "rime": streams(ULAW[:HALF], cut=True),
}


async def speak(
    name: str, handler: Handler, text: str = TEXT, settings: VoiceSettings | None = None, **more: Any
) -> tuple[list[SpeechChunk], ProviderServer]:
    server = ProviderServer(handler)
    async with server.settings(**more) as provider:
        voice = open_provider_voice(name, provider)
        try:
            return [chunk async for chunk in voice.speak(text, settings or VoiceSettings())], server
        finally:
            await voice.close()


async def failure(name: str, handler: Handler, **more: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await speak(name, handler, **more)
    assert "secret" not in str(caught.value)
    return caught.value


def pcm_of(chunks: list[SpeechChunk]) -> bytes:
    return b"".join(chunk.pcm for chunk in chunks)


@pytest.mark.parametrize("name", sorted(set(HTTP) - {"openai"}))
async def test_audio_arrives_as_it_was_sent(name: str) -> None:
    chunks, _ = await speak(name, GOOD[name])
    assert pcm_of(chunks) == HEARD


async def test_openais_24_khz_become_8_khz() -> None:
    chunks, _ = await speak("openai", GOOD["openai"])
    pcm = pcm_of(chunks)
    assert len(pcm) == len(PCM)
    assert 0.9 < audioop.rms(pcm[800:-800], 2) / audioop.rms(PCM, 2) < 1.1


@pytest.mark.parametrize("name", ["cartesia", "elevenlabs"])
async def test_words_have_their_times(name: str) -> None:
    chunks, _ = await speak(name, GOOD[name])
    words = [word for chunk in chunks for word in chunk.words]
    assert [word.word for word in words] == ["Hello", "there"]
    assert words[0] == WordTime("Hello", 0.0, words[0].end)
    assert words[0].end <= words[1].start < words[1].end < 0.6


async def test_deepgram_is_asked_for_telephone_audio() -> None:
    _, server = await speak("deepgram", GOOD["deepgram"], settings=VoiceSettings(name="aura-2-luna-en"))
    asked = server.asked[0]
    assert asked.path == "/v1/speak"
    assert asked.query == {"model": "aura-2-luna-en", "encoding": "mulaw", "sample_rate": "8000", "container": "none"}
    assert asked.headers["Authorization"] == "Token secret"
    assert json.loads(asked.body) == {"text": TEXT}


async def test_elevenlabs_is_asked_for_telephone_audio() -> None:
    settings = VoiceSettings(language="de-DE", name="abc", speed=1.1)
    _, server = await speak("elevenlabs", GOOD["elevenlabs"], settings=settings)
    asked = server.asked[0]
    assert asked.path == "/v1/text-to-speech/abc/stream/with-timestamps"
    assert asked.query == {"output_format": "ulaw_8000"}
    assert asked.headers["xi-api-key"] == "secret"
    body = json.loads(asked.body)
    assert (body["text"], body["language_code"], body["voice_settings"]) == (TEXT, "de", {"speed": 1.1})


async def test_cartesia_is_asked_for_telephone_audio_on_one_socket() -> None:
    requests: list[Any] = []
    server = ProviderServer(cartesia(chunk(ULAW), DONE, requests=requests))
    async with server.settings(voice="v1") as provider:
        voice = open_provider_voice("cartesia", provider)
        said = await asyncio.gather(*(_all(voice, text) for text in ("One.", "Two.", "Three.")))
        await voice.close()
    assert [pcm_of(chunks) for chunks in said] == [HEARD] * 3
    assert [asked.path for asked in server.asked] == ["/tts/websocket"]
    assert server.asked[0].headers["X-API-Key"] == "secret"
    assert server.asked[0].headers["Cartesia-Version"] == "2026-03-01"
    assert {request["transcript"] for request in requests} == {"One.", "Two.", "Three."}
    assert len({request["context_id"] for request in requests}) == 3
    assert requests[0]["output_format"] == {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
    assert requests[0]["voice"] == {"mode": "id", "id": "v1"}


async def _all(voice: Any, text: str = TEXT) -> list[SpeechChunk]:
    return [chunk async for chunk in voice.speak(text, VoiceSettings())]


async def test_cartesia_is_told_that_an_utterance_is_not_wanted_any_more() -> None:
    requests: list[Any] = []
    server = ProviderServer(cartesia(chunk(ULAW), requests=requests))
    async with server.settings() as provider:
        voice = open_provider_voice("cartesia", provider)
        speaking = voice.speak(TEXT, VoiceSettings())
        await anext(speaking)
        await speaking.aclose()  # type: ignore[attr-defined]
        while len(requests) < 2:
            await asyncio.sleep(0.01)
        await voice.close()
    assert requests[1] == {"context_id": requests[0]["context_id"], "cancel": True}


async def test_cartesias_socket_is_opened_again() -> None:
    server = ProviderServer(cartesia(None))
    async with server.settings() as provider:
        voice = open_provider_voice("cartesia", provider)
        with pytest.raises(ProviderError):
            await _all(voice)
        server.handler = GOOD["cartesia"]
        assert pcm_of(await _all(voice)) == HEARD
        await voice.close()


async def test_openai_is_asked_for_pcm() -> None:
    _, server = await speak("openai", GOOD["openai"], model="tts-1", settings=VoiceSettings(speed=2))
    asked = server.asked[0]
    assert asked.path == "/audio/speech"
    assert asked.headers["Authorization"] == "Bearer secret"
    body = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": "pcm", "speed": 2}
    assert json.loads(asked.body) == body


async def test_rime_is_asked_for_telephone_audio() -> None:
    _, server = await speak("rime", GOOD["rime"], settings=VoiceSettings("de-DE", speed=1.25))
    asked = server.asked[0]
    assert (asked.path, asked.headers["Accept"]) == ("/v1/rime-tts", "audio/PCMU")
    assert asked.headers["Authorization"] == "Bearer secret"
    body = {"text": TEXT, "speaker": "cove", "modelId": "mistv2", "lang": "ger", "samplingRate": 8000}
    assert json.loads(asked.body) == {**body, "speedAlpha": 0.8}


async def test_azure_gets_well_formed_markup() -> None:
    text = 'Fish & chips <break time="300ms"/> for "two"'
    _, server = await speak("azure", GOOD["azure"], text, VoiceSettings(language="en-GB", speed=1.2))
    asked = server.asked[0]
    assert asked.path == "/cognitiveservices/v1"
    assert asked.headers["X-Microsoft-OutputFormat"] == "raw-8khz-8bit-mono-mulaw"
    assert asked.headers["Ocp-Apim-Subscription-Key"] == "secret"
    root = ElementTree.fromstring(asked.body.decode())
    assert "".join(root.itertext()) == 'Fish & chips  for "two"'
    assert root.find(".//{*}break") is not None
    prosody = root.find(".//{*}prosody")
    assert prosody is not None
    assert prosody.get("rate") == "+20%"


async def test_google_gets_text_or_markup() -> None:
    _, plain = await speak("google", GOOD["google"], settings=VoiceSettings(name="en-US-Neural2-C"))
    _, marked = await speak("google", GOOD["google"], "Wait<break/>here")
    assert plain.asked[0].path == "/v1/text:synthesize"
    assert plain.asked[0].headers["X-Goog-Api-Key"] == "secret"
    body = json.loads(plain.asked[0].body)
    assert body["input"] == {"text": TEXT}
    assert body["voice"] == {"languageCode": "en-US", "name": "en-US-Neural2-C"}
    assert body["audioConfig"] == {"audioEncoding": "MULAW", "sampleRateHertz": 8000}
    assert json.loads(marked.asked[0].body)["input"] == {"ssml": "<speak>Wait<break/>here</speak>"}


# Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HTTP)
async def test_nobody_listens(name: str) -> None:
    voice = open_provider_voice(name, SpeechProvider("secret", f"http://127.0.0.1:{await unused_port()}"))
    with pytest.raises(ProviderError, match="cannot be reached"):
        await _all(voice)
    await voice.close()


@pytest.mark.parametrize("name", HTTP)
async def test_a_refused_key(name: str) -> None:
    error = await failure(name, answers(401, '{"detail": {"message": "bad key"}}'))
    assert isinstance(error, ProviderRefused)
    assert error.status == 401
    assert "bad key" in str(error) or name == "cartesia"


@pytest.mark.parametrize("name", HTTP)
async def test_over_quota_says_when_to_come_back(name: str) -> None:
    error = await failure(name, answers(429, headers={"Retry-After": "7"}))
    assert isinstance(error, ProviderRefused)
    assert (error.status, error.retry_after) == (429, 7)


@pytest.mark.parametrize("name", HTTP)
async def test_a_broken_server(name: str) -> None:
    error = await failure(name, answers(500, "<html>"))
    assert not isinstance(error, ProviderRefused)


@pytest.mark.parametrize("name", HTTP)
async def test_a_black_hole(name: str) -> None:
    assert isinstance(await failure(name, black_hole, connect_timeout=0.1), ProviderTimeout)


@pytest.mark.parametrize("name", HTTP)
async def test_cut_in_the_middle_after_what_came_was_passed_on(name: str) -> None:
    server = ProviderServer(HALVES[name])
    heard, failed = b"", False
    async with server.settings() as provider:
        voice = open_provider_voice(name, provider)
        try:
            async for one in voice.speak(TEXT, VoiceSettings()):
                heard += one.pcm
        except ProviderError:
            failed = True
        await voice.close()
    assert failed
    if name == "google":
        assert heard == b""
    elif name != "openai":
        assert heard == HEARD[: len(HEARD) // 2]
    else:
        assert len(heard) > 0


GARBAGE: dict[str, list[Handler]] = {
    name: [answers(200, "<html>Sign in</html>", content_type="text/html"), answers(200, "", content_type="audio/x")]
    for name in set(HTTP) - {"cartesia"}
}
GARBAGE["elevenlabs"] += [
    streams(b"[1]\n"), streams(b'{"audio_base64": "?"}\n'), streams(b'{"audio_base64": 5}\n'),
    streams(b"x" * (2 << 20)), streams(line(bytes(400_000))),
]  # fmt: skip
GARBAGE["google"] += [answers(200, '{"audioContent": 5}'), answers(200, '{"audioContent": "UklGRg=="}')]
GARBAGE["cartesia"] = [
    cartesia("no json"), cartesia("[]"), cartesia({"type": "chunk", "data": 5}), cartesia(DONE),
    cartesia({"type": "error", "title": "Invalid model", "status_code": 400}), cartesia(chunk(bytes(400_000))),
]  # fmt: skip
for _name in ("azure", "deepgram", "openai"):
    GARBAGE[_name].append(streams(bytes(4_000_000), content_type="audio/x"))


@pytest.mark.parametrize(
    ("name", "handler"), [(name, handler) for name in sorted(GARBAGE) for handler in GARBAGE[name]]
)
async def test_what_is_no_answer(name: str, handler: Handler) -> None:
    await failure(name, handler)


@pytest.mark.parametrize("name", ["azure", "deepgram", "elevenlabs", "openai"])
async def test_closing_the_iterator_ends_the_request(name: str) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "audio/x"})
        await response.prepare(request)
        while True:
            await response.write(line(ULAW[:160]) if name == "elevenlabs" else ULAW[:160] * 3)
            await asyncio.sleep(0.01)

    server = ProviderServer(endless)
    async with server.settings() as provider:
        voice = open_provider_voice(name, provider)
        speaking = voice.speak(TEXT, VoiceSettings())
        await anext(speaking)
        await speaking.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await server.gone.wait()
        await voice.close()
