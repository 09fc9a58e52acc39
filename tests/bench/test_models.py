from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from callagent.bench.models import UTTERANCES, ask, read_utterances, summarize
from callagent.commands import main
from callagent.errors import UserError
from callagent.models.functiongemma import coerce_arguments
from callagent.models.scripted import ScriptedModel


def test_sixty_utterances_expect_calls_that_their_tools_allow() -> None:
    _, utterances = read_utterances(UTTERANCES)
    assert len({utterance.said for utterance in utterances}) == 60
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
    (utterance,) = [each for each in utterances if "amlodipine" in each.said]
    trial = await ask(ScriptedModel.from_entries(answer), today, utterance)  # type: ignore[arg-type]
    assert (trial.name_right, trial.arguments_right) == right
    figures = summarize([trial])
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
