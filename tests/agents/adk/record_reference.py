"""Records runs of google-adk itself: `python record_reference.py SAMPLES CASES.json`, the result on standard output.

A case is `{"config", "turns", "script", "initial_state"}`; the form of a recorded run is `agents/adk/trace.py`'s. It is
run by an interpreter that has the extra `adk`; nothing of ours is imported.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import logging
import sys
import warnings

try:
    from google.adk.agents import config_agent_utils
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types
    from pydantic import Field
except ImportError:
    sys.exit(77)

_IDENTITY = {"app_name": "app", "user_id": "u"}


class Recorder(BaseLlm):
    """Answers as the script says, and keeps what it is asked."""

    script: list = Field(default_factory=list)
    calls: list = Field(default_factory=list)

    async def generate_content_async(self, llm_request, stream=False):
        config = llm_request.config
        declared = [each for tool in config.tools or [] for each in tool.function_declarations or []]
        self.calls.append({
            "system": config.system_instruction,
            "tools": [_without(clean(each.model_dump(exclude_none=True)), "response_json_schema") for each in declared],
            "temperature": config.temperature,
            "max_output_tokens": config.max_output_tokens,
            "contents": [content(each) for each in llm_request.contents],
        })  # fmt: skip
        answer = self.script.pop(0)
        yield LlmResponse(content=types.Content(role="model", parts=parts_of(answer)))


def parts_of(answer):
    if isinstance(answer, str):
        return [types.Part(text=answer)]
    return [
        types.Part(**name)
        if isinstance(name, dict)
        else types.Part(function_call=types.FunctionCall(name=name, args=args))
        for name, args in answer
    ]


def clean(value):
    if isinstance(value, dict):
        return {key: clean(each) for key, each in value.items() if each is not None}
    return [clean(each) for each in value] if isinstance(value, list) else value


def content(given):
    plain = given.model_dump(exclude_none=True)
    for part in plain.get("parts", []):
        for key in ("function_call", "function_response"):
            if key in part:
                part[key].pop("id", None)
    return plain


def _without(plain, key):
    plain.pop(key, None)
    return plain


def give_model(agent, model, seen):
    if id(agent) in seen:
        return
    seen.add(id(agent))
    if hasattr(agent, "model"):
        agent.model = model
    for each in (*agent.sub_agents, *(tool.agent for tool in getattr(agent, "tools", []) if hasattr(tool, "agent"))):
        give_model(each, model, seen)


def told(event):
    actions = clean(event.actions.model_dump(exclude_none=True))
    plain = {"author": event.author}
    if event.content:
        plain |= {"role": event.content.role, "parts": content(event.content).get("parts", [])}
    plain["actions"] = {key: each for key, each in actions.items() if each not in ({}, []) or key == "state_delta"}
    if event.branch:
        plain["branch"] = event.branch
    if event.long_running_tool_ids:
        plain["long_running"] = True
    return plain | {"final": event.is_final_response()}


async def message_of(runner, session_id, turn):
    if isinstance(turn, str):
        return types.UserContent(parts=[types.Part(text=turn)])
    session = await runner.session_service.get_session(**_IDENTITY, session_id=session_id)
    turn = copy.deepcopy(turn)
    for part in turn["parts"]:
        answer = part.get("function_response")
        if answer:
            asked = [
                call for event in session.events for call in event.get_function_calls() if call.name == answer["name"]
            ]
            answer["id"] = asked[-1].id
    return types.Content(**turn)


async def record(folder, case):
    # Agents that Python makes have one parent: each case has the project's modules anew.
    package = case["config"].split("/")[0]
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    model = Recorder(model="fake")
    model.script, model.calls = list(case["script"]), []
    events, output = [], io.StringIO()
    with contextlib.redirect_stdout(output):
        root = config_agent_utils.from_config(f"{folder}/{case['config']}")
        give_model(root, model, set())
        runner = InMemoryRunner(root, app_name="app")
        state = case.get("initial_state") or {}
        session = await runner.session_service.create_session(**_IDENTITY, state=state)
        for turn in case["turns"]:
            try:
                message = await message_of(runner, session.id, turn)
                async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
                    events.append(told(event))
            except Exception as error:  # how a run fails is a part of what is recorded
                events.append({"EXC": f"{type(error).__name__}: {error}"})
        session = await runner.session_service.get_session(**_IDENTITY, session_id=session.id)
    return {
        **case,
        "events": events,
        "model_calls": model.calls,
        "state": dict(session.state),
        "stdout": output.getvalue().split("\n"),
    }


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    folder, cases = sys.argv[1:]
    sys.path.insert(0, folder)
    with open(cases) as file:
        recorded = [asyncio.run(record(folder, case)) for case in json.load(file)]
    json.dump(recorded, sys.stdout, default=str)


if __name__ == "__main__":
    main()
