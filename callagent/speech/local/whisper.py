"""One Whisper model on CTranslate2: telephone audio in, text out. It runs in the recogniser's process.

Its input is the log-mel spectrogram of 16 kHz audio, 80 bands every 10 ms; the turn model takes the same.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from callagent.audio import SAMPLE_RATE
from callagent.errors import UserError

WHISPER_RATE = 16000
FFT = 400
"""Samples of one window of the Fourier transform, 25 ms."""
HOP = 160
"""Samples from one window to the next, 10 ms."""
FRAMES_PER_SECOND = WHISPER_RATE // HOP
MIN_POWER = 1e-10
"""Power of silence; without it, the logarithm would have no lower limit."""
MAX_DECADES = 8.0
"""Range of the spectrogram below its loudest band; all that is fainter is set to the lower end."""

Floats = NDArray[np.float32]

# The Slaney mel scale: linear up to 1000 Hz (15 mel), then 27 steps for each factor of 6.4.
_LINEAR_STEP = 200 / 3
_LOG_START = 1000.0
_LOG_STEP = np.log(6.4) / 27


def log_mel(audio: Floats, seconds: float, bands: int = 80) -> Floats:
    """Return the spectrogram of `audio` (16 kHz, -1 to 1), padded with silence or cut to `seconds`.

    Its shape is (bands, 100 x seconds). All constants have to be those that Whisper was trained with.
    """
    frames = round(seconds * FRAMES_PER_SECOND)
    audio = audio[: frames * HOP]
    # Frames wholly in the padding have the least power: only those that touch audio are computed.
    computed = min(frames, len(audio) // HOP + 2)
    power = _power(audio, computed)
    spectrogram = np.full((bands, frames), np.log10(MIN_POWER), dtype=np.float32)
    spectrogram[:, :computed] = np.log10(np.maximum(mel_filters(bands) @ power.T, MIN_POWER))
    np.maximum(spectrogram, spectrogram.max() - MAX_DECADES, out=spectrogram)
    spectrogram += 4.0
    spectrogram *= 0.25
    return spectrogram


def _power(audio: Floats, frames: int) -> Floats:
    """Return |STFT|², shape (frames, 201): periodic Hann windows, centred, reflected at the start."""
    half = FFT // 2
    padded = np.zeros(frames * HOP + FFT, dtype=np.float32)
    padded[half : half + len(audio)] = audio[: len(padded) - half]
    padded[:half] = padded[2 * half : half : -1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, FFT)[: frames * HOP : HOP]
    spectrum = np.fft.rfft(windows * _hann())
    return np.asarray(spectrum.real**2 + spectrum.imag**2, dtype=np.float32)


@cache
def _hann() -> Floats:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)


@cache
def mel_filters(bands: int = 80) -> Floats:
    """Return triangles of equal area, equally spaced in mel from 0 to 8000 Hz, shape (bands, 201)."""
    frequencies = np.linspace(0, WHISPER_RATE / 2, FFT // 2 + 1)
    edges = _to_hertz(np.linspace(0.0, _to_mel(WHISPER_RATE / 2), bands + 2))
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - lower) / (centre - lower)
    falling = (upper - frequencies) / (upper - centre)
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (upper - lower))
    return filters.astype(np.float32)


def _to_mel(hertz: float) -> float:
    if hertz < _LOG_START:
        return hertz / _LINEAR_STEP
    return float(_LOG_START / _LINEAR_STEP + np.log(hertz / _LOG_START) / _LOG_STEP)


def _to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    corner = _LOG_START / _LINEAR_STEP
    return np.where(mel < corner, mel * _LINEAR_STEP, _LOG_START * np.exp(_LOG_STEP * (mel - corner)))


MAX_WINDOW_SECONDS = 30.0
"""Seconds the model was trained on."""
SURE_SILENCE = 0.8
"""Probability of no speech above which the text is an invention ("you", "Thank you.")."""
POSSIBLE_SILENCE = 0.4
"""Probability of no speech above which a text below `MIN_LOG_PROBABILITY` is an invention, too."""
MIN_LOG_PROBABILITY = -1.5
"""Mean log-probability of a text: a cough or a tone written as "Yeah" is below it. Single words may be below it, too,
but their probability of no speech is small."""
MAX_COMPRESSION = 2.2
"""Compression ratio above which the model has run into a loop: the next longer window is tried."""
MAX_TOKENS_PER_SECOND = 12
"""More than anybody says: a longer text is a loop."""
MAX_PROMPT_TOKENS = 100
"""Tokens of the expected answer; the model's limit is 223."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode: a wider beam is better and slower, a shorter window is faster."""

    beam: int = 5
    windows: tuple[float, ...] = (12.0, MAX_WINDOW_SECONDS)
    """Seconds, ascending; the first that the audio fits into is used. Under 8 s the models loop."""
    alternatives: int = 3


@dataclass(frozen=True, slots=True)
class Transcription:
    """What is said in some audio: `texts` with the likeliest first, empty if nothing is said."""

    texts: tuple[str, ...] = ()
    confidence: float | None = None


NO_SPEECH = Transcription()


class Result(Protocol):
    """The part of CTranslate2's `WhisperGenerationResult` that is used here; the package has no types."""

    sequences_ids: list[list[int]]
    scores: list[float]
    no_speech_prob: float


class Whisper:
    """One model, from a directory as CTranslate2 and faster-whisper use it; `threads` decodings run at a time."""

    def __init__(self, directory: Path, threads: int = 1) -> None:
        # These packages are imported here, because the turn model, which needs the spectrogram only, runs without them.
        import ctranslate2
        import tokenizers

        self._model = ctranslate2.models.Whisper(
            str(directory), device="cpu", compute_type="int8", inter_threads=threads, intra_threads=1
        )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.multilingual = bool(self._model.is_multilingual)

    def transcribe(self, pcm: bytes, decoding: Decoding, language: str = "en", expected: str = "") -> Transcription:
        """Return what is said in `pcm` (16-bit, 8 kHz, at most 30 s)."""
        # For a language that it does not know, a model translates or invents.
        if not self.knows_language(language):
            return NO_SPEECH
        audio = _audio(pcm)
        seconds = len(audio) / WHISPER_RATE
        prompt = self._prompt(language, expected)
        # The encoder's work grows with the window, so the shortest one that holds the audio is tried first.
        for window in [size for size in decoding.windows if size >= seconds] or [MAX_WINDOW_SECONDS]:
            result = self._generate(log_mel(audio, window, self._model.n_mels), prompt, decoding, seconds)
            # For silence and noise, the model invents texts that accompanied silence in its training data, such as
            # thanks and goodbyes.
            if _is_no_speech(result.no_speech_prob, result.scores[0]):
                return NO_SPEECH
            texts = [self._tokenizer.decode(tokens).strip() for tokens in result.sequences_ids]
            if not _is_loop(texts[0]):
                break
        return Transcription(tuple(dict.fromkeys(filter(None, texts))), round(math.exp(result.scores[0]), 3))

    def knows_language(self, language: str) -> bool:
        """Return whether the model knows a language, given by its two-letter code."""
        if not self.multilingual:
            return language == "en"
        return self._tokenizer.token_to_id(f"<|{language}|>") is not None

    def _prompt(self, language: str, expected: str) -> list[int]:
        """Return the tokens before the text; the expected answer stands there as the text of earlier audio.

        The model continues in the style of the text after `<|startofprev|>`: digits as digits, names spelt as there.
        """
        names = ["<|startoftranscript|>", "<|notimestamps|>"]
        if self.multilingual:
            names[1:1] = [f"<|{language}|>", "<|transcribe|>"]
        start = [self._token(name) for name in names]
        if not expected:
            return start
        before = self._tokenizer.encode(f" {expected.strip()}", add_special_tokens=False).ids[-MAX_PROMPT_TOKENS:]
        return [self._token("<|startofprev|>"), *before, *start]

    def _token(self, name: str) -> int:
        number = self._tokenizer.token_to_id(name)
        if number is None:
            raise UserError(f"the model's tokenizer.json has no {name}: not a Whisper model; name another directory")
        return int(number)

    def _generate(self, spectrogram: Floats, prompt: list[int], decoding: Decoding, seconds: float) -> Result:
        import ctranslate2

        features = ctranslate2.StorageView.from_array(np.ascontiguousarray(spectrogram[None]))
        tokens = min(224, 16 + round(MAX_TOKENS_PER_SECOND * seconds))
        results: list[Result] = self._model.generate(
            features,
            [prompt],
            beam_size=decoding.beam,
            num_hypotheses=min(decoding.beam, decoding.alternatives),
            # CTranslate2 generates at most half of max_length, and at most what the prompt leaves of it.
            max_length=min(448, max(2 * tokens, tokens + len(prompt))),
            return_scores=True,
            return_no_speech_prob=True,
        )
        return results[0]


def _audio(pcm: bytes) -> Floats:
    """Return telephone audio as the model's input, at 16 kHz and from -1 to 1."""
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
    resampled: Floats = soxr.resample(samples, SAMPLE_RATE, WHISPER_RATE)
    return resampled


def _is_no_speech(no_speech: float, score: float) -> bool:
    return no_speech > SURE_SILENCE or (no_speech > POSSIBLE_SILENCE and score < MIN_LOG_PROBABILITY)


def _is_loop(text: str) -> bool:
    """Return whether the text repeats itself, which shows in how well it compresses."""
    data = text.encode()
    return len(data) > MAX_COMPRESSION * len(zlib.compress(data))
