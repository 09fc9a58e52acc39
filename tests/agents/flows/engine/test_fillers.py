"""What is said while the model is waited for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import ListenSettings, ModelAnswered, Say, WaitEnded, WaitStarted
from callagent.agents.flows import FlowSettings, check_project
from callagent.agents.flows.format.experimental import ExperimentalSettings
from callagent.agents.flows.format.voice import FillerPhrases, filler_phrases
from tests.agents.flows.support import driven, function, of, write_project

VOICE = """\
greeting: {welcome_message: Hi., language_code: en-US}
filler_phrases: {enabled: true, phrases: [Mm., Right.], randomize: false, initial_interval_seconds: 1, \
interval_seconds: 3}
"""


async def test_a_wait_for_the_model_ends_with_its_first_words(tmp_path: Path):
    async with driven(
        write_project(tmp_path, {"project.yaml": "{}", "voice/configuration.yaml": VOICE}), {"text": "One. Two."}
    ) as agent:
        await agent.start()
        actions = await agent.says("hello")
    kinds = [type(action) for action in actions if not isinstance(action, ListenSettings)]
    assert kinds[:4] == [WaitStarted, WaitEnded, Say, Say]
    (started,) = of(WaitStarted, actions)
    assert (started.number, started.latency.delay_before_start, started.latency.silence_after_each) == (-1, 1.0, 3.0)
    assert [response.text for response in started.latency.responses] == ["Mm.", "Right."]
    assert of(WaitEnded, actions) == [WaitEnded(-1)]


async def test_each_request_has_its_own_wait(tmp_path: Path):
    files = {
        "voice/configuration.yaml": VOICE,
        "agent_settings/rules.txt": "{{fn:f}}",
        "functions/f.py": function("f", "return 'x'"),
    }
    async with driven(write_project(tmp_path, files), {"calls": [{"name": "f"}]}, {"text": "Yes."}) as agent:
        await agent.start()
        actions = await agent.says("hello")
    assert [each.number for each in of(WaitStarted, actions)] == [-1, -2]
    assert [each.number for each in of(WaitEnded, actions)] == [-1, -2]
    assert actions.index(WaitEnded(-1)) < actions.index(of(ModelAnswered, actions)[0])


@pytest.mark.parametrize("settings", [FlowSettings(channel="webchat"), None])
async def test_no_phrases_no_wait(tmp_path: Path, settings: FlowSettings | None):
    voice = VOICE if settings else VOICE.replace("enabled: true", "enabled: false")
    root = write_project(tmp_path, {"project.yaml": "{}", "voice/configuration.yaml": voice})
    async with driven(root, {"text": "One."}, settings=settings) as agent:
        await agent.start()
        assert of(WaitStarted, await agent.says("hello")) == []


OLD: dict[str, Any] = {"is_enabled": True, "interval_sec": 4, "utterances": {"en": ["Mm."], "de-DE": ["Hm.", "So."]}}


@pytest.mark.parametrize(
    ("change", "language", "expected"),
    [
        ({}, "en-GB", FillerPhrases(("Mm.",), False, 4.0, 4.0)),
        ({}, "de-DE", FillerPhrases(("Hm.", "So."), False, 4.0, 4.0)),
        ({}, "fr-FR", FillerPhrases((), False, 4.0, 4.0)),
        (
            {"utterances": ["A."], "initial_interval_sec": 2, "randomize": True},
            None,
            FillerPhrases(("A.",), True, 2, 4),
        ),
        ({"is_enabled": False}, "en-GB", FillerPhrases()),
    ],
)
def test_the_older_form_counts_where_the_newer_one_is_absent(
    change: dict[str, Any], language: str | None, expected: FillerPhrases
):
    experimental = ExperimentalSettings({"filler_utterances": {**OLD, **change}})
    assert filler_phrases(FillerPhrases(), experimental, language) == expected
    newer = FillerPhrases(("New.",))
    assert filler_phrases(newer, experimental, language) is newer


def test_random_phrases_are_all_said_once():
    control = FillerPhrases(("a", "b", "c")).latency_control(random.Random(3))
    assert control is not None
    assert sorted(response.text for response in control.responses) == ["a", "b", "c"]


def test_the_mistakes_are_found(tmp_path: Path):
    voice = VOICE.replace("phrases: [Mm., Right.]", "phrases: []")
    report = check_project(write_project(tmp_path, {"project.yaml": "{}", "voice/configuration.yaml": voice}))
    assert any("needs at least one phrase" in error.message for error in report.errors)
    assert json.loads(json.dumps(report.as_json()))["errors"]
