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
    transcription, stream = Transcription(), Stream()
    transcription.open(stream)
    return transcription, stream


def final(utterance: int, text: str) -> Transcript:
    return Transcript(text, True, utterance)


def test_begin_and_finish_come_in_pairs() -> None:
    transcription, stream = opened()
    transcription.finish_utterance()
    transcription.begin_utterance()
    transcription.begin_utterance()
    transcription.finish_utterance()
    transcription.finish_utterance()
    transcription.close()
    transcription.close()
    assert stream.told == ["begin", "finish", "close"]


def test_without_a_stream_nothing_happens() -> None:
    transcription = Transcription()
    transcription.feed_audio(b"")
    transcription.begin_utterance()
    transcription.finish_utterance()
    transcription.close()
    assert not transcription.opened
    assert not transcription.final_pending


def test_a_final_is_owed_for_each_finish() -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    assert not transcription.final_pending
    transcription.finish_utterance()
    assert transcription.final_pending
    transcription.begin_utterance()
    transcription.finish_utterance()
    assert transcription.add_transcript(final(2, "four"), 1.0)
    assert transcription.final_pending
    assert transcription.add_transcript(final(1, "for"), 2.0)
    assert (transcription.final_pending, transcription.text, transcription.final_at) == (False, "for four", 2.0)


def test_transcripts_of_a_turn_that_is_over_are_too_late() -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    transcription.add_transcript(Transcript("a tab", False, 1), 0.0)
    transcription.finish_utterance()
    assert transcription.end_turn().text == "a tab"
    assert not transcription.add_transcript(final(1, "a table"), 1.0)
    assert not transcription.add_transcript(final(2, "nobody began it"), 1.0)
    assert transcription.text == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [("", False), ("Okay.", False), ("Mm-hm, yeah", False), ("yes", True), ("okay stop", True), ("…", False)],
)
def test_acknowledgements_are_text_but_take_no_floor(text: str, words: bool) -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    transcription.add_transcript(Transcript(text, False, 1), 0.0)
    assert transcription.has_words is words
    assert transcription.has_text is bool(text)


def test_a_reopened_turn_has_the_whole_text_and_what_was_added() -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    transcription.finish_utterance()
    transcription.add_transcript(Transcript("a table", True, 1, ("a cable",)), 0.0)
    first = transcription.end_turn()
    assert (first.text, first.alternatives, first.added) == ("a table", ("a cable",), "a table")
    transcription.begin_utterance()
    transcription.add_transcript(Transcript("for four", True, 2, ("for for",)), 1.0)
    assert transcription.reopen_turn() == "a table"
    transcription.finish_utterance()
    second = transcription.end_turn()
    assert (second.text, second.alternatives, second.added) == ("a table for four", (), "for four")
    transcription.begin_utterance()
    transcription.add_transcript(final(3, "yes"), 2.0)
    assert transcription.end_turn().text == "yes"


def test_noise_is_forgotten_but_not_what_is_still_owed() -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    transcription.add_transcript(Transcript("mm-hm", False, 1), 0.0)
    transcription.finish_utterance()
    transcription.discard_noise()
    assert transcription.text == "mm-hm"
    transcription.add_transcript(final(1, "mm-hm"), 1.0)
    transcription.discard_noise()
    assert transcription.text == ""


def test_what_is_being_said_when_a_turn_ends_belongs_to_the_next() -> None:
    transcription, _ = opened()
    transcription.begin_utterance()
    transcription.end_turn()
    assert transcription.add_transcript(Transcript("and", False, 1), 0.0)
