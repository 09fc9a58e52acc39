from __future__ import annotations

import pytest

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.phone.ear import Ear, Heard
from callagent.speech.protocol import RecognizerSettings, Transcript

LOUD = b"\x10\x20" * (FRAME_BYTES // 2)
QUIET = bytes(FRAME_BYTES)
NOISE = b"\x05\x00" * (FRAME_BYTES // 2)


class Stream:
    """What a recogniser is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.fed = 0

    def feed(self, pcm: bytes) -> None:
        self.fed += 1

    def begin(self, settings: RecognizerSettings) -> None:
        self.told.append("begin")

    def finish(self) -> None:
        self.told.append("finish")

    def close(self) -> None:
        self.told.append("close")


class Listening:
    def __init__(self, *, recognised: bool = True) -> None:
        self.heard: list[Heard] = []
        self.ear = Ear(self.heard.append)
        self.stream = Stream()
        self.ear.use(self.stream if recognised else None, answered=100.0)
        self.now = 100.0

    def hear(self, frame: bytes, seconds: float) -> None:
        for _ in range(round(seconds / FRAME_SECONDS)):
            self.ear.on_frame(frame, self.now)
            self.now += FRAME_SECONDS


async def test_an_utterance_ends_after_a_pause_and_is_told_once_recognised() -> None:
    call = Listening()
    call.hear(QUIET, 1.0)
    call.hear(LOUD, 1.0)
    assert call.ear.speaking_since == pytest.approx(1.0)
    call.hear(QUIET, 0.5)
    call.hear(LOUD, 0.5)
    assert len(call.ear.utterances) == 1, "a pause between words ends nothing"
    call.hear(QUIET, 0.7)
    (utterance,) = call.ear.utterances
    assert (round(utterance.started, 2), round(utterance.ended or 0, 2)) == (1.0, 2.98)
    assert call.ear.speaking_since is None
    assert call.stream.told == ["begin", "finish"]
    assert call.ear.recognising
    assert call.heard == []
    call.ear.on_transcript(Transcript("hello", False, 1))
    assert call.heard == []
    call.ear.on_transcript(Transcript("hello there", True, 1))
    assert [(one.number, one.text) for one in call.heard] == [(1, "hello there")]
    assert not call.ear.recognising
    call.ear.on_transcript(Transcript("again", True, 1))
    assert len(call.heard) == 1


async def test_without_a_recogniser_utterances_have_times_and_no_words() -> None:
    call = Listening(recognised=False)
    call.hear(LOUD, 0.5)
    call.hear(QUIET, 0.7)
    assert [(one.text, round(one.ended or 0, 2)) for one in call.heard] == [(None, 0.48)]


async def test_noise_is_not_speech_and_everything_is_fed() -> None:
    call = Listening()
    call.hear(NOISE, 1.0)
    assert call.ear.utterances == []
    assert call.stream.fed == 50


async def test_the_end_of_the_call_ends_the_utterance() -> None:
    call = Listening()
    call.hear(LOUD, 0.5)
    call.ear.close()
    assert call.stream.told == ["begin", "finish"]
    call.ear.on_transcript(Transcript("goodb", True, 1))
    assert [one.text for one in call.heard] == ["goodb"]
    call.ear.close()
    assert call.stream.told == ["begin", "finish"]


async def test_whatever_is_heard_wakes_who_waits() -> None:
    call = Listening()
    call.hear(LOUD, 0.1)
    assert call.ear.changed.is_set()
    call.ear.changed.clear()
    call.hear(LOUD, 0.1)
    assert not call.ear.changed.is_set()
    call.hear(QUIET, 0.7)
    assert call.ear.changed.is_set()


async def test_a_bed_of_sound_under_the_words_is_a_pause_between_them() -> None:
    listening = Listening(recognised=False)
    bed = b"\x47\x01" * (FRAME_BYTES // 2)
    listening.hear(bed, 0.2)
    listening.hear(LOUD, 1.0)
    listening.hear(bed, 2.0)
    listening.hear(LOUD, 1.0)
    listening.hear(bed, 1.0)
    ended = [(round(one.started, 1), one.ended is not None) for one in listening.ear.utterances]
    assert ended == [(0.2, True), (3.2, True)]
