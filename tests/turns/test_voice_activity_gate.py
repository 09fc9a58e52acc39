from __future__ import annotations

import pytest

from callagent.audio import FRAME_BYTES, dtmf_frames
from callagent.turns.voice_activity_gate import Edge, VoiceActivityGate, VoiceActivitySettings

LOUD = b"\x00\x20" * (FRAME_BYTES // 2)
SETTINGS = VoiceActivitySettings(
    start_threshold=0.5, stop_threshold=0.3, min_speech=0.08, hangover=0.2, barge_evidence=5.3, loud_level=20000
)


class Scripted:
    def __init__(self) -> None:
        self.probability = 0.0

    def feed(self, frame: bytes) -> float:
        return self.probability

    def reset(self) -> None: ...


def edges(*probabilities: float, frame: bytes = LOUD) -> list[tuple[Edge, float, float]]:
    """Frames from 0 s on: what edge, when it says it was, when it was told."""
    activity = Scripted()
    gate = VoiceActivityGate(activity, SETTINGS)
    told = []
    for number, probability in enumerate(probabilities, 1):
        activity.probability = probability
        now = number * 0.02
        told += [(edge.edge, round(edge.at, 2), round(now, 2)) for edge in gate.feed(frame, now)]
    return told


def test_speech_starts_when_there_was_enough_of_it_and_says_when_it_began() -> None:
    assert edges(0, 0, *[0.6] * 8) == [(Edge.STARTED, 0.04, 0.12)]


def test_surer_speech_also_barges_in() -> None:
    assert edges(*[0.9] * 20) == [(Edge.STARTED, 0.0, 0.08), (Edge.BARGED, 0.0, 0.12)]


def test_a_click_is_no_speech() -> None:
    assert edges(*[0.9] * 3, *[0.0] * 5, *[0.9] * 3, *[0.0] * 5) == []


def test_a_frame_of_doubt_does_not_start_the_count_anew() -> None:
    assert edges(0.9, 0.9, 0.1, 0.9, 0.9) == [(Edge.STARTED, 0.0, 0.1)]


def test_speech_ends_after_the_hangover_and_says_when_it_did() -> None:
    told = edges(*[0.6] * 10, *[0.0] * 20)
    assert told[-1] == (Edge.ENDED, 0.2, 0.4)


def test_between_the_thresholds_speech_neither_starts_nor_ends() -> None:
    assert edges(*[0.4] * 50) == []
    assert [edge for edge, _, _ in edges(*[0.6] * 5, *[0.4] * 50)] == [Edge.STARTED, Edge.BARGED]


def test_doubtful_speech_barges_in_when_there_is_more_of_it() -> None:
    assert [now for edge, _, now in edges(*[0.9] * 20) if edge is Edge.BARGED] == [0.12]
    assert [now for edge, _, now in edges(*[0.6] * 20) if edge is Edge.BARGED] == [0.18]


def test_a_loud_frame_is_speech_sooner() -> None:
    shout = b"\x00\x60" * (FRAME_BYTES // 2)
    assert edges(*[0.25] * 10) == []
    assert edges(*[0.25] * 10, frame=shout) == [(Edge.STARTED, 0.0, 0.08)]
    assert edges(*[0.15] * 10, frame=shout) == []


@pytest.mark.parametrize(("frame", "silent"), [(LOUD, 3), (b"\x20\x01" * (FRAME_BYTES // 2), 15)])
def test_a_key_press_is_no_speech_and_what_follows_it_is(frame: bytes, silent: int) -> None:
    key = next(dtmf_frames("5"))
    activity, told = Scripted(), []
    gate = VoiceActivityGate(activity, SETTINGS)
    activity.probability = 0.9
    for number, one in enumerate([key] * 10 + [frame] * 25, 1):
        told += [(edge.edge, round(edge.at / 0.02)) for edge in gate.feed(one, number * 0.02)]
    assert told == [(Edge.STARTED, 10 + silent), (Edge.BARGED, 10 + silent)]


@pytest.mark.parametrize(("burst", "ended"), [(1, 0.2), (2, 0.28)])
def test_a_stops_release_in_the_afterglow_is_not_where_speech_ends(burst: int, ended: float) -> None:
    activity, afterglow = Scripted(), b"\x40\x00" * (FRAME_BYTES // 2)
    gate, told = VoiceActivityGate(activity, SETTINGS), []
    frames = [LOUD] * 10 + [afterglow] * 2 + [LOUD] * burst + [afterglow] * 3
    for number, frame in enumerate(frames + [afterglow] * 20, 1):
        activity.probability = 0.9 if number <= len(frames) else 0.0
        told += [edge for edge in gate.feed(frame, number * 0.02) if edge.edge is Edge.ENDED]
    assert [round(edge.at, 2) for edge in told] == [ended]


def test_speech_starts_again_after_its_end() -> None:
    told = edges(*[0.9] * 10, *[0.0] * 15, *[0.9] * 10)
    assert [edge for edge, _, _ in told] == [Edge.STARTED, Edge.BARGED, Edge.ENDED, Edge.STARTED, Edge.BARGED]


@pytest.mark.parametrize("frame", [bytes(FRAME_BYTES), b"\x10\x00" * (FRAME_BYTES // 2)])
def test_next_to_silence_nothing_is_speech_whatever_the_detector_thinks(frame: bytes) -> None:
    assert edges(*[1.0] * 50, frame=frame) == []
