"""Sounds without words, by name: ambience and effects, from WAV files of a folder and a few that are generated here.

The generated ones are noises and tones, shaped with `audioop` (in C, so that a server starts quickly) by moving
averages and envelopes, and mixed. All sounds are 16-bit PCM at 8 kHz, and are played in loops.
"""

from __future__ import annotations

import audioop
import math
import random
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

from callagent.audio.pcm import SAMPLE_RATE
from callagent.errors import ConfigError

MAX_SECONDS = 120
"""Length up to which a file is read."""
SLICE_SAMPLES = SAMPLE_RATE // 20
"""Length of one step of an envelope: 50 ms."""


class Sounds:
    """All sounds of a server, generated or read when it starts."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read all WAV files of `folder`. Raises `ConfigError` for a file that is no sound."""
        self._pcm = {name: generate() for name, generate in GENERATORS.items()}
        if folder is not None:
            self._pcm |= {path.stem.lower(): _read(path) for path in sorted(folder.glob("*.wav"))}

    def __call__(self, name: str) -> bytes | None:
        """Return the PCM of a sound, to be played in a loop; None if there is no sound of that name."""
        return self._pcm.get(name.lower())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._pcm))


def generate_white_noise() -> bytes:
    """Return soft noise of all frequencies."""
    return _noise(6.0, seed=1)


def generate_office() -> bytes:
    """Return the sound of ventilation, with somebody at a keyboard now and then."""
    return _mix(_smooth(_noise(12.0, seed=2), 12), audioop.mul(_typing(12.0, 40, seed=3), 2, 0.5))


def generate_restaurant() -> bytes:
    """Return the sound of people who talk unintelligibly at other tables, and of a glass now and then."""
    chance = random.Random(4)
    room = _smooth(_noise(8.0, seed=5), 8)
    for table in range(3):
        room = _mix(room, _murmur(chance, 8.0, seed=10 + table))
    return _mix(room, _glasses(chance, 8.0))


def generate_typing() -> bytes:
    """Return the sound of somebody at a keyboard."""
    return _typing(6.0, 34, seed=6)


def generate_ring() -> bytes:
    """Return the ringing tone of North America: 440 and 480 Hz for two seconds of every six."""
    # Whole periods of both tones fit into 1/40 s, so this much can be repeated without a click.
    period = SAMPLE_RATE // 40
    wave = array("h", bytes(2 * period))
    for at in range(period):
        angle = 2 * math.pi * at / SAMPLE_RATE
        wave[at] = round(5000 * (math.sin(440 * angle) + math.sin(480 * angle)))
    return wave.tobytes() * 80 + bytes(2 * 4 * SAMPLE_RATE)


GENERATORS: Mapping[str, Callable[[], bytes]] = {
    "office-ambiance": generate_office,
    "restaurant-ambiance": generate_restaurant,
    "ring": generate_ring,
    "typing": generate_typing,
    "whitenoise-subtle": generate_white_noise,
}
"""Functions for the presets of the flow format, and for the effects that its delay responses use."""


def _noise(seconds: float, seed: int) -> bytes:
    # The seed is fixed, so that every server makes the same sound after every start.
    samples = round(seconds * SAMPLE_RATE)
    return audioop.mul(audioop.lin2lin(random.Random(seed).randbytes(samples), 1, 2), 2, 0.25)


def _smooth(pcm: bytes, times: int) -> bytes:
    """Average neighbouring samples several times, to remove high frequencies; the last one's neighbour is the first."""
    for _ in range(times):
        half = audioop.mul(pcm, 2, 0.5)
        pcm = audioop.add(half, half[2:] + half[:2], 2)
    return pcm


def _mix(one: bytes, other: bytes) -> bytes:
    return audioop.add(one, other.ljust(len(one), b"\0")[: len(one)], 2)


def _murmur(chance: random.Random, seconds: float, seed: int) -> bytes:
    """Return noise in the band of a voice behind a wall, with the rhythm of syllables."""
    low = _smooth(_noise(seconds, seed), 6)
    band = audioop.add(low, audioop.mul(_smooth(low, 8), 2, -1.0), 2)
    steps = [band[at : at + 2 * SLICE_SAMPLES] for at in range(0, len(band), 2 * SLICE_SAMPLES)]
    return b"".join(audioop.mul(step, 2, chance.choice((0.1, 0.5, 1.0, 0.7, 0.2))) for step in steps)


def _typing(seconds: float, keys: int, seed: int) -> bytes:
    chance = random.Random(seed)
    pcm = bytearray(2 * round(seconds * SAMPLE_RATE))
    for _ in range(keys):
        click = _smooth(_noise(0.012, chance.randrange(1 << 30)), 2)
        faded = b"".join(audioop.mul(click[at : at + 32], 2, 1 - at / len(click)) for at in range(0, len(click), 32))
        at = 2 * chance.randrange(len(pcm) // 2 - len(faded) // 2)
        pcm[at : at + len(faded)] = audioop.mul(faded, 2, chance.uniform(0.5, 1.0))
    return bytes(pcm)


def _glasses(chance: random.Random, seconds: float) -> bytes:
    pcm = bytearray(2 * round(seconds * SAMPLE_RATE))
    for _ in range(3):
        pitch, length = chance.uniform(2200, 3200), SAMPLE_RATE // 5
        clink = array("h", bytes(2 * length))
        for at in range(length):
            clink[at] = round(1500 * math.exp(-at / 300) * math.sin(2 * math.pi * pitch * at / SAMPLE_RATE))
        start = 2 * chance.randrange(len(pcm) // 2 - length)
        pcm[start : start + 2 * length] = clink.tobytes()
    return bytes(pcm)


def _read(path: Path) -> bytes:
    import wave

    try:
        with wave.open(str(path)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(min(file.getnframes(), MAX_SECONDS * rate))
        if width != 2 or channels > 2:
            raise ConfigError(f"{path}: a sound has to be 16-bit PCM, mono or stereo; convert the file")
    except (OSError, EOFError, wave.Error) as error:
        raise ConfigError(f"{path}: not a WAV file: {error}") from None
    mono = audioop.tomono(data, 2, 0.5, 0.5) if channels == 2 else data
    return mono if rate == SAMPLE_RATE else audioop.ratecv(mono, 2, 1, rate, SAMPLE_RATE, None)[0]
