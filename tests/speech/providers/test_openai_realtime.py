"""OpenAI's realtime transcription over a socket that speaks its documented protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callagent.errors import ProviderRefused
from callagent.speech import RecognizerSettings
from tests.speech.providers.server import Say, socket
from tests.speech.providers.test_recognizers import FRAMES, TRANSCRIPTION, Provider, failure, listening

NAME = "openai-realtime"


def session_of(received: list[Any]) -> list[dict[str, Any]]:
    messages = [json.loads(message) for message in received]
    return [message["session"] for message in messages if message["type"] == "session.update"]


async def test_the_session_is_set_up_for_telephone_audio_and_our_turns() -> None:
    provider = Provider(NAME, finals=["one", "two"])
    async with listening(NAME, provider.handler(), model="gpt-4o-transcribe") as (ear, server):
        for number, expected in enumerate(("5 5 5", "5 5 5"), 1):
            await ear.says(settings=RecognizerSettings("en-US", expected))
            await ear.until(lambda number=number: len(ear.finals) == number)
    (asked,) = server.asked
    assert (asked.path, asked.query) == ("/realtime", {"intent": "transcription"})
    assert asked.headers["Authorization"] == "Bearer secret"
    (session,) = session_of(provider.received)
    given = session["audio"]["input"]
    assert session["type"] == "transcription"
    assert given["format"] == {"type": "audio/pcmu"}
    assert given["turn_detection"] is None
    assert given["transcription"] == {"model": "gpt-4o-transcribe", "language": "en", "prompt": "5 5 5"}


async def test_another_prompt_is_another_session() -> None:
    provider = Provider(NAME, finals=["one", "two"])
    async with listening(NAME, provider.handler()) as (ear, server):
        for number, expected in enumerate(("5 5 5", "Monday"), 1):
            await ear.says(settings=RecognizerSettings("en-US", expected))
            await ear.until(lambda number=number: len(ear.finals) == number)
    assert len(server.asked) == 2
    prompts = [one["audio"]["input"]["transcription"]["prompt"] for one in session_of(provider.received)]
    assert prompts == ["5 5 5", "Monday"]


async def test_transcripts_in_the_wrong_order_are_put_right() -> None:
    commits: list[str] = []

    async def react(say: Say, message: str | bytes) -> None:
        if "commit" not in str(message):
            return
        commits.append(f"item_{len(commits)}")
        await say({"type": "input_audio_buffer.committed", "item_id": commits[-1]})
        if len(commits) == 2:
            for item, text in (("item_1", "two"), ("item_0", "one")):
                await say({"type": TRANSCRIPTION + "completed", "item_id": item, "transcript": text})

    async with listening(NAME, socket(react, {"type": "session.created"})) as (ear, _):
        for _ in range(2):
            ear.stream.begin(RecognizerSettings())
            ear.stream.feed(FRAMES[0] * 10)
            ear.stream.finish()
        await ear.until(lambda: len(ear.finals) == 2)
    assert [(final.utterance, final.text) for final in ear.finals] == [(1, "one"), (2, "two")]


ERRORS = [
    {"type": "error", "error": {"code": "invalid_api_key", "message": "bad key"}},
    {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slow down"}},
    {"type": "error", "error": "x"},
    {"type": TRANSCRIPTION + "failed", "item_id": "1", "error": {"code": "audio_unintelligible", "message": "?"}},
    {"type": TRANSCRIPTION + "completed", "item_id": "1"},
    {"type": TRANSCRIPTION + "completed", "item_id": "1", "transcript": "never committed"},
    {"type": TRANSCRIPTION + "delta", "item_id": "1", "delta": 5},
]


@pytest.mark.parametrize("message", ERRORS)
async def test_what_is_reported(message: dict[str, Any]) -> None:
    async def react(say: Say, received: str | bytes) -> None:
        await say(message)

    error = await failure(NAME, socket(react))
    details = message.get("error")
    code = details.get("code") if isinstance(details, dict) else None
    assert isinstance(error, ProviderRefused) == (code in ("invalid_api_key", "rate_limit_exceeded"))
