from __future__ import annotations

import audioop

from callagent.rtp.concealment import SILENCE, Concealment
from tests.rtp.streams import tone


def heard(frames: int, hertz: float = 200.0) -> Concealment:
    concealment = Concealment()
    for index in range(frames):
        assert concealment.received(tone(index, hertz)) == tone(index, hertz)
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
    back = concealment.received(tone(13))
    assert back[80:] == tone(13)[80:]
    assert back[:80] != tone(13)[:80]
    assert concealment.received(tone(14)) == tone(14)


def test_nothing_is_made_up_from_nothing() -> None:
    assert Concealment().conceal() == SILENCE
    concealment = heard(10)
    assert concealment.silence() == SILENCE
    assert concealment.conceal() == SILENCE
