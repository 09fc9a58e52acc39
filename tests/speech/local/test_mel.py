"""The spectrogram is Whisper's, to the last bit that matters."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.local
np = pytest.importorskip("numpy")

from callagent.speech.local.mel import log_mel, mel_filters  # noqa: E402


def slow_log_mel(audio: list[float], frames: int) -> list[list[float]]:
    """The definition, written out: centred frames, discrete Fourier sums, Slaney's triangles."""
    half = 200
    padded = [audio[n] for n in range(half, 0, -1)] + audio + [0.0] * (frames * 160 + 400)
    corner = 15.0

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < corner else 1000 * 6.4 ** ((mel - corner) / 27)

    top = corner + 27 * math.log(8) / math.log(6.4)
    edges = [hertz(top * n / 81) for n in range(82)]
    columns = []
    for frame in range(frames):
        window = [padded[frame * 160 + n] * (0.5 - 0.5 * math.cos(2 * math.pi * n / 400)) for n in range(400)]
        power = [abs(sum(w * complex(*turn(k, n)) for n, w in enumerate(window))) ** 2 for k in range(201)]
        column = []
        for low, mid, high in zip(edges, edges[1:], edges[2:], strict=False):
            shape = [max(0.0, min((40 * k - low) / (mid - low), (high - 40 * k) / (high - mid))) for k in range(201)]
            energy = sum(p * s for p, s in zip(power, shape, strict=True)) * 2 / (high - low)
            column.append(math.log10(max(energy, 1e-10)))
        columns.append(column)
    loudest = max(map(max, columns))
    return [[(max(value, loudest - 8) + 4) / 4 for value in column] for column in columns]


def turn(k: int, n: int) -> tuple[float, float]:
    angle = -2 * math.pi * (k * n % 400) / 400
    return math.cos(angle), math.sin(angle)


def test_it_equals_the_definition_computed_term_by_term() -> None:
    audio = [0.4 * math.sin(n * n / 9000) + 0.05 * math.sin(n / 3) for n in range(900)]
    expected = np.array(slow_log_mel(audio, 8)).T
    assert np.abs(log_mel(np.array(audio, dtype=np.float32), 0.08) - expected).max() < 2e-4


def test_the_filters_have_the_published_peaks() -> None:
    filters = mel_filters()
    assert filters.shape == (80, 201)
    peaks = [round(float(filters[band].max()), 6) for band in (0, 40, 79)]
    assert peaks == [0.024863, 0.014736, 0.003165]


@pytest.mark.parametrize("samples", [0, 1, 100, 159, 160, 161, 400, 8 * 16000, 9 * 16000])
def test_any_length_gives_the_window_asked_for(samples: int) -> None:
    spectrogram = log_mel(np.full(samples, 0.1, dtype=np.float32), 8.0)
    assert spectrogram.shape == (80, 800)
    assert np.isfinite(spectrogram).all()


def test_the_padding_is_the_same_as_silence_fed() -> None:
    audio = np.sin(np.arange(5000, dtype=np.float32) / 7)
    silence = np.zeros(16000, dtype=np.float32)
    padded, fed = log_mel(audio, 1.0), log_mel(np.concatenate([audio, silence]), 1.0)
    # Matrix products of other shapes may be summed in another order: how, depends on the processor. With seven of them
    # the results differ by one unit in the last place, 1.2e-7.
    assert np.abs(padded - fed).max() < 1e-5
