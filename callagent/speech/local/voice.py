"""The embedded voice: hibari's `heart`, American English, sentence by sentence, in a process of its own.

`load_voice` runs in the process, which is started as `python -m callagent.speech.local.voice FD`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.local import inference, weights
from callagent.speech.local.inference import Engine, Job, Urgency
from callagent.speech.protocol import SpeechChunk, VoiceSettings, WordTime, primary_language
from callagent.speech.text_processing import split_sentences

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SENTENCE_SECONDS = 10.0
"""Time for one sentence."""


class LocalVoice:
    """hibari in a process of its own, for all calls. Word times are estimated from the sounds of each word."""

    def __init__(self) -> None:
        self.engine = Engine("callagent.speech.local.voice", inference.LoadVoice())

    async def start(self) -> None:
        """Return when the voice is loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_voice()
        await self.engine.start()

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        if primary_language(settings.language) != "en":
            raise ProviderRefused(f"the voice 'local' speaks English, not '{settings.language}'")
        sentences = split_sentences(text)
        # One sentence is synthesised ahead of the one that is heard: speech has no gaps, and a barge-in wastes little.
        requests = [self._request(sentence, settings, Urgency.NOW) for sentence in sentences[:1]]
        start = 0.0
        try:
            for sentence in [*sentences[1:], ""]:
                if sentence:
                    requests.append(self._request(sentence, settings, Urgency.SOON))
                # The empty sentence at the end only fetches the last answer; an empty text has none.
                if not requests:
                    return
                spoken = _expect_spoken(await requests[0][1])
                del requests[0]
                if spoken.pcm:
                    yield _chunk(spoken, start)
                start += len(spoken.pcm) / 2 / SAMPLE_RATE
        finally:
            for job, _ in requests:
                self.engine.cancel(job)

    async def close(self) -> None:
        await self.engine.close()

    def _request(
        self, sentence: str, settings: VoiceSettings, urgency: Urgency
    ) -> tuple[Job, asyncio.Future[inference.Answer | None]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[inference.Answer | None] = loop.create_future()

        def on_answer(spoken: inference.Answer | None) -> None:
            if not answer.done():
                answer.set_result(spoken)

        job = Job(
            urgency,
            lambda number: inference.Speak(number, sentence, settings.name, settings.speed),
            on_answer,
            loop.time() + SENTENCE_SECONDS,
        )
        self.engine.submit(job)
        return job, answer


def _expect_spoken(answer: inference.Answer | None) -> inference.Spoken:
    """Return the answer if it has audio. Raises `ProviderError` for any other answer and for none."""
    match answer:
        case inference.Spoken():
            return answer
        case inference.Failed(reason=reason):
            raise ProviderError(f"the voice 'local' failed: {reason}")
        case _:
            raise ProviderTimeout("the voice 'local' did not answer in time, or its process died")


def _chunk(spoken: inference.Spoken, start: float) -> SpeechChunk:
    """Return a sentence as a chunk of the utterance, in which it begins at `start` seconds."""
    return SpeechChunk(spoken.pcm, tuple(WordTime(word, start + a, start + b) for word, a, b in spoken.words))


# What follows runs in the process of the voice.

MIN_AUDIBLE = 0.004
"""Least amplitude of a sound: -48 dBFS."""
LEAD_SECONDS = 0.03
"""Silence kept before the first sound; the engine leaves 0.2 s, which a caller would wait for."""
TRAIL_SECONDS = 0.2
"""Silence kept after the last sound: the pause between two sentences."""
MIN_SPEED, MAX_SPEED = 0.5, 2.0
PAUSES = {",": 4.0, ";": 5.0, ":": 5.0, "—": 5.0, ".": 5.0, "…": 5.0, "!": 5.0, "?": 5.0}
"""Length of the pause at a punctuation mark, counted in speech sounds."""
SILENT_SIGNS = "ˈˌː"
"""Signs of stress and length in the phonetic alphabet, which are no sounds."""


class HibariEngine(Protocol):
    """The part of hibari's engine that is used here; the package has no types."""

    sample_rate: int

    def phonemize(self, text: str) -> Sequence[str]: ...

    def from_phonemes(self, phonemes: str, speed: float, seed: int) -> NDArray[np.float32]: ...


def load_voice(settings: inference.LoadVoice) -> inference.Serve:
    """Load the default voice, and return the function that answers requests; it loads other voices on demand."""
    from hibari import Hibari
    from hibari.voices import DEFAULT, VOICES, voice_path

    engines: dict[str, HibariEngine] = {}

    def engine_of(name: str) -> HibariEngine:
        if name not in engines:
            if name not in VOICES:
                raise ValueError(f"no voice '{name}'; known here: {', '.join(VOICES)}")
            # A server may have no internet, and a call cannot wait for a download.
            engines[name] = Hibari(model=voice_path(name, download_missing=False), voice=name)
        return engines[name]

    def serve(request: inference.Request) -> inference.Answer:
        if not isinstance(request, inference.Speak):
            raise ValueError(f"a voice cannot answer {type(request).__name__}")
        return synthesize(engine_of(request.voice or DEFAULT), request)

    # The first sentence allocates the memory that later ones reuse.
    serve(inference.Speak(0, "Good morning. How can I help you?"))
    return serve


def synthesize(engine: HibariEngine, request: inference.Speak) -> inference.Spoken:
    """Synthesise a sentence: determine its speech sounds, then return their audio at 8 kHz with the times of words."""
    import numpy as np
    import soxr

    phonemes = engine.phonemize(request.text)
    speed = min(max(request.speed, MIN_SPEED), MAX_SPEED)
    # With a fixed seed the same text sounds the same each time.
    parts = [engine.from_phonemes(part, speed, 0) for part in phonemes]
    if not parts:
        return inference.Spoken(request.number, b"")
    audio = soxr.resample(np.concatenate(parts), engine.sample_rate, SAMPLE_RATE)
    audio, first, last = _trim(audio)
    pcm = (np.clip(audio, -1.0, 1.0) * 32767).astype("<i2").tobytes()
    return inference.Spoken(request.number, pcm, word_times(request.text, " ".join(phonemes), first, last))


def _trim(audio: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, float]:
    """Return the audio with little silence at its ends, and the seconds at which sound begins and ends in it."""
    import numpy as np

    audible = np.flatnonzero(np.abs(audio) > MIN_AUDIBLE)
    if not len(audible):
        return audio[:0], 0.0, 0.0
    first, last = int(audible[0]), int(audible[-1])
    start = max(0, first - round(LEAD_SECONDS * SAMPLE_RATE))
    end = last + round(TRAIL_SECONDS * SAMPLE_RATE)
    return audio[start:end], (first - start) / SAMPLE_RATE, (last - start) / SAMPLE_RATE


def word_times(text: str, phonemes: str, first: float, last: float) -> tuple[tuple[str, float, float], ...]:
    """Estimate when each word is spoken; return words with start and end in seconds.

    The time from `first` to `last`, the seconds of the first and last sound, is divided in proportion to the sounds of
    the words. The result decides which words of an interrupted utterance count as heard.
    """
    words, sounds = text.split(), phonemes.split()
    weights = [_weight(sound) for sound in (sounds if len(sounds) == len(words) else words)]
    # The pause at the last punctuation mark comes after the last sound.
    if weights:
        weights[-1] -= PAUSES.get((sounds if len(sounds) == len(words) else words)[-1][-1], 0.0)
    unit = (last - first) / max(sum(weights), 1.0)
    times, start = [], first
    for word, weight in zip(words, weights, strict=True):
        times.append((word, start, start + weight * unit))
        start += weight * unit
    return tuple(times)


def _weight(sound: str) -> float:
    """Return how long a word takes, counted in speech sounds."""
    # Each word gets half a sound more, because short words take longer than their sounds suggest.
    return 0.5 + sum(PAUSES.get(character, 0.0 if character in SILENT_SIGNS else 1.0) for character in sound)


if __name__ == "__main__":
    inference.run(inference.LoadVoice, load_voice, lambda settings: 1)
