"""Recordings that cover a wait: the next words take their place, and nothing else does."""

from __future__ import annotations

import asyncio
import struct

import pytest

from callagent.audio import FRAME_BYTES
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns import BargedIn, FloorYielded, TurnManager, UtteranceFinished, UtteranceStarted
from tests.turns.fakes import LATENCY, Conversation, hold, near, now

LEVEL = 3000
RATE = 50 * FRAME_BYTES
"""Bytes a second."""


def music(seconds: float) -> bytes:
    return struct.pack("<h", LEVEL) * (round(seconds * RATE) // 2)


def is_music(frame: bytes | None) -> bool:
    return frame is not None and struct.unpack("<h", frame[:2])[0] == LEVEL


async def begin(call: Conversation) -> TurnManager:
    """A voice that needs 0.3 s to begin, and ten characters a second."""
    call.voice = ScriptedVoice(VoiceScript(seconds_per_character=0.1, delay=0.3))
    return await call.begin()


def started(call: Conversation) -> list[tuple[str, float]]:
    return [(event.utterance.text, event.at) for event in call.of(UtteranceStarted)]


def test_the_first_sound_of_the_answer_ends_music_and_the_answer_waits_for_nothing() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await begin(call)
        taker.say("[hold.wav]", pcm=music(60), cancellable=True)
        await asyncio.sleep(2)
        asked = now()
        taker.say("It is ready.")
        taker.listen()
        await asyncio.sleep(3)
        assert started(call) == [("[hold.wav]", near(0.02)), ("It is ready.", near(asked + 0.3))]
        hold_ended, answered = call.of(UtteranceFinished)
        assert hold_ended.at == near(asked + 0.3)
        # Music until the words are there, none beside or after them.
        assert all(is_music(frame) for frame in call.wire.heard_between(0.1, asked + 0.26))
        assert not any(is_music(frame) for frame in call.wire.heard_between(asked + 0.36, now()))
        (yielded,) = call.of(FloorYielded)
        assert yielded.heard_text == "[hold.wav] It is ready."
        assert yielded.at == near(answered.at)

    hold(scenario)


def test_a_recording_that_is_not_cancellable_is_played_to_its_end() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await begin(call)
        taker.say("[notice.wav]", pcm=music(3))
        await asyncio.sleep(1)
        taker.say("It is ready.")
        await asyncio.sleep(4)
        assert started(call) == [("[notice.wav]", near(0.02)), ("It is ready.", near(3.02))]
        assert all(is_music(frame) for frame in call.wire.heard_between(0.1, 2.96))

    hold(scenario)


def test_music_behind_words_is_not_heard_when_the_answer_comes_first() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await begin(call)
        taker.say("One moment.")
        taker.say("[hold.wav]", pcm=music(60), cancellable=True)
        await asyncio.sleep(0.8)
        taker.say("It is ready.")
        taker.listen()
        await asyncio.sleep(4)
        assert [text for text, _ in started(call)] == ["One moment.", "It is ready."]
        assert not any(map(is_music, call.wire.heard))
        assert [event.heard_text for event in call.of(FloorYielded)] == ["One moment. It is ready."]

    hold(scenario)


def test_an_answer_that_cannot_be_said_ends_no_music() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(failing=("It is ready",)))
        taker = await call.begin()
        taker.say("[hold.wav]", pcm=music(3), cancellable=True)
        await asyncio.sleep(1)
        taker.say("It is ready.")
        await asyncio.sleep(3)
        assert all(is_music(frame) for frame in call.wire.heard_between(0.1, 2.96))

    hold(scenario)


def test_fillers_wait_for_the_end_of_music_and_go_on_after_it() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await begin(call)
        taker.function_started(1, LATENCY)
        taker.say("[hold.wav]", pcm=music(4), cancellable=True)
        await asyncio.sleep(8)
        assert [text for text, _ in started(call)][:2] == ["[hold.wav]", "One moment"]
        assert started(call)[1][1] == near(4.02 + 0.3)

    hold(scenario)


@pytest.mark.parametrize("buffered", [0, 5])
def test_the_caller_interrupts_music_and_its_place_is_not_taken_then(buffered: int) -> None:
    async def scenario(call: Conversation) -> None:
        call.wire._buffered = buffered
        taker = await begin(call)
        taker.say("[hold.wav]", pcm=music(60), cancellable=True)
        await asyncio.sleep(2)
        await call.speaks(1.0, "stop it")
        await asyncio.sleep(0.2)
        assert len(call.of(BargedIn)) == 1
        assert not any(map(is_music, call.wire.heard_between(now() - 0.5, now())))

    hold(scenario)


def test_an_answer_that_comes_while_a_noise_holds_music_is_what_goes_on() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await begin(call)
        taker.say("[hold.wav]", pcm=music(60), cancellable=True)
        await asyncio.sleep(2)
        noise = asyncio.create_task(call.speaks(1.0))
        await asyncio.sleep(0.5)
        taker.say("It is ready.")
        taker.listen()
        await noise
        silent_until = now()
        await asyncio.sleep(4)
        assert [text for text, _ in started(call)] == ["[hold.wav]", "It is ready."]
        assert not any(map(is_music, call.wire.heard_between(silent_until, now())))
        assert len(call.of(FloorYielded)) == 1

    hold(scenario)
