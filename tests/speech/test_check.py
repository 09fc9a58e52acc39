"""The self-test reports what was heard and how long it took."""

from __future__ import annotations

import pytest

from callagent.errors import ProviderTimeout
from callagent.speech import CachedVoice
from callagent.speech.scripted import ScriptedRecognizer, ScriptedUtterance, ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run
from tests.speech.engine_check import SENTENCE, SpeechCheck, check_speech


def test_the_figures_are_of_the_engines() -> None:
    recognizer = ScriptedRecognizer([ScriptedUtterance("a table for two", delay=0.3, partials=("a",))])
    voice = CachedVoice(ScriptedVoice(VoiceScript(seconds_per_character=0.1, delay=0.2, chunk_delay=0.1)))
    result = run(check_speech(recognizer, voice, "one two"))
    assert result == SpeechCheck("one two", "a table for two", *(pytest.approx(n) for n in (0.2, 0.8, 0.3)))


def test_a_recogniser_that_owes_its_final_is_an_error() -> None:
    recognizer = ScriptedRecognizer([ScriptedUtterance("never", delay=1000)])
    with pytest.raises(ProviderTimeout):
        run(check_speech(recognizer, ScriptedVoice()))


@pytest.mark.local
async def test_the_embedded_engines_understand_each_other() -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("hibari")
    from callagent.speech import open_recognizer, open_voice

    recognizer, voice = await open_recognizer("local"), await open_voice("local")
    try:
        result = await check_speech(recognizer, voice)
    finally:
        await recognizer.close()
        await voice.close()
    assert result.heard.lower().split() == SENTENCE.lower().split()
    assert 2 < result.audio < 8
