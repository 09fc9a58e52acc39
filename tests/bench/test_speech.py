"""The word error rate of a corpus, and the baseline that a run is held against."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import pytest

from callagent.bench import speech
from callagent.commands import main
from callagent.errors import UserError


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
    monkeypatch.setattr(speech, "BASELINE", file)
    assert run(capsys, folder, script)[0] == expected


def test_the_published_baseline_is_of_the_embedded_recogniser() -> None:
    baseline = json.loads(speech.BASELINE.read_text())
    assert baseline["recognizer"] == "local"
    assert baseline["files"] == 276
    assert 0 < baseline["wer"] < 10


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.csv: cannot be read"):
        speech.read_manifest(tmp_path)
    (tmp_path / "manifest.csv").write_text("name,words\na,b\n")
    with pytest.raises(UserError, match="there is no column 'file'"):
        speech.read_manifest(tmp_path)
