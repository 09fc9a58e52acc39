"""What was said once is not made again, also after a restart; a recording is played where nothing can be said."""

from __future__ import annotations

import audioop
import os
from pathlib import Path

import pytest

from callagent.errors import ProviderError, UserError
from callagent.speech import ApologisingVoice, CachedVoice, SpeechChunk, VoiceSettings, WordTime
from callagent.speech.factory import NoVoice
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.speech.voice_wrappers import RECORDING, VoiceStore
from callagent.testing.virtual_time import run
from callagent.turns.playout import heard_text

SETTINGS = VoiceSettings()


async def chunks_of(voice: CachedVoice, text: str, settings: VoiceSettings = SETTINGS) -> list[SpeechChunk]:
    return [chunk async for chunk in voice.speak(text, settings)]


def test_the_second_time_comes_from_memory_and_is_the_same() -> None:
    inner = ScriptedVoice(VoiceScript(delay=5))
    voice = CachedVoice(inner)
    first = run(chunks_of(voice, "For how many?"))
    assert run(chunks_of(voice, "For how many?")) == first
    assert [word.word for chunk in first for word in chunk.words] == ["For", "how", "many?"]
    assert inner.spoken == ["For how many?"]


def test_another_speed_is_another_utterance() -> None:
    inner = ScriptedVoice()
    voice = CachedVoice(inner)
    slow, fast = run(chunks_of(voice, "Hello.")), run(chunks_of(voice, "Hello.", VoiceSettings(speed=2)))
    assert slow != fast
    assert inner.spoken == ["Hello.", "Hello."]


def test_prepared_texts_need_no_voice() -> None:
    inner = ScriptedVoice()
    voice = CachedVoice(inner)
    run(voice.prepare(["Welcome.", "One moment."], SETTINGS))
    run(chunks_of(voice, "One moment."))
    assert inner.spoken == ["Welcome.", "One moment."]


def test_the_oldest_is_forgotten_when_memory_is_full() -> None:
    inner = ScriptedVoice()
    size = round(inner.seconds("aaaa") * 16000)
    voice = CachedVoice(inner, limit=2 * size)
    for text in ["aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"]:
        run(chunks_of(voice, text))
    assert inner.spoken == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert voice.size == 2 * size


def test_what_is_longer_than_the_memory_is_not_kept() -> None:
    voice = CachedVoice(ScriptedVoice(), limit=100)
    run(chunks_of(voice, "a long greeting"))
    assert voice.size == 0


def test_an_utterance_broken_off_is_not_kept() -> None:
    inner = ScriptedVoice(VoiceScript(failing=("wrong",), fails_after=1))
    voice = CachedVoice(inner)

    async def interrupted() -> None:
        speaking = voice.speak("one two three", SETTINGS)
        await anext(speaking)
        await speaking.aclose()  # type: ignore[attr-defined]

    run(interrupted())
    with pytest.raises(ProviderError):
        run(chunks_of(voice, "all wrong"))
    assert voice.size == 0
    assert len(run(chunks_of(voice, "one two three"))) == 3


def test_closing_forgets() -> None:
    voice = CachedVoice(ScriptedVoice())
    run(chunks_of(voice, "Hello."))
    run(voice.close())
    assert voice.size == 0


CHUNKS = (SpeechChunk(b"\1\2" * 100, (WordTime("Grüße", 0.0, 0.5),)), SpeechChunk(b"\3\4" * 50))
SETTINGS = VoiceSettings()


def test_an_utterance_is_read_as_it_was_written(tmp_path: Path) -> None:
    VoiceStore(tmp_path / "voice", 1 << 20).write("v", "Grüße", SETTINGS, CHUNKS)
    assert VoiceStore(tmp_path / "voice", 1 << 20).read("v", "Grüße", SETTINGS) == CHUNKS


def test_another_voice_text_or_setting_is_another_utterance(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, 1 << 20)
    store.write("v", "Hello", SETTINGS, CHUNKS)
    assert store.read("w", "Hello", SETTINGS) == ()
    assert store.read("v", "Hello.", SETTINGS) == ()
    assert store.read("v", "Hello", VoiceSettings(name="x")) == ()


def test_file_names_do_not_tell_what_was_said(tmp_path: Path) -> None:
    VoiceStore(tmp_path, 1 << 20).write("v", "secret", SETTINGS, CHUNKS)
    [file] = tmp_path.iterdir()
    assert "secret" not in file.name
    assert b"secret" not in file.read_bytes()


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]\n", b'{"sizes": [5], "words": [[]]}\nabc', b"\xff\n", b"5\n"])
def test_a_damaged_file_is_thrown_away(tmp_path: Path, damage: bytes) -> None:
    store = VoiceStore(tmp_path, 1 << 20)
    store.write("v", "Hello", SETTINGS, CHUNKS)
    [file] = tmp_path.iterdir()
    file.write_bytes(damage)
    assert store.read("v", "Hello", SETTINGS) == ()
    assert not file.exists()


def test_what_was_used_longest_ago_has_to_go(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, 1 << 20)
    for number in range(4):
        store.write("v", str(number), SETTINGS, CHUNKS)
        os.utime(store._path("v", str(number), SETTINGS), (number, number))
    size = next(tmp_path.iterdir()).stat().st_size
    store.read("v", "0", SETTINGS)
    VoiceStore(tmp_path, 2 * size)
    left = [number for number in range(4) if store.read("v", str(number), SETTINGS)]
    assert left == [0, 3]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"voice_cache '.*file/x' cannot be made"):
        VoiceStore(tmp_path / "file" / "x", 1)


async def test_a_cached_voice_reads_and_writes_it(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, 1 << 20)
    first, second, third = ScriptedVoice(), ScriptedVoice(), ScriptedVoice()
    before = CachedVoice(first, store=store, identity="v")
    made = [chunk async for chunk in before.speak("Hi there", SETTINGS)]
    await before.close()
    again = CachedVoice(second, store=store, identity="v")
    assert [chunk async for chunk in again.speak("Hi there", SETTINGS)] == made
    assert again.holds("Hi there", SETTINGS)
    assert second.spoken == []
    other = CachedVoice(third, store=store, identity="w")
    async for _ in other.speak("Hi there", SETTINGS):
        pass
    await other.close()
    assert third.spoken == ["Hi there"]


async def speak_to_the_end(voice: ApologisingVoice, text: str) -> tuple[list[SpeechChunk], bool]:
    """The chunks, and whether it failed."""
    chunks: list[SpeechChunk] = []
    try:
        async for chunk in voice.speak(text, VoiceSettings()):
            chunks.append(chunk)
    except ProviderError:
        return chunks, True
    return chunks, False


def test_the_recording_takes_the_place_of_the_first_utterance() -> None:
    voice = ApologisingVoice(NoVoice())
    chunks, failed = run(speak_to_the_end(voice, "Hello."))
    assert failed
    assert len(chunks) == 1
    assert 4 < len(chunks[0].pcm) / 16000 < 8
    assert audioop.rms(chunks[0].pcm, 2) > 500
    assert run(speak_to_the_end(voice, "Again.")) == ([], True)


def test_what_was_to_be_said_does_not_count_as_heard() -> None:
    [chunk], _ = run(speak_to_the_end(ApologisingVoice(NoVoice()), "Hello there."))
    seconds = len(chunk.pcm) / 16000
    assert [word.word for word in chunk.words] == ["Hello"]
    assert heard_text("Hello there.", chunk.words, seconds, None) == ""


def test_an_utterance_that_broke_off_is_not_followed_by_it() -> None:
    voice = ApologisingVoice(ScriptedVoice(VoiceScript(failing=("two",), fails_after=1)))
    chunks, failed = run(speak_to_the_end(voice, "one two"))
    assert failed
    assert len(chunks) == 1
    assert not voice.apologised


def test_a_voice_that_speaks_is_left_alone() -> None:
    assert len(run(speak_to_the_end(ApologisingVoice(ScriptedVoice()), "one two"))[0]) == 2


def test_the_recording_ships_as_telephone_audio() -> None:
    assert 30_000 < RECORDING.stat().st_size < 60_000
