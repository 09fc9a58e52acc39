"""What was synthesised once is there after a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.speech import CachedVoice, SpeechChunk, VoiceSettings, WordTime
from callagent.speech.scripted import ScriptedVoice
from callagent.speech.voice_cache import VoiceStore

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
