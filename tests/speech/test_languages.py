from __future__ import annotations

import pytest

from callagent.config import SpeechSettings
from callagent.errors import ConfigError
from callagent.server.speech import check_languages
from callagent.speech import recognizer_languages, voice_languages
from callagent.speech.providers import SpeechProvider

ENGLISH = frozenset({"en"})


def test_what_recognisers_know() -> None:
    assert recognizer_languages("local", SpeechProvider()) == ENGLISH
    assert recognizer_languages("deepgram/flux-general-en", SpeechProvider()) == ENGLISH
    assert "fr" in (recognizer_languages("deepgram", SpeechProvider(model="flux-general-multi")) or ())
    assert recognizer_languages("deepgram/nova-3", SpeechProvider()) is None
    assert recognizer_languages("script:x.yaml", SpeechProvider()) is None


def test_what_voices_know_by_their_names() -> None:
    assert voice_languages("deepgram", SpeechProvider()) == ENGLISH
    assert voice_languages("deepgram/aura-2-celeste-es", SpeechProvider()) == {"es"}
    assert voice_languages("azure", SpeechProvider()) == ENGLISH
    assert voice_languages("azure", SpeechProvider(voice="de-DE-KatjaNeural")) == {"de"}
    assert voice_languages("azure", SpeechProvider(voice="en-US-AvaMultilingualNeural")) is None
    assert voice_languages("google", SpeechProvider()) is None
    assert voice_languages("elevenlabs/eleven_turbo_v2", SpeechProvider()) == ENGLISH


def test_the_preferred_engines_have_to_know_the_language() -> None:
    check_languages(SpeechSettings())
    with pytest.raises(ConfigError, match="'de-DE' is unknown to the recognizer 'local'"):
        check_languages(SpeechSettings(language="de-DE"))
    with pytest.raises(ConfigError, match="'de-DE' is unknown to the voice 'deepgram'"):
        check_languages(SpeechSettings(language="de-DE", recognizer=("deepgram",), voice=("deepgram",)))
    spare = SpeechSettings(language="de-DE", recognizer=("deepgram", "local"), voice=("elevenlabs", "local"))
    check_languages(spare)


def test_a_voice_that_stands_for_another_is_of_a_known_provider() -> None:
    like = {"provider": "elevenlabs", "name": "x", "instead": {"azzure": "y"}}
    with pytest.raises(ConfigError, match="'azzure' is not a provider of voices"):
        check_languages(SpeechSettings.model_validate({"voices": [like]}))
