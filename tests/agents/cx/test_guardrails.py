"""Filters, code and actions of guardrails."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import words

REFUSAL = {"respondImmediately": {"responses": [{"text": "Not here."}]}}


def app_with(root: Path, guardrail: dict[str, Any], code: str = "", **more: Any) -> Path:
    other = {"displayName": "Other", "instruction": "Be other."}
    files = {
        "guardrails/g/g.json": json.dumps({"displayName": "G", "enabled": True, "action": REFUSAL, **guardrail}),
        "guardrails/g/code.py": code,
        "agents/other/other.json": json.dumps(other),
    }
    app = {"guardrails": ["g"], **more.get("app", {})}
    return write_app(root, app=app, agent={"childAgents": ["Other"], **more.get("agent", {})}, more=files)


@pytest.mark.parametrize("point", ["before_agent", "after_agent", "before_model", "after_model"])
async def test_code_at_every_point_triggers_with_a_reason(point: str, tmp_path: Path) -> None:
    more = {"before_model": ", llm_request", "after_model": ", llm_response"}.get(point, "")
    code = (
        f"def {point}_callback(callback_context{more}):\n"
        "    said = callback_context.get_last_user_input()[0].text\n"
        "    return {'decision': 'TRIGGER' if said == 'Bad.' else 'OK', 'reason': 'bad word'}\n"
    )
    key = point.split("_")[0] + point.split("_")[1].capitalize() + "Callback"
    guardrail = {"codeCallback": {key: {"pythonCode": "guardrails/g/code.py"}}}
    async with driven(app_with(tmp_path, guardrail, code), {"text": "Yes?"}, {"text": "Yes?"}) as agent:
        assert words(await agent.says("Good.")) == ["Yes?"]
        assert words(await agent.says("Bad.")) == ["Not here."]
        assert len(agent.model.requests) == (1 if point.startswith("before") else 2)


@pytest.mark.parametrize(
    ("kind", "banned", "said", "stops"),
    [
        ("SIMPLE_STRING_MATCH", "war", "Software", True),
        ("WORD_BOUNDARY_STRING_MATCH", "war", "Software", False),
        ("WORD_BOUNDARY_STRING_MATCH", "war", "No WAR, please.", True),
        ("REGEXP_MATCH", r"w.r\b", "The war.", True),
        ("SIMPLE_STRING_MATCH", "Bl\u00f6d", "blod", True),
    ],
)
async def test_filters(kind: str, banned: str, said: str, stops: bool, tmp_path: Path) -> None:
    own = {"bannedContentsInUserInput": [banned], "matchType": kind, "disregardDiacritics": True}
    async with driven(app_with(tmp_path, {"contentFilter": own}), {"text": "Yes?"}) as agent:
        assert words(await agent.says(said)) == (["Not here."] if stops else ["Yes?"])


async def test_a_filter_that_takes_too_long_lets_pass_and_holds_nothing_up(tmp_path: Path) -> None:
    own = {"bannedContents": ["^(a+)+$"], "matchType": "REGEXP_MATCH"}
    async with driven(app_with(tmp_path, {"contentFilter": own}), {"text": "Yes?"}) as agent:
        began = time.thread_time()
        assert words(await agent.says("a" * 40 + "b")) == ["Yes?"]
        assert time.thread_time() - began < 2.0


BANS = {"contentFilter": {"bannedContents": ["bad"]}}


async def test_a_guardrail_gives_the_conversation_to_another_agent(tmp_path: Path) -> None:
    app = app_with(tmp_path, {**BANS, "action": {"transferAgent": {"agent": "Other"}}})
    async with driven(app, {"text": "I am other."}) as agent:
        assert words(await agent.says("A bad thing.")) == ["I am other."]
        assert agent.agent.record().step == "other"


async def test_a_guardrail_lets_the_model_answer_by_its_own_words(tmp_path: Path) -> None:
    app = app_with(tmp_path, {**BANS, "action": {"generativeAnswer": {"prompt": "Refuse politely."}}})
    async with driven(app, {"text": "I would rather not."}) as agent:
        assert words(await agent.says("A bad thing.")) == ["I would rather not."]
        assert agent.model.system() == "Refuse politely."


@pytest.mark.parametrize("name", ["g", "G", "projects/p/locations/l/apps/a/guardrails/g"])
async def test_a_guardrail_is_named_by_its_folder_or_as_it_is_displayed(name: str, tmp_path: Path) -> None:
    app = app_with(tmp_path, BANS, agent={"guardrails": [name]}, app={"guardrails": []})
    async with driven(app) as agent:
        assert words(await agent.says("A bad thing.")) == ["Not here."]


def test_a_guardrail_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    told = [str(each) for each in check_cx_app(app_with(tmp_path, BANS, app={"guardrails": ["x"]})).errors]
    assert told == ["app.json:1: [CX004] 'guardrails' names 'x', which is not in guardrails/"]


async def test_a_guardrail_that_is_switched_off_is_none(tmp_path: Path) -> None:
    async with driven(app_with(tmp_path, {**BANS, "enabled": False}), {"text": "Yes?"}) as agent:
        assert words(await agent.says("A bad thing.")) == ["Yes?"]


async def test_one_of_several_answers_is_said(tmp_path: Path) -> None:
    texts = [{"text": "One."}, {"text": "Two."}, {"text": "Three.", "disabled": True}]
    app = app_with(tmp_path, {**BANS, "action": {"respondImmediately": {"responses": texts}}})
    async with driven(app) as agent:
        said = {words(await agent.says("A bad thing."))[0] for _ in range(30)}
    assert said == {"One.", "Two."}


async def test_what_the_model_said_is_answered_by_its_own_words_too(tmp_path: Path) -> None:
    banned = {"contentFilter": {"bannedContentsInAgentResponse": ["free"]}}
    app = app_with(tmp_path, {**banned, "action": {"generativeAnswer": {"prompt": "Say that you cannot promise."}}})
    async with driven(app, {"text": "It is free."}, {"text": "I cannot promise that."}) as agent:
        assert words(await agent.says("Is it?")) == ["I cannot promise that."]
        assert [each["content"] for each in agent.model.messages()] == ["Say that you cannot promise.", "Is it?"]


async def test_without_an_answer_in_its_place_what_was_banned_is_not_said_either(tmp_path: Path) -> None:
    banned = {"contentFilter": {"bannedContentsInAgentResponse": ["free"]}}
    app = app_with(tmp_path, {**banned, "action": {"generativeAnswer": {"prompt": "Say no."}}})
    async with driven(app, {"text": "It is free."}, {"error": "500"}) as agent:
        assert words(await agent.says("Is it?")) == [
            "Sorry, I had a problem just now. Could you say that again, please?"
        ]
