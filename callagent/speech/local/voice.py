"""The embedded voice: hibari's `heart`, American English, sentence by sentence, in a process of its own.

`load_voice` runs in the process, which is started as `python -m callagent.speech.local.voice FD`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from callagent.audio import SAMPLE_RATE
from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.speech.local import inference, weights
from callagent.speech.local.inference import Engine, Job, Urgency
from callagent.speech.protocol import SpeechChunk, VoiceSettings, WordTime, primary_language
from callagent.speech.text_processing import sentences

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SENTENCE_SECONDS = 10.0
"""How long one sentence is waited for."""


class LocalVoice:
    """hibari in a process of its own, for all calls. Word times are estimated from the sounds of each word."""

    def __init__(self) -> None:
        self.engine = Engine("callagent.speech.local.voice", inference.LoadVoice())

    async def start(self) -> None:
        """Returns when the voice is loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_voice()
        await self.engine.start()

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncGenerator[SpeechChunk, None]:
        if primary_language(settings.language) != "en":
            raise ProviderRefused(f"the voice 'local' speaks English, not '{settings.language}'")
        waiting = sentences(text)
        # One sentence ahead of what is heard: a caller who interrupts costs no more than that.
        first = waiting[:1]
        made = [self._ask(sentence, settings, Urgency.NOW) for sentence in first]
        start = 0.0
        try:
            for sentence in [*waiting[1:], ""]:
                if sentence:
                    made.append(self._ask(sentence, settings, Urgency.SOON))
                if not made:
                    return
                spoken = _spoken(await made[0][1])
                del made[0]
                if spoken.pcm:
                    yield _chunk(spoken, start)
                start += len(spoken.pcm) / 2 / SAMPLE_RATE
        finally:
            for job, _ in made:
                self.engine.cancel(job)

    async def close(self) -> None:
        await self.engine.close()

    def _ask(
        self, sentence: str, settings: VoiceSettings, urgency: Urgency
    ) -> tuple[Job, asyncio.Future[inference.Answer | None]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[inference.Answer | None] = loop.create_future()

        def answered(spoken: inference.Answer | None) -> None:
            if not answer.done():
                answer.set_result(spoken)

        job = Job(
            urgency,
            lambda number: inference.Speak(number, sentence, settings.name, settings.speed),
            answered,
            loop.time() + SENTENCE_SECONDS,
        )
        self.engine.submit(job)
        return job, answer


def _spoken(answer: inference.Answer | None) -> inference.Spoken:
    match answer:
        case inference.Spoken():
            return answer
        case inference.Failed(reason=reason):
            raise ProviderError(f"the voice 'local' failed: {reason}")
        case _:
            raise ProviderTimeout("the voice 'local' did not answer")


def _chunk(spoken: inference.Spoken, start: float) -> SpeechChunk:
    return SpeechChunk(spoken.pcm, tuple(WordTime(word, start + a, start + b) for word, a, b in spoken.words))


AUDIBLE = 0.004
"""-48 dBFS."""
LEAD_SECONDS = 0.03
"""Silence kept before the first sound; the engine leaves 0.2 s, which a caller would wait for."""
TRAIL_SECONDS = 0.2
"""Silence kept after the last sound: the pause between two sentences."""
SLOWEST, FASTEST = 0.5, 2.0
PAUSES = {",": 4.0, ";": 5.0, ":": 5.0, "—": 5.0, ".": 5.0, "…": 5.0, "!": 5.0, "?": 5.0}
"""How long a punctuation mark takes, counted in speech sounds."""
SILENT = "ˈˌː"


def load_voice(settings: inference.LoadVoice) -> inference.Serve:
    from hibari import Hibari
    from hibari.voices import DEFAULT, VOICES, voice_path

    engines: dict[str, Any] = {}

    def engine(name: str) -> Any:
        if name not in engines:
            if name not in VOICES:
                raise ValueError(f"no voice '{name}'; known here: {', '.join(VOICES)}")
            engines[name] = Hibari(model=voice_path(name, download_missing=False), voice=name)
        return engines[name]

    def serve(request: inference.Request) -> inference.Answer:
        if not isinstance(request, inference.Speak):
            raise ValueError(f"{type(request).__name__} is not for a voice")
        return synthesize(engine(request.voice or DEFAULT), request)

    serve(inference.Speak(0, "Good morning. How can I help you?"))
    return serve


def synthesize(engine: Any, request: inference.Speak) -> inference.Spoken:
    import numpy as np
    import soxr

    phonemes = engine.phonemize(request.text)
    speed = min(max(request.speed, SLOWEST), FASTEST)
    # Seeded: the same text sounds the same each time.
    parts = [engine.from_phonemes(part, speed, 0) for part in phonemes]
    if not parts:
        return inference.Spoken(request.number, b"")
    audio = soxr.resample(np.concatenate(parts), engine.sample_rate, SAMPLE_RATE)
    audio, first, last = _trim(audio)
    pcm = (np.clip(audio, -1.0, 1.0) * 32767).astype("<i2").tobytes()
    return inference.Spoken(request.number, pcm, word_times(request.text, " ".join(phonemes), first, last))


def _trim(audio: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, float]:
    """The audio with little silence at its ends, and the seconds in it where sound begins and ends."""
    import numpy as np

    audible = np.flatnonzero(np.abs(audio) > AUDIBLE)
    if not len(audible):
        return audio[:0], 0.0, 0.0
    first, last = int(audible[0]), int(audible[-1])
    start = max(0, first - round(LEAD_SECONDS * SAMPLE_RATE))
    end = last + round(TRAIL_SECONDS * SAMPLE_RATE)
    return audio[start:end], (first - start) / SAMPLE_RATE, (last - start) / SAMPLE_RATE


def word_times(text: str, phonemes: str, first: float, last: float) -> tuple[tuple[str, float, float], ...]:
    """An estimate: the time between the first and the last sound, shared out by the number of sounds in each word."""
    words, sounds = text.split(), phonemes.split()
    weights = [_weight(sound) for sound in (sounds if len(sounds) == len(words) else words)]
    # The pause of the last mark comes after the last sound.
    if weights:
        weights[-1] -= PAUSES.get((sounds if len(sounds) == len(words) else words)[-1][-1], 0.0)
    unit = (last - first) / max(sum(weights), 1.0)
    times, start = [], first
    for word, weight in zip(words, weights, strict=True):
        times.append((word, start, start + weight * unit))
        start += weight * unit
    return tuple(times)


def _weight(sound: str) -> float:
    # Half a sound more for each word: short ones are not as short as they are written.
    return 0.5 + sum(PAUSES.get(character, 0.0 if character in SILENT else 1.0) for character in sound)


if __name__ == "__main__":
    inference.run(inference.LoadVoice, load_voice, lambda settings: 1)
