"""When a partial, a draft or a piece is due, counted in audio."""

from __future__ import annotations

import random
from array import array

import pytest

from callagent.speech.local.utterance import BYTES_PER_SECOND, MAX_PIECE_SECONDS, Utterance, Wanted, pieces, quietest

FRAME = 0.02
NOTHING, PARTIAL, DRAFT, PIECE = Wanted.NOTHING, Wanted.PARTIAL, Wanted.DRAFT, Wanted.PIECE


def sound(seconds: float, amplitude: int = 8000) -> bytes:
    samples = round(seconds * 8000)
    return array("h", ((amplitude if n // 20 % 2 else -amplitude) for n in range(samples))).tobytes()


def say(utterance: Utterance, *parts: tuple[float, int]) -> list[tuple[float, Wanted]]:
    """Feed (seconds, amplitude) frame by frame, doing as asked; what was wanted, and when."""
    wanted, elapsed = [], 0.0
    for seconds, amplitude in parts:
        for _ in range(round(seconds / FRAME)):
            elapsed += FRAME
            match utterance.feed(sound(FRAME, amplitude)):
                case Wanted.NOTHING:
                    continue
                case Wanted.PARTIAL as what:
                    utterance.begin_partial()
                case Wanted.DRAFT as what:
                    utterance.begin_draft()
                case what:
                    utterance.cut()
            wanted.append((round(elapsed, 2), what))
    return wanted


def test_a_partial_for_each_new_stretch_of_speech() -> None:
    assert say(Utterance(b""), (1.0, 8000)) == [(0.3, PARTIAL), (0.6, PARTIAL), (0.9, PARTIAL)]


def test_silence_wants_a_draft_once_and_no_partials() -> None:
    assert say(Utterance(b""), (0.4, 8000), (2.0, 0)) == [(0.3, PARTIAL), (0.6, DRAFT)]


def test_speech_after_the_draft_outdates_it() -> None:
    utterance = Utterance(b"")
    say(utterance, (0.4, 8000), (0.3, 0))
    assert not utterance.spoken_on
    assert say(utterance, (0.2, 8000), (0.4, 0)) == [(0.4, DRAFT)]
    assert not utterance.spoken_on
    say(utterance, (0.02, 8000))
    assert utterance.spoken_on


def test_what_is_far_softer_than_the_voice_is_silence() -> None:
    assert say(Utterance(b""), (0.28, 8000), (0.4, 300)) == [(0.48, DRAFT)]
    assert say(Utterance(b""), (0.28, 8000), (0.4, 600)) == [(0.3, PARTIAL), (0.6, PARTIAL)]


def test_no_draft_of_an_utterance_in_which_nothing_was_said() -> None:
    assert say(Utterance(bytes(8000)), (2.0, 0)) == []


def test_what_came_before_belongs_to_the_utterance_but_hurries_nothing() -> None:
    utterance = Utterance(sound(0.5))
    assert len(utterance.audio) == BYTES_PER_SECOND // 2
    assert say(utterance, (0.4, 8000)) == [(0.3, PARTIAL)]


def test_a_long_utterance_is_cut_where_it_is_quietest() -> None:
    utterance = Utterance(b"")
    wanted = say(utterance, (20.0, 8000), (0.1, 400), (5.9, 8000), (0.1, 8000))
    assert [what for _, what in wanted if what is not PARTIAL] == [PIECE]
    assert len(utterance.audio) / BYTES_PER_SECOND == pytest.approx(6.05, abs=0.15)


def test_pieces_lose_nothing_and_are_short_enough() -> None:
    source = random.Random(3)
    pcm = b"".join(sound(source.uniform(0.05, 3), source.choice([0, 500, 9000])) for _ in range(60))
    cut = pieces(pcm)
    assert b"".join(cut) == pcm
    assert len(cut) > 1
    assert all(len(piece) <= MAX_PIECE_SECONDS * BYTES_PER_SECOND and len(piece) % 2 == 0 for piece in cut)
    assert pieces(b"") == [b""]


@pytest.mark.parametrize("size", [0, 2, 1000, 1602, 20001])
def test_a_cut_of_short_audio_is_inside_it_or_at_its_end(size: int) -> None:
    assert 0 <= quietest(bytes(size), 8.0) <= size
