"""The voice's core side, on a real process that echoes sentences; its process side: word times and silence."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.local import inference
from callagent.speech.local.inference import Engine
from callagent.speech.local.voice import LocalVoice, load_voice, word_times
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
    assert voice.engine._jobs.is_idle


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


def test_a_word_gets_time_by_its_sounds() -> None:
    times = word_times("yes certainly", "jˈɛs sˈɜɹtnli.", 1.0, 2.0)
    assert [word for word, _, _ in times] == ["yes", "certainly"]
    assert times[0][1] == 1.0
    assert times[0][2] == times[1][1] == pytest.approx(1 + 3.5 / 11)
    assert times[1][2] == pytest.approx(2.0)


def test_where_the_sounds_are_not_word_by_word_the_letters_count() -> None:
    times = word_times("$9.99 please", "nˈIn dˈɑləɹz ænd nˈIndi nˈIn sˈɛnts plˈiz.", 0.0, 1.0)
    assert [word for word, _, _ in times] == ["$9.99", "please"]
    assert times[-1][2] == pytest.approx(1.0)


def test_a_comma_takes_time() -> None:
    without, with_comma = (word_times(text, text, 0.0, 1.0) for text in ("one two", "one, two"))
    assert with_comma[0][2] > without[0][2]


def test_no_words_no_times() -> None:
    assert word_times("", "", 0.0, 0.0) == ()


@pytest.mark.local
def test_the_engine_speaks_with_little_silence_at_the_ends() -> None:
    pytest.importorskip("hibari")
    serve = load_voice(inference.LoadVoice())
    spoken = serve(inference.Speak(1, "Certainly, for how many people?"))
    assert isinstance(spoken, inference.Spoken)
    seconds = len(spoken.pcm) / 16000
    assert 1.0 < seconds < 3.0
    assert spoken.words[0][1] <= 0.05
    assert spoken.words[-1][2] >= seconds - 0.25
    faster = serve(inference.Speak(2, "Certainly, for how many people?", "", 1.5))
    assert isinstance(faster, inference.Spoken)
    assert len(faster.pcm) < 0.8 * len(spoken.pcm)
    again = serve(inference.Speak(3, "Certainly, for how many people?"))
    assert isinstance(again, inference.Spoken)
    assert again.pcm == spoken.pcm


@pytest.mark.local
def test_only_voices_that_are_here_are_spoken_with() -> None:
    pytest.importorskip("hibari")
    serve = load_voice(inference.LoadVoice())
    with pytest.raises(ValueError, match="no voice 'nobody'; known here: heart"):
        serve(inference.Speak(1, "Hello.", "nobody"))
    silent = serve(inference.Speak(2, "☃"))
    assert isinstance(silent, inference.Spoken)
