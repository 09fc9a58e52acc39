from __future__ import annotations

import audioop

import pytest

from callagent.audio import FRAME_BYTES
from callagent.rtp.concealment import SILENCE, ComfortNoise, Concealment
from tests.rtp.streams import tone


def heard(frames: int, hertz: float = 200.0) -> Concealment:
    concealment = Concealment()
    for index in range(frames):
        assert concealment.receive(tone(index, hertz)) == tone(index, hertz)
    return concealment


def test_a_lost_frame_of_a_tone_sounds_like_the_tone() -> None:
    for hertz in (80.0, 100.0, 160.0, 200.0):
        made_up = heard(10, hertz).conceal()
        error = audioop.add(made_up, audioop.mul(tone(10, hertz), 2, -1), 2)
        assert audioop.rms(error, 2) < 0.2 * audioop.rms(made_up, 2), hertz


def test_it_fades_out_after_60_ms_and_is_silent_after_100_ms() -> None:
    concealment = heard(10)
    levels = [audioop.rms(concealment.conceal(), 2) for _ in range(7)]
    assert levels == sorted(levels, reverse=True)
    assert levels[2] > 0.7 * levels[0] > levels[4]
    assert levels[5:] == [0, 0]


def test_the_first_real_frame_is_blended_in_without_a_click() -> None:
    concealment = heard(10)
    concealment.conceal()
    back = concealment.receive(tone(13))
    assert back[80:] == tone(13)[80:]
    assert back[:80] != tone(13)[:80]
    assert concealment.receive(tone(14)) == tone(14)


def test_nothing_is_made_up_from_nothing() -> None:
    assert Concealment().conceal() == SILENCE
    concealment = heard(10)
    assert concealment.silence() == SILENCE
    assert concealment.conceal() == SILENCE


def test_a_bridge_leads_from_the_one_side_to_the_other() -> None:
    for missing in (1, 2, 3):
        for hertz in (80.0, 120.0, 200.0):
            frames = heard(10, hertz).fill_gap(missing, tone(10 + missing, hertz))
            assert [len(frame) for frame in frames] == [320] * missing
            for index, frame in enumerate(frames):
                error = audioop.add(frame, audioop.mul(tone(10 + index, hertz), 2, -1), 2)
                assert audioop.rms(error, 2) < 0.35 * audioop.rms(frame, 2), (missing, hertz)


def test_nothing_is_blended_after_a_bridge() -> None:
    concealment = heard(10)
    concealment.fill_gap(1, tone(11))
    assert concealment.receive(tone(11)) == tone(11)


def test_a_long_bridge_is_silent_in_the_middle() -> None:
    levels = [audioop.rms(frame, 2) for frame in heard(10).fill_gap(12, tone(22))]
    assert levels[5] == levels[6] == 0
    assert levels[0] > levels[3] > 0 < levels[8] < levels[11]


def test_a_bridge_out_of_silence_fades_in_and_one_into_silence_fades_out() -> None:
    assert Concealment().fill_gap(1, tone(1))[0] != SILENCE
    (fading,) = heard(10).fill_gap(1, SILENCE)
    assert audioop.rms(fading, 2) > 1000


@pytest.mark.parametrize(("level", "rms"), [(30, 1036), (50, 104), (70, 10)])
def test_noise_has_the_level_that_the_peer_says(level: int, rms: int) -> None:
    noise = ComfortNoise(bytes([level, 1, 2, 3]))
    frames = [noise.frame() for _ in range(50)]
    assert {len(frame) for frame in frames} == {FRAME_BYTES}
    assert audioop.rms(b"".join(frames), 2) == pytest.approx(rms, rel=0.15)
    assert len(set(frames)) > 10


def test_an_empty_description_is_not_valid() -> None:
    with pytest.raises(ValueError, match="not valid"):
        ComfortNoise(b"")
