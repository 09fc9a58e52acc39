"""Word times are shared out by sounds; the silence around speech is short."""

from __future__ import annotations

import pytest

from callagent.speech.local import wire
from callagent.speech.local.voice_process import load, word_times


def test_a_word_gets_time_by_its_sounds() -> None:
    times = word_times("yes certainly", "jˈɛs sˈɜɹtnli.", 1.0, 2.0)
    assert [word for word, _, _ in times] == ["yes", "certainly"]
    assert times[0][1] == 1.0
    assert times[0][2] == times[1][1] == pytest.approx(1 + 3.5 / 11)
    assert times[1][2] == pytest.approx(2.0)


def test_where_the_sounds_are_not_word_by_word_the_letters_count() -> None:
    times = word_times("$9.99 please", "nˈIn dˈɑləɹz ænd nˈIndi nˈIn sˈɛnts plˈiz.", 0.0, 1.0)
    assert [word for word, _, _ in times] == ["$9.99", "please"]
    assert times[-1][2] == pytest.approx(1.0)


def test_a_comma_takes_time() -> None:
    without, with_comma = (word_times(text, text, 0.0, 1.0) for text in ("one two", "one, two"))
    assert with_comma[0][2] > without[0][2]


def test_no_words_no_times() -> None:
    assert word_times("", "", 0.0, 0.0) == ()


@pytest.mark.local
def test_the_engine_speaks_with_little_silence_at_the_ends() -> None:
    pytest.importorskip("hibari")
    serve = load(wire.LoadVoice())
    spoken = serve(wire.Speak(1, "Certainly, for how many people?"))
    assert isinstance(spoken, wire.Spoken)
    seconds = len(spoken.pcm) / 16000
    assert 1.0 < seconds < 3.0
    assert spoken.words[0][1] <= 0.05
    assert spoken.words[-1][2] >= seconds - 0.25
    faster = serve(wire.Speak(2, "Certainly, for how many people?", "", 1.5))
    assert isinstance(faster, wire.Spoken)
    assert len(faster.pcm) < 0.8 * len(spoken.pcm)
    again = serve(wire.Speak(3, "Certainly, for how many people?"))
    assert isinstance(again, wire.Spoken)
    assert again.pcm == spoken.pcm


@pytest.mark.local
def test_only_voices_that_are_here_are_spoken_with() -> None:
    pytest.importorskip("hibari")
    serve = load(wire.LoadVoice())
    with pytest.raises(ValueError, match="no voice 'nobody'; known here: heart"):
        serve(wire.Speak(1, "Hello.", "nobody"))
    silent = serve(wire.Speak(2, "☃"))
    assert isinstance(silent, wire.Spoken)
