"""Where no voice can speak, a recording does, once in a call."""

from __future__ import annotations

import audioop

from callagent.errors import ProviderError
from callagent.speech import ApologisingVoice, SpeechChunk, VoiceSettings
from callagent.speech.absent import NoVoice
from callagent.speech.call_voice import RECORDING
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run
from callagent.turns.playout import heard_text


async def said(voice: ApologisingVoice, text: str) -> tuple[list[SpeechChunk], bool]:
    """The chunks, and whether it failed."""
    chunks: list[SpeechChunk] = []
    try:
        async for chunk in voice.speak(text, VoiceSettings()):
            chunks.append(chunk)
    except ProviderError:
        return chunks, True
    return chunks, False


def test_the_recording_takes_the_place_of_the_first_utterance() -> None:
    voice = ApologisingVoice(NoVoice())
    chunks, failed = run(said(voice, "Hello."))
    assert failed
    assert len(chunks) == 1
    assert 4 < len(chunks[0].pcm) / 16000 < 8
    assert audioop.rms(chunks[0].pcm, 2) > 500
    assert run(said(voice, "Again.")) == ([], True)


def test_what_was_to_be_said_does_not_count_as_heard() -> None:
    [chunk], _ = run(said(ApologisingVoice(NoVoice()), "Hello there."))
    seconds = len(chunk.pcm) / 16000
    assert [word.word for word in chunk.words] == ["Hello"]
    assert heard_text("Hello there.", chunk.words, seconds, None) == ""


def test_an_utterance_that_broke_off_is_not_followed_by_it() -> None:
    voice = ApologisingVoice(ScriptedVoice(VoiceScript(failing=("two",), fails_after=1)))
    chunks, failed = run(said(voice, "one two"))
    assert failed
    assert len(chunks) == 1
    assert not voice.apologised


def test_a_voice_that_speaks_is_left_alone() -> None:
    assert len(run(said(ApologisingVoice(ScriptedVoice()), "one two"))[0]) == 2


def test_the_recording_ships_as_telephone_audio() -> None:
    assert 30_000 < RECORDING.stat().st_size < 60_000
