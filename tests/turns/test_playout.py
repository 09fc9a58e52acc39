from __future__ import annotations

import array
import itertools
import threading
import time

import pytest

from callagent.audio import FRAME_BYTES
from callagent.speech.protocol import WordTime
from callagent.turns.playout import Cue, Playout, Utterance


def frame(number: int) -> bytes:
    """A frame whose every sample is its number."""
    return number.to_bytes(2, "little") * (FRAME_BYTES // 2)


def number(sent: bytes | None) -> int | None:
    """What frame it is, by its last sample, which a fade-in leaves alone."""
    return None if sent is None else array.array("h", sent)[-1]


class Pump:
    def __init__(self) -> None:
        self.cues: list[tuple[str, bool, float]] = []
        self.now = 0.0
        self.playout = Playout(self.note, lambda: self.now)

    def note(self, cue: Cue, at: float) -> None:
        self.cues.append((cue.utterance.text, cue.begins, round(at, 2)))

    def pull(self, count: int) -> list[int | None]:
        sent = []
        for _ in range(count):
            sent.append(number(self.playout.next_frame()))
            self.now += 0.02
        return sent

    def put(self, utterance: Utterance, first: int, count: int, *words: WordTime, complete: bool = True) -> None:
        self.playout.begin(utterance)
        self.playout.add_words(utterance, words)
        for value in range(first, first + count):
            self.playout.append(utterance, frame(value))
        if complete:
            self.playout.complete(utterance)


A = Utterance(1, "one two three four five")
B = Utterance(2, "six")
WORDS = tuple(WordTime(word, 0.2 * index, 0.2 * index + 0.18) for index, word in enumerate(A.text.split()))


def test_utterances_follow_each_other_and_their_instants_are_told() -> None:
    pump = Pump()
    pump.put(A, 1, 3)
    pump.put(B, 11, 2)
    assert pump.pull(7) == [1, 2, 3, 11, 12, None, None]
    assert pump.cues == [(A.text, True, 0.0), (A.text, False, 0.06), (B.text, True, 0.06), (B.text, False, 0.1)]
    assert pump.playout.underruns == 0


def test_an_utterance_begins_with_its_first_frame() -> None:
    pump = Pump()
    pump.playout.begin(A)
    assert pump.pull(2) == [None, None]
    assert pump.cues == []
    assert list(pump.playout.current(0.0)) == [A]
    pump.playout.append(A, frame(1))
    pump.pull(1)
    assert pump.cues == [(A.text, True, 0.04)]


def test_what_is_said_reaches_back_to_what_the_wire_has_not_played() -> None:
    pump = Pump()
    pump.put(A, 1, 10)
    pump.put(B, 11, 10)
    assert list(pump.playout.current(0.0)) == [A]
    pump.pull(10)
    assert list(pump.playout.current(0.2)) == [A]
    pump.pull(2)
    assert list(pump.playout.current(0.0)) == [B]
    assert list(pump.playout.current(0.06)) == [A, B]
    pump.pull(9)
    assert list(pump.playout.current(0.0)) == []
    assert list(pump.playout.current(0.2)) == [B]


def test_a_pause_may_go_back_before_what_was_passed() -> None:
    pump = Pump()
    begins, ends = Cue(A, begins=True), Cue(A, begins=False)
    pump.put(A, 1, 10)
    assert not pump.playout.has_passed(begins)
    pump.pull(11)
    assert pump.playout.has_passed(begins)
    assert pump.playout.has_passed(ends)
    pump.playout.pause(0.1)
    assert pump.playout.has_passed(begins)
    assert not pump.playout.has_passed(ends)
    pump.playout.discard()
    assert not pump.playout.has_passed(begins)


def test_a_gap_within_an_utterance_is_counted_once() -> None:
    pump = Pump()
    pump.put(A, 1, 1, complete=False)
    pump.pull(4)
    pump.playout.append(A, frame(2))
    assert pump.pull(3) == [2, None, None]
    assert pump.playout.underruns == 2
    pump.playout.complete(A)
    pump.pull(3)
    assert pump.playout.underruns == 2


def test_an_utterance_without_audio_begins_and_ends() -> None:
    pump = Pump()
    pump.put(A, 1, 0)
    assert pump.pull(1) == [None]
    assert [begins for _, begins, _ in pump.cues] == [True, False]


def test_a_pause_is_silent_after_one_faded_frame() -> None:
    pump = Pump()
    pump.put(A, 1000, 10)
    pump.pull(3)
    pump.playout.pause()
    last = array.array("h", pump.playout.next_frame() or b"")
    assert last[0] == 1003
    assert list(last[:40]) == sorted(last[:40], reverse=True)
    assert set(last[40:]) == {0}
    assert pump.pull(3) == [None] * 3
    assert pump.playout.paused


def test_after_a_pause_it_goes_on_with_the_interrupted_word() -> None:
    pump = Pump()
    pump.put(A, 1, 50, *WORDS)
    pump.pull(25)  # 0.5 s: within "three", which began at 0.4 s
    pump.playout.pause()
    pump.pull(10)
    pump.playout.resume()
    resumed = array.array("h", pump.playout.next_frame() or b"")
    assert (resumed[0], resumed[-1]) == (0, 21)
    assert pump.pull(3) == [22, 23, 24]


def test_after_a_pause_it_goes_back_a_third_of_a_second_without_word_times() -> None:
    pump = Pump()
    pump.put(A, 1, 50)
    pump.pull(25)
    pump.playout.pause()
    pump.playout.resume()
    assert pump.pull(2) == [11, 12]


def test_a_second_pause_may_go_back_beyond_the_first() -> None:
    pump = Pump()
    pump.put(A, 1, 50)
    pump.pull(25)
    pump.playout.pause()
    pump.playout.resume()
    pump.pull(3)
    pump.playout.pause()
    pump.playout.resume()
    assert pump.pull(1) == [1]


def test_what_the_wire_dropped_is_said_again_even_of_the_utterance_before() -> None:
    pump = Pump()
    pump.put(A, 1, 10, WordTime("one", 0.0, 0.1), WordTime("two", 0.1, 0.2))
    pump.put(B, 11, 10)
    pump.pull(13)
    pump.playout.pause(unheard=0.1)
    assert pump.pull(2) == [None, None]
    pump.playout.resume()
    assert pump.pull(6) == [6, 7, 8, 9, 10, 11]


def test_audio_that_comes_during_a_pause_is_said_after_it() -> None:
    pump = Pump()
    pump.put(A, 1, 2, WordTime("one", 0.0, 0.1), complete=False)
    pump.pull(2)
    pump.playout.pause()
    pump.playout.append(A, frame(3))
    pump.playout.complete(A)
    pump.put(B, 4, 1)
    pump.pull(2)
    pump.playout.resume()
    assert pump.pull(5) == [1, 2, 3, 4, None]


def test_a_pause_before_anything_began_holds_the_beginning_back() -> None:
    pump = Pump()
    pump.playout.pause()
    pump.put(A, 1, 2)
    assert pump.pull(2) == [None, None]
    assert pump.cues == []
    pump.playout.resume()
    assert pump.pull(2) == [1, 2]


def test_pause_and_resume_twice_are_once() -> None:
    pump = Pump()
    pump.put(A, 1, 50, *WORDS)
    pump.pull(5)
    pump.playout.pause()
    pump.pull(2)
    pump.playout.pause()
    pump.playout.resume()
    pump.playout.resume()
    assert pump.pull(1) == [1]


@pytest.mark.parametrize(
    ("frames", "heard"), [(2, ""), (6, "one"), (25, "one two three"), (23, "one two"), (50, A.text)]
)
def test_a_discard_tells_the_words_heard(frames: int, heard: str) -> None:
    pump = Pump()
    pump.put(A, 1, 50, *WORDS)
    pump.put(B, 100, 5)
    pump.pull(frames)
    assert [entry.text for entry in pump.playout.discard()] == [heard]
    assert pump.playout.idle
    assert not pump.playout.paused
    pump.pull(1)
    assert pump.pull(3) == [None] * 3


def test_a_discard_counts_what_the_wire_dropped_as_unheard() -> None:
    pump = Pump()
    pump.put(A, 1, 50, *WORDS)
    pump.pull(25)
    assert [entry.text for entry in pump.playout.discard(unheard=0.3)] == ["one"]


def test_frames_of_a_discarded_utterance_are_not_wanted_and_the_next_one_is() -> None:
    pump = Pump()
    pump.put(A, 1, 5, complete=False)
    pump.pull(2)
    pump.playout.discard()
    assert not pump.playout.append(A, frame(6))
    pump.playout.complete(A)
    pump.put(B, 11, 1)
    pump.pull(1)  # the fade
    assert pump.pull(2) == [11, None]


def test_an_utterance_that_has_not_begun_can_be_withdrawn() -> None:
    pump = Pump()
    pump.put(A, 1, 2)
    pump.put(B, 11, 2)
    assert pump.playout.complete_ahead == 2
    pump.pull(1)
    assert pump.playout.complete_ahead == 1
    assert pump.playout.withdraw(B)
    assert not pump.playout.withdraw(A)
    assert not pump.playout.withdraw(B)
    assert pump.pull(3) == [2, None, None]
    assert [text for text, _, _ in pump.cues] == [A.text, A.text]


def test_withdrawing_one_that_is_still_being_synthesised_leaves_no_gap_to_count() -> None:
    pump = Pump()
    pump.playout.begin(A)
    assert pump.playout.withdraw(A)
    pump.put(B, 11, 1, complete=False)
    assert pump.playout.withdraw(B)
    assert pump.pull(2) == [None, None]
    assert (pump.playout.idle, pump.playout.underruns) == (True, 0)


def test_remaining_counts_what_is_there_and_not_played() -> None:
    pump = Pump()
    pump.put(A, 1, 10)
    pump.put(B, 11, 5)
    pump.pull(4)
    assert pump.playout.remaining == pytest.approx(0.22)


def test_a_released_utterance_lets_go_of_its_audio() -> None:
    pump = Pump()
    pump.put(A, 1, 10)
    pump.pull(11)
    assert pump.playout.release(A) == A.text
    assert pump.playout.release(A) == ""
    assert pump.playout.idle
    assert not list(pump.playout.current(0.0))


def test_an_utterance_cut_by_its_voice_is_heard_as_far_as_it_went() -> None:
    pump = Pump()
    pump.playout.begin(A)
    pump.playout.add_words(A, WORDS[:2])
    for value in range(20):
        pump.playout.append(A, frame(value))
    pump.playout.complete(A, cut=True)
    pump.pull(21)
    assert pump.playout.release(A) == "one two"


def test_a_pump_thread_gets_every_frame_once_and_in_order_while_the_loop_pauses_and_withdraws() -> None:
    """The pump pulls as fast as it can; whatever the loop does, frames never go missing or come out of order."""
    pump = Pump()
    sent: list[int] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if (value := number(pump.playout.next_frame())) is not None:
                sent.append(value)
            else:
                time.sleep(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for turn in range(300):
            utterance = Utterance(2 * turn + 1, "words")
            extra = Utterance(2 * turn + 2, "taken back")
            # Word times at every frame: a resume goes on where the pause was.
            words = tuple(WordTime("w", index * 0.02, (index + 1) * 0.02) for index in range(20))
            pump.put(utterance, 1 + turn * 20, 20, *words)
            pump.put(extra, 30000, 3)
            pump.playout.pause()
            pump.playout.withdraw(extra)
            pump.playout.resume()
            deadline = time.monotonic() + 10
            while pump.playout.remaining and time.monotonic() < deadline:
                time.sleep(0)
            pump.playout.release(utterance)
            pump.playout.release(extra)
    finally:
        stop.set()
        thread.join()
    # A faded tail ends in silence; the frame that a resume repeats is the one it was cut in.
    said = [value for value in sent if value not in (0, 30000, 30001, 30002)]
    assert sorted(set(said)) == list(range(1, 6001))
    assert all(after - before in (-1, 0, 1) for before, after in itertools.pairwise(said))
