"""Two hundred faults on the wire: the caller hears every word, and every utterance of the caller is answered."""

from __future__ import annotations

import asyncio
import audioop
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from callagent.failover import Member
from callagent.speech import (
    CachedVoice,
    FailoverRecognizer,
    FailoverVoice,
    RecognizerSettings,
    Transcript,
    VoiceSettings,
)
from callagent.speech.providers import SpeechProvider, open_provider_recognizer, open_provider_voice
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice
from tests.own_time import OwnTime, own_time
from tests.speech.providers.server import Handler, ProviderServer, Say, answers, black_hole, socket, streams, tone

TEXT = "one two three four five six seven eight nine ten"
WORDS = len(TEXT.split())
SPEECH = audioop.lin2ulaw(tone(4.0), 2)


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "audio/mulaw"})
    await response.prepare(request)
    while True:
        await response.write(SPEECH[:80])
        await asyncio.sleep(0.1)


VOICE_FAULTS: dict[str, Callable[[random.Random], Handler]] = {
    "401": lambda dice: answers(401),
    "429": lambda dice: answers(429, headers={"Retry-After": "1"}),
    "500": lambda dice: answers(500),
    "black hole": lambda dice: black_hole,
    "drip": lambda dice: drip,
    "cut": lambda dice: streams(SPEECH[: dice.randrange(1, 16000)], cut=True),
    "garbage": lambda dice: answers(200, "<html>", content_type="text/html"),
}


def tells(message: object) -> Handler:
    async def react(say: Say, received: str | bytes) -> None:
        await say(message)

    return socket(react)


async def silent(say: Say, received: str | bytes) -> None:
    return None


EAR_FAULTS: dict[str, Callable[[random.Random], Handler]] = {
    "401": lambda dice: answers(401),
    "429": lambda dice: answers(429, headers={"Retry-After": "1"}),
    "500": lambda dice: answers(500),
    "black hole": lambda dice: black_hole,
    "silence": lambda dice: socket(silent),
    "cut": lambda dice: tells(None),
    "garbage": lambda dice: tells("no json"),
}


@dataclass
class Trial:
    fault: str
    silence: float
    """Seconds until the first sound, or from the end of the utterance to its final."""
    words: int = 0
    finals: list[Transcript] = field(default_factory=list)


async def provider(fault: str, handler: Handler, stack: AsyncExitStack) -> SpeechProvider:
    if fault == "refuse":
        return SpeechProvider("secret", "http://127.0.0.1:9")
    return await stack.enter_async_context(ProviderServer(handler).settings())


async def speak(fault: str, dice: random.Random, clock: OwnTime) -> Trial:
    async with AsyncExitStack() as stack:
        handler = VOICE_FAULTS.get(fault, lambda dice: black_hole)(dice)
        settings = await provider(fault, handler, stack)
        first = open_provider_voice(dice.choice(["azure", "deepgram"]), settings)
        spare = ScriptedVoice()
        voice = FailoverVoice(
            [Member("deepgram", CachedVoice(first)), Member("script", CachedVoice(spare), embedded=True)]
        )
        begun, silence, seconds = clock(), 0.0, 0.0
        async for chunk in voice.speak(TEXT, VoiceSettings()):
            silence = silence or clock() - begun
            seconds += len(chunk.pcm) / 16000
        await voice.close()
        spared = len(" ".join(spare.spoken).split())
        return Trial(fault, silence, spared + round(min(seconds - spare.seconds(" ".join(spare.spoken)), 3.2) * 3.1))


async def listen(fault: str, dice: random.Random, clock: OwnTime) -> Trial:
    async with AsyncExitStack() as stack:
        handler = EAR_FAULTS.get(fault, lambda dice: black_hole)(dice)
        settings = await provider(fault, handler, stack)
        first = open_provider_recognizer(dice.choice(["assemblyai", "cartesia", "deepgram", "elevenlabs"]), settings)
        spare = ScriptedRecognizer(["hello there"])
        recognizer = FailoverRecognizer([Member("deepgram", first), Member("script", spare, embedded=True)])
        trial = Trial(fault, 0.0)
        stream = await recognizer.open(trial.finals.append)
        stream.begin(RecognizerSettings())
        for _ in range(dice.randrange(5, 30)):
            stream.feed(tone(0.02))
            await asyncio.sleep(0.02)
        stream.finish()
        begun = clock()
        async with asyncio.timeout(60):
            while not any(transcript.final for transcript in trial.finals):
                stream.feed(bytes(320))
                await asyncio.sleep(0.02)
        trial.silence = clock() - begun
        await asyncio.sleep(0.1)
        trial.finals = [transcript for transcript in trial.finals if transcript.final]
        stream.close()
        await recognizer.close()
        return trial


async def trials(one: Callable[[str, random.Random, OwnTime], object], faults: list[str]) -> list[Trial]:
    """A hundred, twenty at a time."""
    dice = random.Random(5)
    found: list[Trial] = []
    with own_time() as clock:
        for start in range(0, 100, 20):
            chosen = [faults[number % len(faults)] for number in range(start, start + 20)]
            found += await asyncio.gather(*(one(fault, random.Random(dice.random()), clock) for fault in chosen))  # type: ignore
    return found


@pytest.mark.end_to_end
async def test_a_hundred_faults_of_voices() -> None:
    found = await trials(speak, ["refuse", *VOICE_FAULTS])
    # Every word was said, by the one or the other; by time alone the cut is known to a word.
    assert all(abs(trial.words - WORDS) <= 1 for trial in found if trial.fault != "drip"), found
    for trial in found:
        assert trial.silence < (2.5 if trial.fault == "black hole" else 1.0), trial


@pytest.mark.end_to_end
async def test_a_hundred_faults_of_recognisers() -> None:
    found = await trials(listen, ["refuse", *EAR_FAULTS])
    assert [len(trial.finals) for trial in found] == [1] * 100
    assert {trial.finals[0].text for trial in found} == {"hello there"}
    for trial in found:
        assert trial.silence < (3.0 if trial.fault in ("black hole", "silence") else 1.0), trial
