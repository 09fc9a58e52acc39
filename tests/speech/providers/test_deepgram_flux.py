"""Flux over a socket that speaks its documented protocol: the turn ends when we say so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callagent.speech import RecognizerSettings, Transcript
from callagent.speech.providers import connections
from callagent.speech.providers import recognizer_streams as stream_module
from callagent.speech.providers.deepgram import SILENCE
from tests.speech.providers.server import Say, answers, black_hole, socket
from tests.speech.providers.test_recognizers import FRAMES, failure, listening

MODEL = "flux-general-en"


def turn(event: str, text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    words = [{"word": word, "confidence": 0.75} for word in text.split()]
    return {"type": "TurnInfo", "event": event, "turn_index": index, "transcript": text, "words": words, **more}


class Flux:
    """Transcribes `text` once audio comes; ends the turn when it is told to, if one is on."""

    def __init__(self, text: str = "a table for two") -> None:
        self.text = text
        self.received: list[str | bytes] = []
        self.on = False

    async def react(self, say: Say, message: str | bytes) -> None:
        self.received.append(message)
        if isinstance(message, bytes):
            if self.text and not self.on and message != SILENCE:
                self.on = True
                await say(turn("StartOfTurn", self.text.split()[0]))
            await say(turn("Update", self.text if self.on else ""))
        elif "ForceEndTurn" in message and self.on:
            self.on = False
            await say(turn("EndOfTurn", self.text, trigger="manual"))


async def test_a_turn_is_ended_by_us() -> None:
    flux = Flux()
    async with listening("deepgram", socket(flux.react, {"type": "Connected"}), model=MODEL) as (ear, server):
        for number in (1, 2):
            await ear.says(settings=RecognizerSettings("en-GB", keywords=("parcel",)))
            await ear.until(lambda number=number: len(ear.finals) == number)
    assert ear.heard[0] == Transcript("a", False, 1)
    assert [(final.text, final.utterance, final.confidence) for final in ear.finals] == [
        ("a table for two", 1, 0.75),
        ("a table for two", 2, 0.75),
    ]
    (asked,) = server.asked
    assert (asked.path, asked.headers["Authorization"]) == ("/v2/listen", "Token secret")
    expected = {"model": MODEL, "encoding": "mulaw", "sample_rate": "8000", "eot_threshold": "1.0", "keyterm": "parcel"}
    assert expected.items() <= asked.query.items()
    assert sum(len(part) for part in flux.received if isinstance(part, bytes)) >= 2 * 50 * 160
    assert '{"type":"CloseStream"}' in flux.received


async def test_where_nothing_was_said_no_turn_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "FINAL_GRACE_SECONDS", 0.05)
    async with listening("deepgram", socket(Flux("").react), model=MODEL) as (ear, _):
        ear.stream.begin(RecognizerSettings())
        ear.stream.feed(FRAMES[0] * 10)
        ear.stream.finish()
        await ear.until(lambda: ear.finals)
    assert ear.finals == [Transcript("", True, 1)]


async def test_where_the_socket_opens_late_a_turn_without_words_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "FINAL_GRACE_SECONDS", 0.05)
    opened = asyncio.Event()
    open_socket = connections.open_socket

    async def open_late(*arguments: Any) -> Any:
        await opened.wait()
        return await open_socket(*arguments)

    monkeypatch.setattr(connections, "open_socket", open_late)
    async with listening("deepgram", socket(Flux("").react), model=MODEL) as (ear, _):
        ear.stream.begin(RecognizerSettings())
        ear.stream.feed(FRAMES[0] * 10)
        ear.stream.finish()
        # The grace after `finish` is over before the provider has answered anything.
        await asyncio.sleep(0.2)
        assert ear.finals == []
        opened.set()
        await ear.until(lambda: ear.finals)
    assert ear.finals == [Transcript("", True, 1)]


async def test_the_longest_turn_of_theirs_is_a_part_of_ours() -> None:
    async def react(say: Say, message: str | bytes) -> None:
        if isinstance(message, str) and "ForceEndTurn" in message:
            await say(turn("EndOfTurn", "for two", 1))
        elif not react.told:  # type: ignore[attr-defined]
            react.told = True  # type: ignore[attr-defined]
            await say(turn("EndOfTurn", "a table", trigger="model"))

    react.told = False  # type: ignore[attr-defined]
    async with listening("deepgram", socket(react), model=MODEL) as (ear, _):
        await ear.says()
        await ear.until(lambda: ear.finals)
    assert ear.finals[0].text == "a table for two"


async def test_the_multilingual_model_is_told_the_language() -> None:
    async with listening("deepgram", socket(Flux().react), model="flux-general-multi") as (ear, server):
        await ear.says(settings=RecognizerSettings("fr-FR"))
        await ear.until(lambda: ear.finals)
    assert server.asked[0].query["language_hint"] == "fr"


@pytest.mark.parametrize("message", [{"type": "Error", "description": "bad"}, {"type": "TurnInfo"}, "no json", None])
async def test_what_is_no_turn(message: Any) -> None:
    async def react(say: Say, received: str | bytes) -> None:
        await say(message)

    await failure("deepgram", socket(react), model=MODEL)


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_refused(status: int) -> None:
    await failure("deepgram", answers(status), model=MODEL)


async def test_a_black_hole() -> None:
    await failure("deepgram", black_hole, model=MODEL, connect_timeout=0.1)
