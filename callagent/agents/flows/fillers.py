"""Phrases for the wait for the model: `filler_phrases` of the voice, or the older `filler_utterances`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from callagent.agents.actions import DelayResponse, LatencyControl
from callagent.agents.flows.experimental import Experimental
from callagent.agents.kernel import Reader

INITIAL_INTERVAL, INTERVAL = 2.5, 5.0


@dataclass(frozen=True, slots=True)
class FillerPhrases:
    phrases: tuple[str, ...] = ()
    randomize: bool = True
    initial_interval: float = INITIAL_INTERVAL
    """Seconds from the request to the first phrase."""
    interval: float = INTERVAL
    """Seconds of silence after each."""

    def control(self, choice: random.Random) -> LatencyControl | None:
        """For one wait; None: nothing is said."""
        if not self.phrases:
            return None
        phrases = list(self.phrases)
        if self.randomize:
            choice.shuffle(phrases)
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
        initial_interval=section.number("initial_interval_seconds", INITIAL_INTERVAL) or INITIAL_INTERVAL,
        interval=section.number("interval_seconds", INTERVAL) or INTERVAL,
    )


def filler_phrases(configured: FillerPhrases, experimental: Experimental, language: str | None) -> FillerPhrases:
    """Those of the language; `voice/configuration.yaml` wins over the older form."""
    section = experimental.section("filler_utterances")
    if configured.phrases or section.get("is_enabled") is not True:
        return configured
    interval = _seconds(section.get("interval_sec"), INTERVAL)
    return FillerPhrases(
        phrases=tuple(_in_language(section.get("utterances"), language)),
        randomize=section.get("randomize") is True,
        initial_interval=_seconds(section.get("initial_interval_sec"), interval),
        interval=interval,
    )


def _in_language(utterances: Any, language: str | None) -> Iterator[str]:
    if isinstance(utterances, dict):
        code = language or ""
        utterances = utterances.get(code) or utterances.get(code.split("-")[0])
    yield from (str(each) for each in utterances or () if str(each).strip())


def _seconds(value: Any, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else default
