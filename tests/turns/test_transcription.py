from __future__ import annotations

import pytest

from callagent.speech.protocol import RecognizerSettings, Transcript
from callagent.turns.caller_speech import Transcription


class Stream:
    def __init__(self) -> None:
        self.told: list[str] = []

    def feed(self, pcm: bytes) -> None:
        self.told.append("feed")

    def begin(self, settings: RecognizerSettings) -> None:
        self.told.append("begin")

    def finish(self) -> None:
        self.told.append("finish")

    def close(self) -> None:
        self.told.append("close")


def opened() -> tuple[Transcription, Stream]:
    listener, stream = Transcription(), Stream()
    listener.open(stream)
    return listener, stream


def final(utterance: int, text: str) -> Transcript:
    return Transcript(text, True, utterance)


def test_begin_and_finish_come_in_pairs() -> None:
    listener, stream = opened()
    listener.finish()
    listener.begin()
    listener.begin()
    listener.finish()
    listener.finish()
    listener.close()
    listener.close()
    assert stream.told == ["begin", "finish", "close"]


def test_without_a_stream_nothing_happens() -> None:
    listener = Transcription()
    listener.feed(b"")
    listener.begin()
    listener.finish()
    listener.close()
    assert not listener.opened
    assert not listener.owed


def test_a_final_is_owed_for_each_finish() -> None:
    listener, _ = opened()
    listener.begin()
    assert not listener.owed
    listener.finish()
    assert listener.owed
    listener.begin()
    listener.finish()
    assert listener.take(final(2, "four"), 1.0)
    assert listener.owed
    assert listener.take(final(1, "for"), 2.0)
    assert (listener.owed, listener.text, listener.ready) == (False, "for four", 2.0)


def test_transcripts_of_a_turn_that_is_over_are_too_late() -> None:
    listener, _ = opened()
    listener.begin()
    listener.take(Transcript("a tab", False, 1), 0.0)
    listener.finish()
    assert listener.end_turn().text == "a tab"
    assert not listener.take(final(1, "a table"), 1.0)
    assert not listener.take(final(2, "nobody began it"), 1.0)
    assert listener.text == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [("", False), ("Okay.", False), ("Mm-hm, yeah", False), ("yes", True), ("okay stop", True), ("…", False)],
)
def test_acknowledgements_are_text_but_take_no_floor(text: str, words: bool) -> None:
    listener, _ = opened()
    listener.begin()
    listener.take(Transcript(text, False, 1), 0.0)
    assert listener.has_words is words
    assert listener.has_text is bool(text)


def test_a_reopened_turn_has_the_whole_text_and_what_was_added() -> None:
    listener, _ = opened()
    listener.begin()
    listener.finish()
    listener.take(Transcript("a table", True, 1, ("a cable",)), 0.0)
    first = listener.end_turn()
    assert (first.text, first.alternatives, first.added) == ("a table", ("a cable",), "a table")
    listener.begin()
    listener.take(Transcript("for four", True, 2, ("for for",)), 1.0)
    assert listener.reopen() == "a table"
    listener.finish()
    second = listener.end_turn()
    assert (second.text, second.alternatives, second.added) == ("a table for four", (), "for four")
    listener.begin()
    listener.take(final(3, "yes"), 2.0)
    assert listener.end_turn().text == "yes"


def test_noise_is_forgotten_but_not_what_is_still_owed() -> None:
    listener, _ = opened()
    listener.begin()
    listener.take(Transcript("mm-hm", False, 1), 0.0)
    listener.finish()
    listener.forget_noise()
    assert listener.text == "mm-hm"
    listener.take(final(1, "mm-hm"), 1.0)
    listener.forget_noise()
    assert listener.text == ""


def test_what_is_being_said_when_a_turn_ends_belongs_to_the_next() -> None:
    listener, _ = opened()
    listener.begin()
    listener.end_turn()
    assert listener.take(Transcript("and", False, 1), 0.0)
