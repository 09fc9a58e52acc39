"""Which languages an engine hears or speaks, where that is known before it is asked."""

from __future__ import annotations

from callagent.speech.providers import Languages, SpeechProvider, declarations, primary_language

ENGLISH = frozenset({"en"})


def recognizer_languages(name: str, settings: SpeechProvider) -> Languages:
    """Return the languages that the recogniser `name`, as the settings give it with or without a model, hears."""
    provider, _, model = name.partition("/")
    if provider == "local":
        return ENGLISH
    declared = declarations().get(provider)
    return declared.recognizer_languages(model or settings.model) if declared else None


def voice_languages(name: str, settings: SpeechProvider) -> Languages:
    """Return the languages of the voice `name`; of voices that carry a language in their name, that one."""
    provider, _, model = name.partition("/")
    if provider == "local":
        return ENGLISH
    declared = declarations().get(provider)
    return declared.voice_languages(model or settings.model, settings.voice) if declared else None


def speaks(languages: Languages, language: str) -> bool:
    """Tell whether `language` is among `languages`, or may be."""
    return languages is None or primary_language(language) in languages


def is_known(name: str) -> bool:
    """Tell whether `name` is a provider that has voices."""
    declared = declarations().get(name)
    return name == "local" or bool(declared and declared.voice)
