"""A conversation as google-adk's own runs can be recorded: events, requests to the model, state, output.

    {"turns", "script", "events": [{"author", "role", "parts", "actions", "branch", "long_running", "final"} |
     {"EXC": "kind: text"}], "model_calls": [{"system", "tools", "temperature", "max_output_tokens", "contents"}],
     "state", "stdout"}

A turn is a text, or a content. A script has one entry per request to the model: a text, or a list of
`[name, arguments]`, among which `[{"text": …}, null]` is a text.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any

from callagent.agents.adk.project import AdkProject
from callagent.agents.tree import Event, ModelRequest, TreeAgent
from callagent.agents.tree.events import USER, Content, parts, text_content
from callagent.call_info import CallInfo

Turn = str | Mapping[str, Any]


def script_entries(script: Sequence[Any]) -> list[dict[str, Any]]:
    """The script as entries of a scripted model."""
    entries: list[dict[str, Any]] = []
    for answer in script:
        if isinstance(answer, str):
            entries.append({"text": answer})
            continue
        said = "".join(name["text"] for name, _ in answer if isinstance(name, dict))
        calls = [{"name": name, "arguments": given} for name, given in answer if not isinstance(name, dict)]
        entries.append({"text": said, "calls": calls} if said else {"calls": calls})
    return entries


async def record_trace(
    project: AdkProject, turns: Sequence[Turn], state: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run the turns as one call and tell what happened. Output is that of code which runs in this process."""
    requests: list[dict[str, Any]] = []
    info = CallInfo("trace", "inbound", "u", None, "text", datetime.now(UTC))
    agent = await project.open_observed(info, lambda request: requests.append(_request(request)))
    agent.conversation.state.apply(state or {})
    events: list[dict[str, Any]] = []
    output = io.StringIO()
    try:
        for turn in turns:
            with redirect_stdout(output):
                events += await _run(agent, text_content("user", turn) if isinstance(turn, str) else turn)
        values = copy.deepcopy(agent.conversation.state.values)
    finally:
        await agent.close()
    return {
        "turns": list(turns),
        "events": events,
        "model_calls": requests,
        "state": values,
        "stdout": output.getvalue().split("\n"),
    }


async def _run(agent: TreeAgent, content: Content) -> list[dict[str, Any]]:
    before = len(agent.conversation.events)
    await agent.answer(content, lambda action: None)
    happened = [_event(event) for event in agent.conversation.events[before:] if event.author != USER]
    if agent.failure is not None:
        happened.append({"EXC": str(agent.failure)})
    return happened


def _event(event: Event) -> dict[str, Any]:
    plain: dict[str, Any] = {"author": event.author}
    if event.content is not None:
        plain |= {"role": event.content.get("role"), "parts": _without_ids(event.content)}
    plain["actions"] = event.actions.as_plain()
    if event.branch:
        plain["branch"] = event.branch
    if event.long_running:
        plain["long_running"] = True
    return plain | {"final": event.is_final}


def _request(request: ModelRequest) -> dict[str, Any]:
    return {
        "system": request.system,
        "tools": [copy.deepcopy(tool.declaration) for tool in request.tools.values()],
        "temperature": request.temperature,
        "max_output_tokens": request.max_tokens,
        "contents": [{"parts": _without_ids(each), "role": each.get("role")} for each in request.contents],
    }


def _without_ids(content: Content) -> list[dict[str, Any]]:
    """Identifiers differ from run to run."""
    plain = copy.deepcopy([dict(part) for part in parts(content)])
    for part in plain:
        for key in ("function_call", "function_response"):
            if key in part:
                part[key].pop("id", None)
    return plain
