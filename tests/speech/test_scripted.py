"""The scripted recogniser and voice keep to their scripts, on the virtual clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from callagent.errors import ConfigError, ProviderError
from callagent.speech.protocol import RecognizerSettings, SpeechChunk, Transcript, VoiceSettings
from callagent.speech.scripted import ScriptedRecognizer, ScriptedUtterance, ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run

SETTINGS = RecognizerSettings()
Heard = list[tuple[float, Transcript]]


async def listen(recognizer: ScriptedRecognizer, *steps: str | float) -> Heard:
    """What one stream sends when told to `begin`, `finish`, `close` or to wait some seconds."""
    heard: Heard = []
    clock = asyncio.get_running_loop().time
    stream = await recognizer.open(lambda transcript: heard.append((round(clock(), 3), transcript)))
    for step in steps:
        if isinstance(step, float):
            await asyncio.sleep(step)
        elif step == "begin":
            stream.begin(SETTINGS)
        elif step == "finish":
            stream.finish()
        else:
            stream.close()
    await asyncio.sleep(10)
    return heard


def test_partials_while_the_caller_speaks_then_one_final() -> None:
    script = [ScriptedUtterance("book a table", delay=0.2, partials=("book", "book a"), confidence=0.9)]
    heard = run(listen(ScriptedRecognizer(script), "begin", 1.0, "finish"))
    assert heard == [
        (0.3, Transcript("book", False, 1)),
        (0.6, Transcript("book a", False, 1)),
        (1.2, Transcript("book a table", True, 1, confidence=0.9)),
    ]


def test_no_partial_after_the_utterance_is_finished() -> None:
    script = [ScriptedUtterance("book a table", partials=("book", "book a"))]
    heard = run(listen(ScriptedRecognizer(script), "begin", 0.4, "finish"))
    assert [transcript.text for _, transcript in heard] == ["book", "book a table"]


def test_utterances_come_in_order_and_then_empty() -> None:
    heard = run(listen(ScriptedRecognizer(["yes", "four"]), *["begin", 0.5, "finish", 0.5] * 3))
    assert [(said.text, said.final, said.utterance) for _, said in heard] == [
        ("yes", True, 1),
        ("four", True, 2),
        ("", True, 3),
    ]


def test_each_call_hears_the_script_from_the_start() -> None:
    recognizer = ScriptedRecognizer(["yes"])

    async def two_calls() -> list[Heard]:
        return [await listen(recognizer, "begin", "finish") for _ in range(2)]

    assert [[said.text for _, said in heard] for heard in run(two_calls())] == [["yes"], ["yes"]]


def test_a_closed_stream_is_silent() -> None:
    script = [ScriptedUtterance("late", delay=1.0, partials=("la",))]
    assert run(listen(ScriptedRecognizer(script), "begin", "close")) == []
    assert run(listen(ScriptedRecognizer(script), "begin", 0.1, "finish", "close")) == []


async def speak(voice: ScriptedVoice, text: str, speed: float = 1.0) -> list[tuple[float, SpeechChunk]]:
    clock = asyncio.get_running_loop().time
    return [(clock(), chunk) async for chunk in voice.speak(text, VoiceSettings(speed=speed))]


def test_the_voice_speaks_word_by_word_with_their_times() -> None:
    voice = ScriptedVoice(VoiceScript(seconds_per_character=0.1, delay=0.5, chunk_delay=0.25))
    chunks = run(speak(voice, "for how many"))
    assert [at for at, _ in chunks] == [0.5, 0.75, 1.0]
    words = [word for _, chunk in chunks for word in chunk.words]
    assert [(word.word, round(word.start, 3), round(word.end, 3)) for word in words] == [
        ("for", 0.0, 0.4),
        ("how", 0.4, 0.8),
        ("many", 0.8, 1.3),
    ]
    assert [len(chunk.pcm) for _, chunk in chunks] == [6400, 6400, 8000]
    assert voice.seconds("for how many") == pytest.approx(1.3)
    assert voice.spoken == ["for how many"]


def test_a_faster_voice_is_shorter_and_audible() -> None:
    voice = ScriptedVoice()
    slow, fast = (b"".join(chunk.pcm for _, chunk in run(speak(voice, "hello there", speed))) for speed in (1.0, 2.0))
    assert len(fast) == len(slow) // 2
    assert any(slow)


def test_the_voice_fails_where_the_script_says() -> None:
    voice = ScriptedVoice(VoiceScript(failing=("appointment",), fails_after=1))
    heard: list[SpeechChunk] = []

    async def listen_until_it_fails() -> None:
        async for chunk in voice.speak("your appointment", VoiceSettings()):
            heard.append(chunk)

    with pytest.raises(ProviderError, match="your appointment"):
        run(listen_until_it_fails())
    assert [word.word for chunk in heard for word in chunk.words] == ["your"]
    assert len(run(speak(voice, "good morning"))) == 2


def test_scripts_are_read_from_files(tmp_path: Path) -> None:
    script = tmp_path / "caller.yaml"
    script.write_text("- hello\n- {text: a table, delay: 0.5, partials: [a], alternatives: [the table]}\n")
    heard = run(listen(ScriptedRecognizer.read(script), *["begin", 1.0, "finish", 1.0] * 2))
    assert heard == [
        (1.0, Transcript("hello", True, 1)),
        (2.3, Transcript("a", False, 2)),
        (3.5, Transcript("a table", True, 2, alternatives=("the table",))),
    ]
    voice = tmp_path / "voice.yaml"
    voice.write_text("seconds_per_character: 0.1\ndelay: 2\n")
    assert [at for at, _ in run(speak(ScriptedVoice.read(voice), "yes"))] == [2.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("text: hello\n", "is a list"),
        ("- {txt: hello}\n", "'txt' is not a field of the script; the fields are text, delay"),
        ("- 7\n", "'7' is not a field of the script"),
        ("- {text: [\n", "not valid YAML"),
    ],
)
def test_a_wrong_script_says_what_is_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        ScriptedRecognizer.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        ScriptedRecognizer.read(tmp_path / "missing.yaml")
