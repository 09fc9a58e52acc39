from __future__ import annotations

import json
import wave
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.bench import accuracy
from callagent.bench.accuracy import (
    UTTERANCES,
    ask_model,
    count_word_errors,
    normalise,
    read_utterances,
    summarise_answers,
)
from callagent.commands import main
from callagent.errors import UserError
from callagent.models.functiongemma import coerce_arguments
from callagent.models.scripted import ScriptedModel


def test_sixty_utterances_expect_calls_that_their_tools_allow() -> None:
    _, utterances = read_utterances(UTTERANCES)
    assert len({utterance.text for utterance in utterances}) == 60
    assert Counter(len(utterance.expected) for utterance in utterances) == {1: 54, 0: 6}
    for utterance in utterances:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in utterance.tools}
        for call in utterance.expected:
            assert coerce_arguments(call.arguments, schemas[call.name]) == call.arguments


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ({"calls": [{"name": "order_prescription", "arguments": {"medicine": "Amlodipine."}}]}, (True, True)),
        ({"calls": [{"name": "order_prescription", "arguments": {"medicine": "aspirin"}}]}, (True, False)),
        ({"calls": [{"name": "order_prescription", "arguments": "no json"}]}, (True, False)),
        ({"calls": [{"name": "connect_nurse"}]}, (False, False)),
        ({"text": "Which medicine?"}, (False, False)),
        ({"error": "500"}, (False, False)),
    ],
)
async def test_an_answer_is_judged_by_function_and_arguments(answer: object, right: tuple[bool, bool]) -> None:
    today, utterances = read_utterances(UTTERANCES)
    (utterance,) = [each for each in utterances if "amlodipine" in each.text]
    trial = await ask_model(ScriptedModel.from_entries(answer), today, utterance)  # type: ignore[arg-type]
    assert (trial.name_right, trial.arguments_right) == right
    figures = summarise_answers([trial])
    assert (figures["function_right"], figures["arguments_right"]) == right
    assert figures["with_function"] == 1


def test_the_command_prints_figures_and_writes_every_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    details = tmp_path / "details.jsonl"
    assert main(["bench", "models", "--model", "rules", "--json", "--details", str(details)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["utterances"] == len(details.read_text().splitlines()) == 60
    assert figures["function_right"] >= figures["arguments_right"] > 0
    assert figures["render_ms"] > 0


@pytest.mark.parametrize(
    "text", ["", "[]", '{"today": "x"}', '{"today": "2026-01-01", "tools": {}, "utterances": [1]}']
)
def test_a_file_of_something_else_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "u.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a file of utterances"):
        read_utterances(path)


def corpus(folder: Path, texts: list[str]) -> Path:
    folder.mkdir()
    rows = ["file,text,category,kind"]
    for number, text in enumerate(texts):
        with wave.open(str(folder / f"{number}.wav"), "wb") as recording:
            recording.setnchannels(1)
            recording.setsampwidth(2)
            recording.setframerate(8000)
            recording.writeframes(bytes(3200))
        rows.append(f'{number}.wav,"{text}",req,real')
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder


def run(capsys: pytest.CaptureFixture[str], folder: Path, script: Path) -> tuple[int, dict[str, object]]:
    status = main(["bench", "speech", "--corpus", str(folder), "--recognizer", f"script:{script}", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_script_that_hears_one_word_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = corpus(tmp_path / "corpus", ["a table for two", "a table for four"])
    script = tmp_path / "script.yaml"
    script.write_text("- A table for 2.\n")
    status, report = run(capsys, folder, script)
    assert status == 0
    assert report["wer"] == 12.5
    assert report["exact"] == 50
    assert report["words"] == 8
    assert report["groups"] == {
        "category req": {"files": 2, "wer": 12.5},
        "kind real": {"files": 2, "wer": 12.5},
    }


@pytest.mark.parametrize(("baseline", "expected"), [(12.0, 0), (11.9, 1)])
def test_more_than_half_a_point_worse_than_the_baseline_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    baseline: float,
    expected: int,
) -> None:
    folder = corpus(tmp_path / "corpus", ["a table for two", "a table for four"])
    script = tmp_path / "script.yaml"
    script.write_text("- A table for 2.\n")
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"recognizer": f"script:{script}", "files": 2, "wer": baseline}))
    monkeypatch.setattr(accuracy, "BASELINE", file)
    assert run(capsys, folder, script)[0] == expected


def test_the_published_baseline_is_of_the_embedded_recogniser() -> None:
    baseline = json.loads(accuracy.BASELINE.read_text())
    assert baseline["recognizer"] == "local"
    assert baseline["files"] == 276
    assert 0 < baseline["wer"] < 10


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.csv: cannot be read"):
        accuracy.read_manifest(tmp_path)
    (tmp_path / "manifest.csv").write_text("name,words\na,b\n")
    with pytest.raises(UserError, match="there is no column 'file'"):
        accuracy.read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It's $20, I'd say.", "it is twenty dollars i would say"),
        ("four one five", "415"),
        ("4-1-5", "four, one, five"),
        ("March 14th", "march fourteenth"),
        ("the twenty-third", "the 23rd"),
        ("one hundred and five", "105"),
        ("1,250", "one thousand two hundred fifty"),
        ("nineteen ninety nine", "1999"),
        ("7:30 p.m.", "seven thirty PM"),
        ("I don't know, um, Mister Smith", "I do not know Mr. Smith"),
        ("e-mail", "email"),
        ("5%", "five percent"),
        ("hundred", "100"),
    ],
)
def test_written_in_two_ways(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"), [("you and five", "you five"), ("to two", "too 2"), ("yes", "no"), ("fifty", "fifteen")]
)
def test_different_words_stay_different(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    ("reference", "heard", "wrong"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b", "a x b", 1),
        ("a b", "", 2),
        ("", "a", 1),
    ],
)
def test_errors(reference: str, heard: str, wrong: int) -> None:
    assert count_word_errors(reference.split(), heard.split()) == wrong


@given(st.text(max_size=60))
def test_normalising_takes_anything_and_twice_is_once(text: str) -> None:
    words = normalise(text)
    assert all(word and word == word.lower() and " " not in word for word in words)
