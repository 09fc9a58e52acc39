from __future__ import annotations

import asyncio
import math
import struct
import wave
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE
from callagent.errors import UserError
from callagent.phone.handset import AgentUtterance, Earpiece, Microphone, mumble, read_wav, synthesise
from callagent.speech.protocol import RecognizerSettings, SpeechChunk, Transcript, VoiceSettings

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
        self.heard: list[AgentUtterance] = []
        self.earpiece = Earpiece(self.heard.append)
        self.stream = Stream()
        self.earpiece.listen(self.stream if recognised else None, answered=100.0)
        self.now = 100.0

    def hear(self, frame: bytes, seconds: float) -> None:
        for _ in range(round(seconds / FRAME_SECONDS)):
            self.earpiece.on_frame(frame, self.now)
            self.now += FRAME_SECONDS


async def test_an_utterance_ends_after_a_pause_and_is_told_once_recognised() -> None:
    call = Listening()
    call.hear(QUIET, 1.0)
    call.hear(LOUD, 1.0)
    assert call.earpiece.speaking_since == pytest.approx(1.0)
    call.hear(QUIET, 0.5)
    call.hear(LOUD, 0.5)
    assert len(call.earpiece.utterances) == 1, "a pause between words ends nothing"
    call.hear(QUIET, 0.7)
    (utterance,) = call.earpiece.utterances
    assert (round(utterance.started, 2), round(utterance.ended or 0, 2)) == (1.0, 2.98)
    assert call.earpiece.speaking_since is None
    assert call.stream.told == ["begin", "finish"]
    assert call.earpiece.recognising
    assert call.heard == []
    call.earpiece.on_transcript(Transcript("hello", False, 1))
    assert call.heard == []
    call.earpiece.on_transcript(Transcript("hello there", True, 1))
    assert [(one.number, one.text) for one in call.heard] == [(1, "hello there")]
    assert not call.earpiece.recognising
    call.earpiece.on_transcript(Transcript("again", True, 1))
    assert len(call.heard) == 1


async def test_without_a_recogniser_utterances_have_times_and_no_words() -> None:
    call = Listening(recognised=False)
    call.hear(LOUD, 0.5)
    call.hear(QUIET, 0.7)
    assert [(one.text, round(one.ended or 0, 2)) for one in call.heard] == [(None, 0.48)]


async def test_noise_is_not_speech_and_everything_is_fed() -> None:
    call = Listening()
    call.hear(NOISE, 1.0)
    assert call.earpiece.utterances == []
    assert call.stream.fed == 50


async def test_the_end_of_the_call_ends_the_utterance() -> None:
    call = Listening()
    call.hear(LOUD, 0.5)
    call.earpiece.close()
    assert call.stream.told == ["begin", "finish"]
    call.earpiece.on_transcript(Transcript("goodb", True, 1))
    assert [one.text for one in call.heard] == ["goodb"]
    call.earpiece.close()
    assert call.stream.told == ["begin", "finish"]


async def test_whatever_is_heard_wakes_who_waits() -> None:
    call = Listening()
    call.hear(LOUD, 0.1)
    assert call.earpiece.changed.is_set()
    call.earpiece.changed.clear()
    call.hear(LOUD, 0.1)
    assert not call.earpiece.changed.is_set()
    call.hear(QUIET, 0.7)
    assert call.earpiece.changed.is_set()


async def test_a_bed_of_sound_under_the_words_is_a_pause_between_them() -> None:
    listening = Listening(recognised=False)
    bed = b"\x47\x01" * (FRAME_BYTES // 2)
    listening.hear(bed, 0.2)
    listening.hear(LOUD, 1.0)
    listening.hear(bed, 2.0)
    listening.hear(LOUD, 1.0)
    listening.hear(bed, 1.0)
    ended = [(round(one.started, 1), one.ended is not None) for one in listening.earpiece.utterances]
    assert ended == [(0.2, True), (3.2, True)]


LOUD = b"\x10\x20" * (FRAME_BYTES // 2)


class Voice:
    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        for word in text.split():
            yield SpeechChunk(word.encode())

    async def close(self) -> None:
        return None


def tone(path: Path, rate: int, width: int, channels: int, seconds: float = 0.5) -> Path:
    """440 Hz at half of full scale, the same in every channel."""
    data = bytearray()
    for index in range(int(rate * seconds)):
        value = 0.5 * math.sin(2 * math.pi * 440 * index / rate)
        whole = int(value * (1 << (8 * width - 1)))
        sample = bytes([128 + whole]) if width == 1 else whole.to_bytes(width, "little", signed=True)
        data += sample * channels
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(data))
    return path


def peak(pcm: bytes) -> int:
    return max(abs(sample) for sample in struct.unpack(f"<{len(pcm) // 2}h", pcm))


def crossings(pcm: bytes) -> int:
    samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
    return sum(a < 0 <= b for a, b in pairwise(samples))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100, 48000])
def test_a_wav_file_of_any_kind_becomes_telephone_audio(rate: int, width: int, channels: int, tmp_path: Path) -> None:
    pcm = read_wav(tone(tmp_path / "a.wav", rate, width, channels))
    assert len(pcm) / 2 / SAMPLE_RATE == pytest.approx(0.5, abs=0.01)
    assert peak(pcm) == pytest.approx(16384, rel=0.1)
    assert crossings(pcm) == pytest.approx(220, abs=3)


def test_files_that_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.wav: cannot be played: No such file or directory"):
        read_wav(tmp_path / "nowhere.wav")
    with pytest.raises(UserError, match="cannot be played: Is a directory"):
        read_wav(tmp_path)
    for number, content in enumerate((b"", b"ID3 and so on, but no WAV", b"RIFF\x04\0\0\0WAVE")):
        path = tmp_path / f"{number}.wav"
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"cannot be played: .*; a PCM WAV file, mono or stereo, is needed"):
            read_wav(path)
    with pytest.raises(UserError, match="it has 6 channels"):
        read_wav(tone(tmp_path / "surround.wav", 8000, 2, 6, 0.1))


def test_formats_other_than_pcm_are_refused(tmp_path: Path) -> None:
    path = tone(tmp_path / "a.wav", 8000, 2, 1, 0.1)
    data = bytearray(path.read_bytes())
    data[20:22] = (7).to_bytes(2, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="unknown format: 7"):
        read_wav(path)


def test_a_file_that_breaks_off_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tone(tmp_path / "a.wav", 8000, 2, 2, 0.5)
    path.write_bytes(path.read_bytes()[:-1001])
    assert len(read_wav(path)) / 2 / SAMPLE_RATE == pytest.approx(0.47, abs=0.03)


async def test_speaking_ends_when_the_last_frame_has_left() -> None:
    microphone = Microphone()
    speaking = asyncio.create_task(microphone.speak(LOUD * 2 + b"\x10\x20"))
    await asyncio.sleep(0)
    assert microphone.next_frame() == LOUD
    assert await asyncio.to_thread(microphone.next_frame) == LOUD, "the wire has a thread of its own"
    assert not speaking.done()
    assert microphone.next_frame() == b"\x10\x20" + bytes(FRAME_BYTES - 2)
    await speaking
    assert microphone.next_frame() is None


async def test_silence_does_not_move_the_end_of_speech() -> None:
    microphone = Microphone()
    speaking = asyncio.create_task(microphone.speak(LOUD + bytes(FRAME_BYTES)))
    await asyncio.sleep(0)
    microphone.next_frame()
    voiced = microphone.last_voiced
    assert voiced > 0
    microphone.next_frame()
    assert microphone.last_voiced == voiced
    await speaking


async def test_nothing_to_say_is_said_at_once() -> None:
    async with asyncio.timeout(30):
        await Microphone().speak(b"")


async def test_a_voice_as_pcm() -> None:
    assert await synthesise(Voice(), "one two") == b"onetwo"


async def test_noise_lies_under_the_words_and_fills_the_silence() -> None:
    import audioop

    microphone = Microphone()
    assert microphone.next_frame() is None
    microphone.make_noise(-40.0)
    frame = microphone.next_frame()
    assert frame is not None
    assert audioop.rms(frame, 2) == pytest.approx(327, rel=0.3)
    speaking = asyncio.create_task(microphone.speak(LOUD))
    await asyncio.sleep(0)
    spoken = microphone.next_frame()
    assert spoken is not None
    assert spoken != LOUD
    assert audioop.rms(audioop.add(spoken, audioop.mul(LOUD, 2, -1), 2), 2) == pytest.approx(327, rel=0.3)
    await speaking
    microphone.make_noise(None)
    assert microphone.next_frame() is None


def test_mumbling_sounds_like_speech_of_its_length() -> None:
    import audioop

    pcm = mumble(0.5)
    assert len(pcm) == 8000
    assert audioop.rms(pcm, 2) > 500
