"""A text longer than a provider takes is cut at the ends of sentences; nothing is lost and nothing is said twice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from callagent.speech import SpeechChunk, VoiceSettings
from callagent.speech.providers import open_provider_voice
from callagent.speech.text_processing import split_to_size
from tests.speech.providers.server import Handler, ProviderServer
from tests.speech.providers.test_voices import GOOD, HEARD, TEXT, line, pcm_of, speak, streams

LONG = " ".join(f"This is sentence number {number}, and it says nothing else." for number in range(400))
# What each documents, and where its request has the text.
LIMITS: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "azure": (10_000, lambda body: "".join(ElementTree.fromstring(body.decode()).itertext())),
    "deepgram": (2000, lambda body: json.loads(body)["text"]),
    "elevenlabs": (5000, lambda body: json.loads(body)["text"]),
    "google": (5000, lambda body: json.loads(body)["input"]["text"]),
    "openai": (4096, lambda body: json.loads(body)["input"]),
    "rime": (500, lambda body: json.loads(body)["text"]),
}


def refusing(name: str, handler: Handler) -> Handler:
    most, text_of = LIMITS[name]

    async def answer(request: web.Request) -> web.StreamResponse:
        if len(text_of(await request.read()).encode()) > most:
            return web.Response(status=413)
        return await handler(request)

    return answer


@pytest.mark.parametrize("name", LIMITS)
async def test_every_provider_is_asked_for_as_much_as_it_takes(name: str) -> None:
    chunks, server = await speak(name, refusing(name, GOOD[name]), LONG)
    asked = [LIMITS[name][1](each.body) for each in server.asked]
    assert " ".join(asked) == LONG
    assert all(text.endswith("else.") for text in asked)
    assert len(asked) <= len(LONG) // (LIMITS[name][0] // 4)
    if name != "openai":
        assert pcm_of(chunks) == HEARD * len(asked)


async def test_times_of_words_count_from_the_start_of_the_whole() -> None:
    handler = streams(line(bytes(16000), "Yes "), content_type="application/json")
    chunks, server = await speak("elevenlabs", handler, LONG)
    starts = [word.start for chunk in chunks for word in chunk.words]
    assert len(server.asked) > 2
    assert starts == [2.0 * number for number in range(len(server.asked))]


async def test_what_is_not_wanted_any_more_is_not_asked_for() -> None:
    server = ProviderServer(GOOD["rime"])
    async with server.settings() as provider:
        voice = open_provider_voice("rime", provider)
        speaking = voice.speak(LONG, VoiceSettings())
        assert isinstance(await anext(speaking), SpeechChunk)
        await speaking.aclose()  # type: ignore[attr-defined]
        await voice.close()
    assert len(server.asked) == 1


def test_markup_of_a_text_that_fits_is_kept_and_of_one_that_does_not_put_into_words() -> None:
    marked = f'{TEXT} <break time="300ms"/> friend.'
    assert split_to_size(marked, 500) == [marked]
    assert all("<" not in part for part in split_to_size(f"{marked} {LONG}", 500))


@given(st.text(max_size=600), st.integers(min_value=8, max_value=200))
def test_parts_fit_and_hold_everything(text: str, most: int) -> None:
    cut = split_to_size(text, most)
    assert all(len(part.encode()) <= most for part in cut)
    if "<" not in text:
        assert re.sub(r"\s", "", "".join(cut)) == re.sub(r"\s", "", text)
