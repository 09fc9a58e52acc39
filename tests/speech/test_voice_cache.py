"""What was said once is not made again."""

from __future__ import annotations

import pytest

from callagent.errors import ProviderError
from callagent.speech import CachedVoice, SpeechChunk, VoiceSettings
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run

SETTINGS = VoiceSettings()


async def said(voice: CachedVoice, text: str, settings: VoiceSettings = SETTINGS) -> list[SpeechChunk]:
    return [chunk async for chunk in voice.speak(text, settings)]


def test_the_second_time_comes_from_memory_and_is_the_same() -> None:
    inner = ScriptedVoice(VoiceScript(delay=5))
    voice = CachedVoice(inner)
    first = run(said(voice, "For how many?"))
    assert run(said(voice, "For how many?")) == first
    assert [word.word for chunk in first for word in chunk.words] == ["For", "how", "many?"]
    assert inner.spoken == ["For how many?"]


def test_another_speed_is_another_utterance() -> None:
    inner = ScriptedVoice()
    voice = CachedVoice(inner)
    slow, fast = run(said(voice, "Hello.")), run(said(voice, "Hello.", VoiceSettings(speed=2)))
    assert slow != fast
    assert inner.spoken == ["Hello.", "Hello."]


def test_prepared_texts_need_no_voice() -> None:
    inner = ScriptedVoice()
    voice = CachedVoice(inner)
    run(voice.prepare(["Welcome.", "One moment."], SETTINGS))
    run(said(voice, "One moment."))
    assert inner.spoken == ["Welcome.", "One moment."]


def test_the_oldest_is_forgotten_when_memory_is_full() -> None:
    inner = ScriptedVoice()
    size = round(inner.seconds("aaaa") * 16000)
    voice = CachedVoice(inner, limit=2 * size)
    for text in ["aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"]:
        run(said(voice, text))
    assert inner.spoken == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert voice.size == 2 * size


def test_what_is_longer_than_the_memory_is_not_kept() -> None:
    voice = CachedVoice(ScriptedVoice(), limit=100)
    run(said(voice, "a long greeting"))
    assert voice.size == 0


def test_an_utterance_broken_off_is_not_kept() -> None:
    inner = ScriptedVoice(VoiceScript(failing=("wrong",), fails_after=1))
    voice = CachedVoice(inner)

    async def interrupted() -> None:
        speaking = voice.speak("one two three", SETTINGS)
        await anext(speaking)
        await speaking.aclose()  # type: ignore[attr-defined]

    run(interrupted())
    with pytest.raises(ProviderError):
        run(said(voice, "all wrong"))
    assert voice.size == 0
    assert len(run(said(voice, "one two three"))) == 3


def test_closing_forgets() -> None:
    voice = CachedVoice(ScriptedVoice())
    run(said(voice, "Hello."))
    run(voice.close())
    assert voice.size == 0
