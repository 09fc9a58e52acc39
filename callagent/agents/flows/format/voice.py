"""The documents of `voice/`: greeting, speech recognition, response control, filler phrases, background sound."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from callagent.agents.actions import DelayResponse, LatencyControl, SetBackground
from callagent.agents.flows.format.experimental import DEFAULT_FILLER_INTERVAL, ExperimentalSettings
from callagent.agents.kernel import Pattern, Reader, expand_groups
from callagent.json_values import JsonObject, number_at

DEFAULT_INITIAL_INTERVAL = 2.5


@dataclass(frozen=True, slots=True)
class FillerPhrases:
    phrases: tuple[str, ...] = ()
    randomize: bool = True
    initial_interval: float = DEFAULT_INITIAL_INTERVAL
    """Seconds from the request to the first phrase."""
    interval: float = DEFAULT_FILLER_INTERVAL
    """Seconds of silence after each phrase."""

    def latency_control(self, generator: random.Random) -> LatencyControl | None:
        """Return the fillers of one wait; None: there are none."""
        if not self.phrases:
            return None
        phrases = list(self.phrases)
        if self.randomize:
            # Shuffled, so that each phrase is said once before any is repeated.
            generator.shuffle(phrases)
        responses = tuple(DelayResponse(phrase, 0.0) for phrase in phrases)
        return LatencyControl(self.initial_interval, self.interval, responses)


NO_FILLERS = FillerPhrases()


def load_filler_phrases(root: Reader) -> FillerPhrases:
    section = root.map("filler_phrases")
    if not section.flag("enabled"):
        return NO_FILLERS
    return FillerPhrases(
        phrases=section.texts("phrases"),
        randomize=section.flag("randomize", True),
        initial_interval=section.number("initial_interval_seconds", DEFAULT_INITIAL_INTERVAL)
        or DEFAULT_INITIAL_INTERVAL,
        interval=section.number("interval_seconds", DEFAULT_FILLER_INTERVAL) or DEFAULT_FILLER_INTERVAL,
    )


def filler_phrases(
    configured: FillerPhrases, experimental: ExperimentalSettings, language: str | None
) -> FillerPhrases:
    """Return the filler phrases of a language; `voice/configuration.yaml` wins over the older form."""
    older = experimental.older_fillers
    if configured.phrases or older is None:
        return configured
    return FillerPhrases(older.in_language(language), older.randomize, older.initial_interval, older.interval)


_STYLES = {"swift": 0.4, "balanced": 0.7}
"""Legacy `interaction_style` -> seconds of silence that end the caller's turn; 1 s for every other style."""


@dataclass(frozen=True, slots=True)
class Greeting:
    message: str = ""
    language: str = ""
    style_prompt: str = ""
    disclaimer: str = ""
    """Empty: none, or not enabled."""


@dataclass(frozen=True, slots=True)
class AsrSettings:
    barge_in: bool | None = None
    barge_in_on_first_turn: bool = False
    speech_end: float | None = None
    """Seconds of silence that end the caller's turn."""
    max_interruptions: int = 0
    """Barge-ins of one call after which the agent is not interrupted any more; 0: no limit."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One expression of a transcript correction."""

    pattern: Pattern
    replacement: str
    whole: bool
    """True: the expression matches the entire transcript and replaces it."""

    def apply(self, text: str) -> str:
        if not self.whole:
            return self.pattern.substitute(self.replacement, text)
        # A pattern that matches only a part must not replace the whole transcript.
        match = self.pattern.fullmatch(text.strip())
        return expand_groups(match, self.replacement) if match else text


@dataclass(frozen=True, slots=True)
class Pronunciation:
    pattern: Pattern
    replacement: str
    language: str


@dataclass(frozen=True, slots=True)
class PhraseFilter:
    """Phrases at which the agent's answer is cut; then `function`, if any, is called."""

    name: str
    patterns: tuple[Pattern, ...]
    say_phrase: bool
    """Whether the phrase itself is still spoken."""
    language: str
    function: str | None


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    greeting: Greeting = Greeting()
    asr: AsrSettings = AsrSettings()
    keyphrases: tuple[str, ...] = ()
    corrections: tuple[Correction, ...] = ()
    pronunciations: tuple[Pronunciation, ...] = ()
    filters: tuple[PhraseFilter, ...] = ()
    fillers: FillerPhrases = NO_FILLERS
    background: SetBackground | None = None


def load_greeting(root: Reader) -> Greeting:
    greeting, disclaimer = root.map("greeting"), root.map("disclaimer_messages")
    if "greeting" in root:
        greeting.required_text("language_code")
        if "welcome_message" not in greeting:
            greeting.error("'greeting.welcome_message' is required; it may be empty.", "welcome_message")
    return Greeting(
        message=greeting.text("welcome_message"),
        language=greeting.text("language_code"),
        style_prompt=root.map("style_prompt").text("prompt"),
        disclaimer=disclaimer.text("message") if disclaimer.flag("enabled") else "",
    )


def load_asr_settings(root: Reader) -> AsrSettings:
    delay = root.number("speech_end_delay_ms")
    if delay is not None and not 200 <= delay <= 1500:
        root.error("'speech_end_delay_ms' should be between 200 and 1500.", "speech_end_delay_ms")
    style = root.text("interaction_style")
    speech_end = delay / 1000 if delay else (_STYLES.get(style, 1.0) if style else None)
    # The older form: `barge_in: true` in place of a map.
    if isinstance(root.raw("barge_in"), bool):
        return AsrSettings(root.flag("barge_in"), False, speech_end)
    barge_in = root.map("barge_in")
    enabled = barge_in.flag("enabled", True) if "barge_in" in root else None
    maximum = int(barge_in.number("max_per_call") or 0)
    return AsrSettings(enabled, barge_in.flag("allow_on_first_turn"), speech_end, max(0, maximum))


def load_keyphrases(root: Reader) -> tuple[str, ...]:
    """Read the phrases that the recogniser should expect."""
    # Recognisers take a bounded number of phrases: the most important ones come first.
    rank = {"maximum": 0, "boosted": 1, "default": 2}
    found: dict[str, tuple[int, str]] = {}
    for reader in root.maps("keyphrases"):
        phrase, level = str(reader.raw("keyphrase") or ""), reader.text("level", "default").lower() or "default"
        if level not in rank:
            reader.error(f"Unknown level '{level}'. Use default, boosted or maximum.", "level")
        if phrase.lower() in found:
            reader.warning(f"Keyphrase '{phrase}' is listed twice. The last one counts; remove the other.", "keyphrase")
        found[phrase.lower()] = (rank.get(level, 2), phrase)
    return tuple(phrase for _, phrase in sorted(found.values(), key=lambda each: each[0]) if phrase)


def load_corrections(root: Reader) -> tuple[Correction, ...]:
    found = []
    for correction in root.maps("corrections"):
        for reader in correction.maps("regular_expressions"):
            pattern = _compile_pattern(reader, "regular_expression", ignore_case=True)
            kind = reader.text("replacement_type", "full") or "full"
            if kind not in ("full", "partial", "substring"):
                reader.error(f"Unknown replacement_type '{kind}'. Use full or partial.", "replacement_type")
            if pattern:
                found.append(Correction(pattern, str(reader.raw("replacement") or ""), kind == "full"))
    return tuple(found)


def load_pronunciations(root: Reader) -> tuple[Pronunciation, ...]:
    found = []
    for reader in root.maps("pronunciations"):
        pattern = _compile_pattern(reader, "regex", ignore_case=not reader.flag("case_sensitive"))
        if pattern:
            replacement = str(reader.raw("replacement") or "")
            found.append(Pronunciation(pattern, replacement, reader.text("language_code")))
    return tuple(found)


def load_filters(root: Reader) -> tuple[PhraseFilter, ...]:
    found = []
    for reader in root.maps("phrase_filtering"):
        patterns = []
        for text in reader.texts("regular_expressions"):
            try:
                patterns.append(Pattern(text))
            except ValueError as error:
                reader.error(f"Not a valid regular expression: '{text}': {error}.", "regular_expressions")
        found.append(
            PhraseFilter(
                name=reader.text("name"),
                patterns=tuple(patterns),
                say_phrase=reader.flag("say_phrase"),
                language=reader.text("language_code"),
                function=reader.text("function") or None,
            )
        )
    return tuple(found)


def correct(corrections: Sequence[Correction], text: str) -> str:
    """Apply the transcript corrections in order."""
    for correction in corrections:
        text = correction.apply(text)
    return text


def pronounce(rules: Sequence[Pronunciation], text: str, language: str | None) -> str:
    """Return the text as the voice should read it; transcript and history keep the original."""
    for rule in rules:
        if same_language(rule.language, language):
            text = rule.pattern.substitute(rule.replacement, text)
    return text


def same_language(wanted: str, current: str | None) -> bool:
    """Return whether a rule for the language `wanted` (empty: all) holds for `current`; `en` covers every `en-…`."""
    if not wanted or not current:
        return True
    wanted, current = wanted.lower(), current.lower()
    # A rule for `en-GB` covers neither a call in `en-US` nor one in `en`.
    return wanted == current or ("-" not in wanted and current.split("-")[0] == wanted)


def _compile_pattern(reader: Reader, key: str, *, ignore_case: bool) -> Pattern | None:
    try:
        return Pattern(str(reader.raw(key) or ""), ignore_case=ignore_case)
    except ValueError as error:
        reader.error(f"Not a valid regular expression: {error}.", key)
        return None


PRESET_LOUDNESS, TRACK_LOUDNESS = -50.0, -40.0
"""Defaults in decibels of full scale: for a `preset`, and for a `background_track`."""
MIN_LOUDNESS, MAX_LOUDNESS = -70.0, -20.0


def read_background(track: JsonObject) -> SetBackground:
    """Read `{"name", "loudness"}`; a loudness outside the permitted range becomes the nearest permitted one."""
    loudness = number_at(track, "loudness", TRACK_LOUDNESS)
    return SetBackground(str(track.get("name") or ""), min(MAX_LOUDNESS, max(MIN_LOUDNESS, loudness)))


def load_background(root: Reader) -> SetBackground | None:
    """Read `background_ambience` of `voice/configuration.yaml`; None: not enabled."""
    section = root.map("background_ambience")
    if not section.flag("enabled") or not section.text("preset"):
        return None
    return read_background({"name": section.text("preset"), "loudness": section.number("loudness", PRESET_LOUDNESS)})


def opening_background(configured: SetBackground | None, experimental: ExperimentalSettings) -> SetBackground | None:
    """Return the background sound that a call begins with; None: silence."""
    track = experimental.section("background_track")
    return configured or (read_background(track) if track.get("name") else None)
