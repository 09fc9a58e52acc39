"""`python -m callagent.speech.local.voice_process FD`: the voice of all calls of one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import process, wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def load(settings: wire.LoadVoice) -> process.Serve:
    from hibari import Hibari
    from hibari.voices import DEFAULT, VOICES, voice_path

    engines: dict[str, Any] = {}

    def engine(name: str) -> Any:
        if name not in engines:
            if name not in VOICES:
                raise ValueError(f"no voice '{name}'; known here: {', '.join(VOICES)}")
            engines[name] = Hibari(model=voice_path(name, download_missing=False), voice=name)
        return engines[name]

    def serve(request: wire.Request) -> wire.Answer:
        if not isinstance(request, wire.Speak):
            raise ValueError(f"{type(request).__name__} is not for a voice")
        return speak(engine(request.voice or DEFAULT), request)

    serve(wire.Speak(0, "Good morning. How can I help you?"))
    return serve


def speak(engine: Any, request: wire.Speak) -> wire.Spoken:
    import numpy as np
    import soxr

    phonemes = engine.phonemize(request.text)
    speed = min(max(request.speed, SLOWEST), FASTEST)
    # Seeded: the same text sounds the same each time.
    parts = [engine.from_phonemes(part, speed, 0) for part in phonemes]
    if not parts:
        return wire.Spoken(request.number, b"")
    audio = soxr.resample(np.concatenate(parts), engine.sample_rate, SAMPLE_RATE)
    audio, first, last = _trim(audio)
    pcm = (np.clip(audio, -1.0, 1.0) * 32767).astype("<i2").tobytes()
    return wire.Spoken(request.number, pcm, word_times(request.text, " ".join(phonemes), first, last))


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
    process.run(wire.LoadVoice, load, lambda settings: 1)
