"""The voice's core side, on a real process that echoes sentences."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.local.engine import Engine
from callagent.speech.local.voice import LocalVoice
from callagent.speech.protocol import VoiceSettings

SETTINGS = VoiceSettings()


@pytest_asyncio.fixture
async def voice() -> AsyncIterator[LocalVoice]:
    voice = LocalVoice()
    voice.engine = Engine("tests.speech.local.echo_voice_process", voice.engine._load)
    await voice.engine.start()
    yield voice
    await voice.close()


async def said(voice: LocalVoice, text: str, settings: VoiceSettings = SETTINGS) -> list[str]:
    return [chunk.pcm.decode() async for chunk in voice.speak(text, settings)]


async def test_sentence_by_sentence(voice: LocalVoice) -> None:
    assert await said(voice, "One. Two! Three?") == ["One.", "Two!", "Three?"]
    assert await said(voice, "") == []


async def test_word_times_count_from_the_start_of_the_utterance(voice: LocalVoice) -> None:
    words = [word async for chunk in voice.speak("Sixteen bytes ab. Two.", SETTINGS) for word in chunk.words]
    assert [(word.word, word.start) for word in words] == [("Sixteen bytes ab.", 0.0), ("Two.", 17 / 16000)]


async def test_closing_the_iterator_stops_the_work(voice: LocalVoice) -> None:
    speaking = voice.speak("One. Two. Three. Four.", SETTINGS)
    assert (await anext(speaking)).pcm == b"One."
    await speaking.aclose()  # type: ignore[attr-defined]
    assert await said(voice, "Other.") == ["Other."]
    assert voice.engine._jobs.idle


async def test_a_failure_is_a_provider_error(voice: LocalVoice) -> None:
    with pytest.raises(ProviderError, match="no such sound"):
        await said(voice, "fail")
    assert await said(voice, "On we go.") == ["On we go."]


async def test_a_dead_process_is_a_provider_error_and_the_next_text_is_spoken(voice: LocalVoice) -> None:
    with pytest.raises(ProviderTimeout):
        await said(voice, "die")
    assert await said(voice, "On we go.") == ["On we go."]


async def test_other_languages_are_refused(voice: LocalVoice) -> None:
    with pytest.raises(ProviderRefused, match="speaks English, not 'fr-FR'"):
        await said(voice, "Bonjour.", VoiceSettings(language="fr-FR"))
