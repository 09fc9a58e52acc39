from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from callagent.speech.protocol import SpeechChunk, VoiceSettings
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns import (
    CallerTurnEnded,
    FloorState,
    FloorYielded,
    SpeechFailed,
    UtteranceFinished,
    UtteranceKind,
)
from callagent.turns.agent_speech import MAX_WAITING_UTTERANCES
from tests.turns.fakes import Conversation, hold, near, now


def test_utterances_are_said_in_order_and_the_first_audio_is_noted() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["hello"]
        await call.speaks(0.5)
        await asyncio.sleep(1.5)
        for text in ("One.", "Two.", "Three."):
            taker.say(text)
        taker.listen()
        await taker.played_out()
        assert [event.utterance.text for event in call.of(UtteranceFinished)] == ["One.", "Two.", "Three."]
        assert call.of(FloorYielded)[-1].heard_text == "One. Two. Three."
        timings = call.of(CallerTurnEnded)[0].timings
        assert timings is taker.timings
        assert timings.first_audio == near(2.02)
        assert timings.response_delay == near(1.52)
        assert timings.playout_ended == near(now())

    hold(scenario)


def test_a_failing_voice_is_told_and_the_turn_goes_on() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(failing=("broken",)))
        taker = await call.begin()
        taker.say("broken")
        taker.say("whole")
        taker.listen()
        await asyncio.sleep(2)
        assert [event.utterance.text for event in call.of(SpeechFailed)] == ["broken"]
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_hanging_voice_is_given_up() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(delay=60))
        taker = await call.begin()
        taker.say("late")
        taker.listen()
        await asyncio.sleep(6)
        assert "5 s" in call.of(SpeechFailed)[0].detail
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_slow_voice_makes_gaps_that_are_counted() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(seconds_per_character=0.05, chunk_delay=1.0))
        taker = await call.begin()
        taker.say("one two three")
        taker.listen()
        await asyncio.sleep(5)
        assert taker.underruns == 2
        assert call.of(FloorYielded)

    hold(scenario)


def test_a_recording_is_played_as_it_is() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say("the tune", kind=UtteranceKind.RECORDING, pcm=b"\1\2" * 400)
        taker.listen()
        await asyncio.sleep(1)
        played = b"".join(frame for frame in call.wire.heard if frame)
        assert played == (b"\1\2" * 400).ljust(960, b"\0")
        assert call.voice.spoken == []

    hold(scenario)


def test_a_voice_that_breaks_costs_its_utterance() -> None:
    class Broken(ScriptedVoice):
        async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
            if text == "broken":
                raise ZeroDivisionError
            async for chunk in super().speak(text, settings):
                yield chunk

    async def scenario(call: Conversation) -> None:
        call.voice = Broken()
        taker = await call.begin()
        for text in ("broken", "whole", "broken"):
            taker.say(text)
        taker.listen()
        await asyncio.sleep(3)
        assert [event.detail for event in call.of(SpeechFailed)] == ["ZeroDivisionError()"] * 2
        assert call.of(FloorYielded)[0].heard_text == "whole"

    hold(scenario)


def test_an_agent_that_never_stops_talking_is_told() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        for number in range(MAX_WAITING_UTTERANCES + 1):
            taker.say(f"{number}")
        assert [event.utterance.text for event in call.of(SpeechFailed)] == [str(MAX_WAITING_UTTERANCES)]

    hold(scenario)


def test_the_voice_can_be_changed_between_utterances() -> None:
    async def scenario(call: Conversation) -> None:
        other = ScriptedVoice()
        taker = await call.begin()
        taker.say("one")
        await taker.played_out()
        taker.set_voice(VoiceSettings(name="other"), other)
        taker.say("two")
        await taker.played_out()
        assert (call.voice.spoken, other.spoken) == (["one"], ["two"])

    hold(scenario)
