"""The handset of the test phone: the earpiece hears the agent, the microphone speaks for the caller.

The earpiece detects speech in each frame by its level; between words the line has digital silence or background audio.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

from callagent.audio import FRAME_BYTES, FRAME_SAMPLES, SAMPLE_RATE
from callagent.errors import UserError
from callagent.speech import RecognizerSettings, RecognizerStream, Transcript, Voice, VoiceSettings

_SPEECH_LEVEL = 120
"""RMS of 16-bit samples above which a frame holds speech."""
_ABOVE_BACKGROUND = 4.0
"""How many times louder than the background a frame that holds speech is."""
_MAX_BACKGROUND = 400.0
"""RMS up to which sound may be taken for background."""
_BACKGROUND_PART_SECONDS, _BACKGROUND_PARTS = 0.5, 10
"""The background level is that of the quietest frame of the last five seconds: speech has a gap in that time."""
_PAUSE_SECONDS = 0.6
"""Silence that ends an utterance; pauses between words are shorter."""
_GAP_SECONDS = 0.25
"""Silence that ends a span of sound."""


@dataclass(slots=True)
class AgentUtterance:
    """One utterance of the agent. Times are seconds since the call was answered."""

    number: int
    started: float
    ended: float | None = None
    text: str | None = None
    """None until it is recognised, or without a recogniser."""


class _BackgroundLevel:
    """The level of the agent's line while nobody speaks: digital silence or background audio."""

    def __init__(self) -> None:
        self._parts: deque[float] = deque([_MAX_BACKGROUND], _BACKGROUND_PARTS)
        self._part_ends = 0.0

    def update(self, level: float, at: float) -> float:
        """Take the level (RMS) of a frame at second `at` and return the level of the background."""
        if at >= self._part_ends:
            self._parts.append(_MAX_BACKGROUND)
            self._part_ends = at + _BACKGROUND_PART_SECONDS
        self._parts[-1] = min(self._parts[-1], level)
        return min(self._parts)


class Earpiece:
    """The listening half of the phone, which cuts the agent's audio into utterances and has them recognised."""

    def __init__(self, on_heard: Callable[[AgentUtterance], None]) -> None:
        self._on_heard = on_heard
        self._stream: RecognizerStream | None = None
        self._answered = 0.0
        self._last_speech = -1.0
        self._background = _BackgroundLevel()
        self._current: AgentUtterance | None = None
        self._waiting: dict[int, AgentUtterance] = {}
        self.utterances: list[AgentUtterance] = []
        self.spans: list[tuple[float, float]] = []
        """Spans of the agent's sound, exact to a frame, in seconds since the answer."""
        self.changed = asyncio.Event()
        """Set when anything was heard or recognised; whoever waits for it clears it."""

    def listen(self, stream: RecognizerStream | None, answered: float) -> None:
        """Listen from the monotonic second `answered` on; without a stream, utterances have times but no words."""
        self._stream = stream
        self._answered = answered

    @property
    def speaking_since(self) -> float | None:
        """Seconds from the answer to the start of the present utterance; None while the agent is silent."""
        return self._current.started if self._current else None

    @property
    def recognising(self) -> bool:
        """Whether an utterance still waits for its words."""
        return bool(self._waiting)

    def on_frame(self, pcm: bytes, now: float) -> None:
        """Take one frame of the agent's audio; this is the sink of the line's media."""
        import audioop

        at = now - self._answered
        # Silence is fed, too: the recogniser keeps the sound just before an utterance begins.
        if self._stream:
            self._stream.feed(pcm)
        level = audioop.rms(pcm, 2)
        if level > max(_SPEECH_LEVEL, _ABOVE_BACKGROUND * self._background.update(level, at)):
            self._last_speech = at
            self._extend(at)
            if self._current is None:
                self._begin(at)
        elif self._current and at - self._last_speech > _PAUSE_SECONDS:
            self._end(self._current)

    def on_transcript(self, transcript: Transcript) -> None:
        if transcript.final and (heard := self._waiting.pop(transcript.utterance, None)):
            heard.text = transcript.text
            self._report(heard)

    def close(self) -> None:
        """End the present utterance, because the call is over."""
        if self._current:
            self._end(self._current)

    def _extend(self, at: float) -> None:
        # Spans are finer than utterances: speech in the agent's pauses between words must not count as overlap.
        if self.spans and at - self.spans[-1][1] <= _GAP_SECONDS:
            self.spans[-1] = (self.spans[-1][0], at)
        else:
            self.spans.append((at, at))

    def _begin(self, at: float) -> None:
        self._current = AgentUtterance(len(self.utterances) + 1, at)
        self.utterances.append(self._current)
        if self._stream:
            self._stream.begin(RecognizerSettings())
        self.changed.set()

    def _end(self, heard: AgentUtterance) -> None:
        heard.ended = self._last_speech
        self._current = None
        if self._stream:
            self._waiting[heard.number] = heard
            self._stream.finish()
        else:
            self._report(heard)
        self.changed.set()

    def _report(self, heard: AgentUtterance) -> None:
        self._on_heard(heard)
        self.changed.set()


_MAX_WAV_SECONDS = 120
"""Longer recordings are cut here."""
_NOISE_FRAMES = 50
"""Number of different noise frames: the repetition of one second of noise cannot be heard."""


class Microphone:
    """The speaking half of the phone. `next_frame` may be called from one other thread, the rest from the loop."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or monotonic
        self._noise: list[bytes] = []
        self._random = Random(1)
        self._frames: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._silent = asyncio.Event()
        self._silent.set()
        self.last_voiced = 0.0
        """Monotonic second at which the last frame that is not silence was sent."""
        self.first_voiced = 0.0
        """Monotonic second of the first such frame since `speak`; 0: none yet."""

    def next_frame(self) -> bytes | None:
        """Return the next frame to send, None for silence; this is the source of the line's media."""
        # Both threads change only the deque, and `popleft` is atomic.
        try:
            frame = self._frames.popleft()
        except IndexError:
            return self._random.choice(self._noise) if self._noise else None
        if frame.strip(b"\0"):
            self.last_voiced = self._clock()
            self.first_voiced = self.first_voiced or self.last_voiced
        if not self._frames:
            self._loop.call_soon_threadsafe(self._silent.set)
        return self._with_noise(frame)

    def make_noise(self, level: float | None) -> None:
        """Mix noise of `level`, in decibels relative to full scale, into all that is sent from now on; None ends it."""
        if level is None:
            self._noise = []
            return
        deviation = 32767 * 10 ** (level / 20)
        frames = range(_NOISE_FRAMES)
        # The list is replaced by one assignment, because the pump's thread takes frames meanwhile.
        self._noise = [_clipped(self._random.gauss(0, deviation) for _ in range(FRAME_SAMPLES)) for _ in frames]

    def _with_noise(self, frame: bytes) -> bytes:
        import audioop

        return audioop.add(frame, self._random.choice(self._noise), 2) if self._noise else frame

    async def speak(self, pcm: bytes) -> None:
        """Send PCM of 8 kHz, and return when its last frame has been sent."""
        if not pcm:
            return
        self._silent.clear()
        self.first_voiced = 0.0
        padded = pcm + bytes(-len(pcm) % FRAME_BYTES)
        self._frames.extend(padded[at : at + FRAME_BYTES] for at in range(0, len(padded), FRAME_BYTES))
        await self._silent.wait()


def mumble(seconds: float) -> bytes:
    """Return sound like a voice, in syllables, without words: harmonics of a pitch that rises and falls."""
    wave = array("h", bytes(2 * round(seconds * SAMPLE_RATE)))
    for index in range(len(wave)):
        at = index / SAMPLE_RATE
        syllable = max(0.0, math.sin(2 * math.pi * 3 * at)) ** 0.5
        phase = 2 * math.pi * (110 + 15 * math.sin(2 * math.pi * 0.7 * at)) * at
        tone = sum(math.sin(harmonic * phase) / harmonic for harmonic in range(1, 12))
        wave[index] = round(3000 * syllable * tone)
    return wave.tobytes()


def _clipped(samples: Iterable[float]) -> bytes:
    return array("h", (round(max(-32768, min(32767, sample))) for sample in samples)).tobytes()


async def synthesise(voice: Voice, text: str) -> bytes:
    """Return the text as PCM of 8 kHz."""
    return b"".join([chunk.pcm async for chunk in voice.speak(text, VoiceSettings())])


def read_wav(path: Path) -> bytes:
    """Return a WAV file (mono or stereo, any rate and width) as mono PCM of 8 kHz. Raises `UserError`."""
    import audioop
    import wave

    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(min(file.getnframes(), _MAX_WAV_SECONDS * rate))
        return _telephone_pcm(data, rate, width, channels)
    except OSError as error:
        raise UserError(f"{path}: cannot be played: {error.strerror}") from None
    except (EOFError, ValueError, wave.Error, audioop.error) as error:
        detail = str(error) or "the file is cut short"
        raise UserError(f"{path}: cannot be played: {detail}; a PCM WAV file, mono or stereo, is needed") from None


def _telephone_pcm(data: bytes, rate: int, width: int, channels: int) -> bytes:
    """Convert to mono PCM of 8 kHz. Raises `ValueError` or `audioop.error` for what cannot be converted."""
    import audioop

    if channels > 2:
        raise ValueError(f"it has {channels} channels")
    # A recording that was cut off may end within a sample.
    data = data[: len(data) - len(data) % (width * channels)]
    # Samples of one octet are unsigned in WAV, all others are signed.
    if width == 1:
        data = audioop.bias(data, 1, -128)
    data = audioop.lin2lin(data, width, 2)
    if channels == 2:
        data = audioop.tomono(data, 2, 0.5, 0.5)
    if rate != SAMPLE_RATE:
        data, _ = audioop.ratecv(data, 2, 1, rate, SAMPLE_RATE, None)
    return data
