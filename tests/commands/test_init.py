"""`callagent init` makes projects without mistakes, which talk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callagent.commands import main

OPENING = {"flow": "Hello, this is the shop.", "adk": "", "cx": "Hello, this is the shop."}


@pytest.mark.parametrize("kind", OPENING)
def test_a_new_project_has_no_mistakes_and_answers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my_agent"
    assert main(["init", str(folder), "--kind", kind]) == 0
    assert main(["check", str(folder)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps([{"text": "From nine to six."}]))
    assert main(["chat", str(folder), "--model", f"script:{script}", "-m", "When are you open?"]) == 0
    said = capsys.readouterr().out
    assert OPENING[kind] in said
    assert "From nine to six." in said


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "my-tree"), "--kind", "adk"]) == 1
    assert "cannot be the name of a Python package" in capsys.readouterr().err
