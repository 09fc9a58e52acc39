"""One call's stream, on a real process that echoes what it was asked; what an utterance wants while it is spoken."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from callagent.audio import FRAME_BYTES
from callagent.speech.local import inference
from callagent.speech.local.inference import Engine
from callagent.speech.local.recognizer import (
    BYTES_PER_SECOND,
    MAX_PIECE_SECONDS,
    LocalStream,
    NextTranscription,
    Utterance,
    quietest_offset,
    split_recording,
)
from callagent.speech.protocol import RecognizerSettings, Transcript

LOUD, SILENT = 8000, 0


class Ear:
    """A stream and what it sent."""

    def __init__(self, engine: Engine) -> None:
        self.heard: list[Transcript] = []
        self._changed = asyncio.Event()
        self.stream = LocalStream(engine, self._transcribed)

    def _transcribed(self, transcript: Transcript) -> None:
        self.heard.append(transcript)
        self._changed.set()

    async def say(self, seconds: float, amplitude: int = LOUD) -> None:
        for _ in range(round(seconds / 0.02)):
            self.stream.feed(sound(0.02, amplitude))

    async def final(self, count: int = 1) -> Transcript:
        """Waits for final number `count`."""
        async with asyncio.timeout(20):
            while len(finals := [said for said in self.heard if said.final]) < count:
                self._changed.clear()
                await self._changed.wait()
        return finals[count - 1]

    async def partial(self) -> Transcript:
        async with asyncio.timeout(20):
            while not self.heard:
                self._changed.clear()
                await self._changed.wait()
        return self.heard[0]


@pytest_asyncio.fixture
async def ear() -> AsyncIterator[Ear]:
    engine = Engine("tests.speech.local.echo_process", inference.LoadRecognizer("", "", 1, 1))
    await engine.start()
    yield Ear(engine)
    await engine.close()


def frames(pcm: bytes) -> Iterator[bytes]:
    return (pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES))


async def test_the_half_second_before_the_beginning_belongs_to_the_utterance(ear: Ear) -> None:
    await ear.say(3.0, 10)
    ear.stream.begin(RecognizerSettings(expected="5 5 5"))
    await ear.say(0.2)
    ear.stream.finish()
    assert ear.heard == []
    assert await ear.final() == Transcript("final 0.7s en 5 5 5", True, 1, ("another",), 0.5)


async def test_partials_come_while_the_caller_speaks(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.3)
    partial = await ear.partial()
    assert (partial.text, partial.final, partial.utterance) == ("partial 0.3s en", False, 1)


async def test_a_partial_hears_what_was_said_while_it_waited(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.3)
    await ear.say(0.9)
    ear.stream.finish()
    final = await ear.final()
    assert final.text == "final 1.2s en"
    # No partial is sent once the utterance is finished, whatever was still being worked on.
    assert ear.heard == [final]


async def test_the_final_was_begun_in_the_pause_before_the_end(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.2)
    await ear.say(0.2, SILENT)
    draft = await ear.partial()
    assert (draft.text, draft.final) == ("final 0.4s en", False)
    await ear.say(0.3, SILENT)
    ear.stream.finish()
    assert (await ear.final()).text == "final 0.4s en"


async def test_a_draft_still_being_written_becomes_the_final(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.2)
    await ear.say(0.2, SILENT)
    ear.stream.finish()
    assert (await ear.final()).text == "final 0.4s en"
    assert len(ear.heard) == 1


async def test_words_after_the_draft_are_not_lost(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.2)
    await ear.say(0.2, SILENT)
    await ear.partial()
    await ear.say(0.1)
    ear.stream.finish()
    assert (await ear.final()).text == "final 0.5s en"


async def test_a_long_utterance_is_transcribed_in_pieces(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    for _ in range(20):
        await ear.say(3.0)
        await asyncio.sleep(0)
    ear.stream.finish()
    final = await ear.final()
    lengths = [float(word[:-1]) for word in final.text.split() if word[:1].isdigit()]
    assert len(lengths) == 3
    assert round(sum(lengths)) == 60
    assert final.alternatives == ()


async def test_the_beginning_of_the_next_utterance_does_not_repeat_the_last(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(1.0)
    ear.stream.finish()
    await ear.say(0.1)
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.1)
    ear.stream.finish()
    first, second = await ear.final(1), await ear.final(2)
    assert [(said.text, said.utterance) for said in (first, second)] == [("final 1.0s en", 1), ("final 0.2s en", 2)]


async def test_a_final_is_owed_for_an_utterance_of_silence_too(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    ear.stream.finish()
    assert (await ear.final()).final
    ear.stream.finish()
    await asyncio.sleep(0.05)
    assert len(ear.heard) == 1


async def test_when_the_process_dies_on_a_final_the_last_partial_stands(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.3)
    partial = await ear.partial()
    ear.stream.begin(RecognizerSettings(expected="die"))
    ear.stream.finish()
    assert await ear.final() == Transcript("", True, 2)
    assert partial.text == "partial 0.3s en"


async def test_a_closed_stream_is_silent(ear: Ear) -> None:
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.4)
    ear.stream.finish()
    ear.stream.begin(RecognizerSettings())
    await ear.say(0.4)
    ear.stream.close()
    await asyncio.sleep(0.1)
    assert ear.heard == []


FRAME = 0.02
NOTHING, PARTIAL, DRAFT, PIECE = (
    NextTranscription.NOTHING,
    NextTranscription.PARTIAL,
    NextTranscription.DRAFT,
    NextTranscription.PIECE,
)


def sound(seconds: float, amplitude: int = 8000) -> bytes:
    samples = round(seconds * 8000)
    return array("h", ((amplitude if n // 20 % 2 else -amplitude) for n in range(samples))).tobytes()


def say(utterance: Utterance, *parts: tuple[float, int]) -> list[tuple[float, NextTranscription]]:
    """Feed (seconds, amplitude) frame by frame, doing as asked; what was wanted, and when."""
    wanted, elapsed = [], 0.0
    for seconds, amplitude in parts:
        for _ in range(round(seconds / FRAME)):
            elapsed += FRAME
            match utterance.feed(sound(FRAME, amplitude)):
                case NextTranscription.NOTHING:
                    continue
                case NextTranscription.PARTIAL as what:
                    utterance.begin_partial()
                case NextTranscription.DRAFT as what:
                    utterance.begin_draft()
                case what:
                    utterance.cut_piece()
            wanted.append((round(elapsed, 2), what))
    return wanted


def test_a_partial_for_each_new_stretch_of_speech() -> None:
    assert say(Utterance(b""), (1.0, 8000)) == [(0.3, PARTIAL), (0.6, PARTIAL), (0.9, PARTIAL)]


def test_silence_wants_a_draft_once_and_no_partials() -> None:
    assert say(Utterance(b""), (0.4, 8000), (2.0, 0)) == [(0.3, PARTIAL), (0.6, DRAFT)]


def test_speech_after_the_draft_outdates_it() -> None:
    utterance = Utterance(b"")
    say(utterance, (0.4, 8000), (0.3, 0))
    assert not utterance.draft_is_stale
    assert say(utterance, (0.2, 8000), (0.4, 0)) == [(0.4, DRAFT)]
    assert not utterance.draft_is_stale
    say(utterance, (0.02, 8000))
    assert utterance.draft_is_stale


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
    cut = split_recording(pcm)
    assert b"".join(cut) == pcm
    assert len(cut) > 1
    assert all(len(piece) <= MAX_PIECE_SECONDS * BYTES_PER_SECOND and len(piece) % 2 == 0 for piece in cut)
    assert split_recording(b"") == [b""]


@pytest.mark.parametrize("size", [0, 2, 1000, 1602, 20001])
def test_a_cut_of_short_audio_is_inside_it_or_at_its_end(size: int) -> None:
    assert 0 <= quietest_offset(bytes(size), 8.0) <= size
