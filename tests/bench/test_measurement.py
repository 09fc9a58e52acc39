"""Where speech begins and ends, from its level."""

from __future__ import annotations

import pytest

from callagent.bench.measurement import longest_pause, spoken_span

LOUDEST = 8000


def steps(*levels: tuple[int, float]) -> bytes:
    """Sounds by their amplitude and seconds."""
    return b"".join(amplitude.to_bytes(2, "little") * round(8000 * seconds) for amplitude, seconds in levels)


def test_the_first_and_the_last_sound_within_30_db_of_the_loudest() -> None:
    pcm = steps((100, 0.2), (400, 0.05), (LOUDEST, 0.3), (300, 0.1), (100, 0.2))
    assert spoken_span(pcm) == pytest.approx((0.2, 0.65))


def test_a_click_is_no_beginning() -> None:
    assert spoken_span(steps((0, 0.1), (LOUDEST, 0.02), (0, 0.1), (LOUDEST, 0.3)))[0] == pytest.approx(0.22)


@pytest.mark.parametrize(
    ("level", "silence", "begins"),
    [(700, 0.1, 0.3), (700, 0.09, 0.1), (900, 0.1, 0.1)],
    ids=["a breath", "the closure of a stop", "not so soft"],
)
def test_a_breath_before_the_speech_does_not_begin_it(level: int, silence: float, begins: float) -> None:
    pcm = steps((0, 0.1), (level, 0.2 - silence), (100, silence), (LOUDEST, 0.3))
    assert spoken_span(pcm)[0] == pytest.approx(begins)


def test_a_soft_end_is_speech_also_after_a_silence() -> None:
    assert spoken_span(steps((LOUDEST, 0.3), (0, 0.12), (700, 0.05)))[1] == pytest.approx(0.47)


def test_silence_has_no_speech_in_it() -> None:
    with pytest.raises(ValueError, match="no speech"):
        spoken_span(bytes(16000))


def test_the_longest_pause() -> None:
    assert longest_pause(steps((LOUDEST, 0.2), (0, 0.25), (LOUDEST, 0.2), (0, 0.1), (LOUDEST, 0.2))) == 0.25
