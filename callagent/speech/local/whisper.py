"""One Whisper model on CTranslate2: telephone audio in, text out. Lives in the recogniser's process.

Its input is the log-mel spectrogram of 16 kHz audio, 80 bands every 10 ms; the turn model takes the same.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from callagent.audio import SAMPLE_RATE
from callagent.errors import UserError

WHISPER_RATE = 16000
FFT = 400
HOP = 160
FRAMES_PER_SECOND = WHISPER_RATE // HOP
FLOOR = 1e-10
RANGE = 8.0
"""Decades under the loudest band that are kept."""

Floats = NDArray[np.float32]

# The Slaney mel scale: linear up to 1000 Hz (15 mel), then 27 steps for each factor of 6.4.
_LINEAR_STEP = 200 / 3
_LOG_START = 1000.0
_LOG_STEP = np.log(6.4) / 27


def log_mel(audio: Floats, seconds: float, bands: int = 80) -> Floats:
    """Shape (bands, 100 x seconds): `audio` (16 kHz, -1 to 1) followed by silence, or cut, to `seconds`."""
    frames = round(seconds * FRAMES_PER_SECOND)
    audio = audio[: frames * HOP]
    # Frames wholly in the padding are all floor: only those that touch audio are computed.
    heard = min(frames, len(audio) // HOP + 2)
    power = _power(audio, heard)
    spectrogram = np.full((bands, frames), np.log10(FLOOR), dtype=np.float32)
    spectrogram[:, :heard] = np.log10(np.maximum(mel_filters(bands) @ power.T, FLOOR))
    np.maximum(spectrogram, spectrogram.max() - RANGE, out=spectrogram)
    spectrogram += 4.0
    spectrogram *= 0.25
    return spectrogram


def _power(audio: Floats, frames: int) -> Floats:
    """|STFT|², shape (frames, 201): periodic Hann, centred, reflected at the start."""
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
    """Shape (bands, 201): triangles of equal area, equally spaced in mel from 0 to 8000 Hz."""
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
SILENCE = 0.8
"""Probability of no speech above which the text is an invention ("you", "Thank you.")."""
DOUBT = 0.4
GUESS = -1.5
"""A mean log-probability under `GUESS` with no speech above `DOUBT`: a cough or a tone written as "Yeah". Words said
alone score as low, but leave no doubt that they are speech."""
REPETITION = 2.2
"""Compression ratio above which the model has run into a loop: tried again in the longest window."""
TOKENS_PER_SECOND = 12
"""More than anybody says; what goes on longer is a loop."""
PROMPT_TOKENS = 100
"""Of the expected answer; the model's limit is 223."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode: a wider beam is better and slower, a shorter window is faster."""

    beam: int = 5
    windows: tuple[float, ...] = (12.0, MAX_WINDOW_SECONDS)
    """Seconds, ascending; the first that the audio fits into is used. Under 8 s the models loop."""
    alternatives: int = 3


@dataclass(frozen=True, slots=True)
class Heard:
    """`texts` with the best first; empty where nothing was said."""

    texts: tuple[str, ...] = ()
    confidence: float | None = None


NOTHING = Heard()


class Whisper:
    """A model directory as CTranslate2 and faster-whisper use it; `threads` decodings run at a time."""

    def __init__(self, directory: Path, threads: int = 1) -> None:
        # Imported here: the turn model, which needs the spectrogram only, does without these packages.
        import ctranslate2
        import tokenizers

        self._model = ctranslate2.models.Whisper(
            str(directory), device="cpu", compute_type="int8", inter_threads=threads, intra_threads=1
        )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.multilingual = bool(self._model.is_multilingual)

    def transcribe(self, pcm: bytes, decoding: Decoding, language: str = "en", expected: str = "") -> Heard:
        """What is said in `pcm` (16-bit, 8 kHz, at most 30 s)."""
        if not self.speaks(language):
            return NOTHING
        audio = _audio(pcm)
        seconds = len(audio) / WHISPER_RATE
        prompt = self._prompt(language, expected)
        for window in [size for size in decoding.windows if size >= seconds] or [MAX_WINDOW_SECONDS]:
            result = self._generate(log_mel(audio, window, self._model.n_mels), prompt, decoding, seconds)
            if _is_no_speech(result.no_speech_prob, result.scores[0]):
                return NOTHING
            texts = [self._tokenizer.decode(tokens).strip() for tokens in result.sequences_ids]
            if not _loops(texts[0]):
                break
        return Heard(tuple(dict.fromkeys(filter(None, texts))), round(math.exp(result.scores[0]), 3))

    def speaks(self, language: str) -> bool:
        if not self.multilingual:
            return language == "en"
        return self._tokenizer.token_to_id(f"<|{language}|>") is not None

    def _prompt(self, language: str, expected: str) -> list[int]:
        """`<|startofprev|>` makes the model write in the manner of what it believes came before."""
        names = ["<|startoftranscript|>", "<|notimestamps|>"]
        if self.multilingual:
            names[1:1] = [f"<|{language}|>", "<|transcribe|>"]
        start = [self._token(name) for name in names]
        if not expected:
            return start
        before = self._tokenizer.encode(f" {expected.strip()}", add_special_tokens=False).ids[-PROMPT_TOKENS:]
        return [self._token("<|startofprev|>"), *before, *start]

    def _token(self, name: str) -> int:
        number = self._tokenizer.token_to_id(name)
        if number is None:
            raise UserError(f"the model's tokenizer.json has no {name}: not a Whisper model")
        return int(number)

    def _generate(self, spectrogram: Floats, prompt: list[int], decoding: Decoding, seconds: float) -> Any:
        import ctranslate2

        features = ctranslate2.StorageView.from_array(np.ascontiguousarray(spectrogram[None]))
        tokens = min(224, 16 + round(TOKENS_PER_SECOND * seconds))
        results = self._model.generate(
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
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
    resampled: Floats = soxr.resample(samples, SAMPLE_RATE, WHISPER_RATE)
    return resampled


def _is_no_speech(no_speech: float, score: float) -> bool:
    return no_speech > SILENCE or (no_speech > DOUBT and score < GUESS)


def _loops(text: str) -> bool:
    data = text.encode()
    return len(data) > REPETITION * len(zlib.compress(data))
