"""The events of a call's history: their contents, their actions, and the failure that ends a turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from callagent.models import CalledFunction, Message, MessageCall

PlainObject = Mapping[str, Any]
"""An object of plain data as workers carry it: JSON, and bytes where an artifact has them."""
Content = PlainObject
"""What one side said: `{"role": "user" | "model", "parts": [part, …]}`."""
Part = PlainObject
"""A part of a content: `{"text"}`, `{"function_call": FunctionCall}`, `{"function_response": FunctionResponse}` or
`{"inline_data": {"mime_type", "data"}}`. A text with `thought` is not spoken. Other parts are kept as they are."""


class FunctionCall(TypedDict, total=False):
    """A model's call of a tool. Every call in a history has an `id`, which its response repeats."""

    id: str
    name: str
    args: PlainObject


class FunctionResponse(TypedDict, total=False):
    """The result of a tool call."""

    id: str
    name: str
    response: PlainObject


USER = "user"
"""The author of what the caller says; no agent may be called so."""


@dataclass(slots=True)
class Actions:
    """What an event does beside its content."""

    state_delta: dict[str, object] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    """Keys removed from the state."""
    transfer_to_agent: str | None = None
    """The name of the agent to transfer to, of which the last one set counts; empty: the conversation stays."""
    escalate: bool = False
    """Whether to end the loop or the parallel agent that runs the event's author."""
    skip_summarization: bool = False
    """Whether the model is not asked to put a tool's result into words."""
    other: dict[str, object] = field(default_factory=dict)
    """Actions of one format, which the tree passes on without interpreting them."""

    def merge(self, plain: PlainObject) -> None:
        """Merge the actions of project code or of a tool into these."""
        self.state_delta.update(plain.get("state_delta") or {})
        self.removed += plain.get("removed") or []
        if plain.get("transfer_to_agent") is not None:
            self.transfer_to_agent = plain["transfer_to_agent"]
        self.escalate = self.escalate or bool(plain.get("escalate"))
        self.skip_summarization = self.skip_summarization or bool(plain.get("skip_summarization"))
        # Two tools of one answer may both have saved artifacts: objects are merged, other values replaced.
        for key, value in (plain.get("other") or {}).items():
            before = self.other.get(key)
            self.other[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value

    def as_plain(self) -> dict[str, object]:
        """Return the actions that are set, and `state_delta` always."""
        plain: dict[str, object] = {}
        if self.skip_summarization:
            plain["skip_summarization"] = True
        # The ADK's recorded events have `state_delta` even when it is empty.
        plain["state_delta"] = dict(self.state_delta)
        if self.transfer_to_agent is not None:
            plain["transfer_to_agent"] = self.transfer_to_agent
        if self.escalate:
            plain["escalate"] = True
        return plain | self.other


@dataclass(slots=True)
class Event:
    """One entry of a call's history."""

    author: str
    """An agent's name, or `USER`."""
    content: Content | None = None
    actions: Actions = field(default_factory=Actions)
    branch: str = ""
    """`parent.child` for every parallel agent around the author, joined by dots; empty outside of them."""
    invocation_id: str = ""
    """The turn that the event belongs to."""
    id: str = ""
    long_running: tuple[str, ...] = ()
    """Identifiers of calls whose true result comes in a later turn."""
    error: tuple[str, str] | None = None
    """Kind and text of the error that ended the run."""
    interrupted: bool = False
    """Whether the caller interrupted it; its text is then what the caller has heard."""
    at: int = 0
    """Unix time in seconds; 0: unknown."""

    @property
    def is_final(self) -> bool:
        """Whether the author has nothing more to do in this turn."""
        if self.actions.skip_summarization or self.long_running:
            return True
        return not calls(self.content) and not responses(self.content)

    def as_plain(self) -> dict[str, object]:
        """Return the event as project code and recorded traces have it."""
        plain: dict[str, object] = {"author": self.author}
        if self.content is not None:
            plain["content"] = self.content
        plain["actions"] = self.actions.as_plain()
        if self.branch:
            plain["branch"] = self.branch
        if self.long_running:
            plain["long_running_tool_ids"] = list(self.long_running)
        if self.error is not None:
            plain["error_code"], plain["error_message"] = self.error
        if self.interrupted:
            plain["interrupted"] = True
        if self.at:
            plain["timestamp"] = self.at
        return plain | {"id": self.id, "invocation_id": self.invocation_id}


def text_content(role: str, *texts: str) -> Content:
    """Return a content of texts only."""
    return {"role": role, "parts": [{"text": text} for text in texts]}


def response_part(call: FunctionCall, response: PlainObject) -> Part:
    """Return the response to a `function_call` as a part."""
    return {"function_response": {"id": call["id"], "name": call["name"], "response": dict(response)}}


def parts(content: Content | None) -> Sequence[Part]:
    """Return the parts of a content; none where there is no content."""
    return (content or {}).get("parts") or ()


def texts(content: Content | None) -> list[str]:
    """Return the texts that are meant to be spoken; a model's thoughts are not."""
    return [part["text"] for part in parts(content) if part.get("text") and not part.get("thought")]


def calls(content: Content | None) -> list[FunctionCall]:
    """Return the tool calls in a content."""
    return [part["function_call"] for part in parts(content) if part.get("function_call")]


def responses(content: Content | None) -> list[FunctionResponse]:
    """Return the responses to tool calls in a content."""
    return [part["function_response"] for part in parts(content) if part.get("function_response")]


def as_messages(contents: Sequence[Content]) -> Iterator[Message]:
    """Yield the contents as messages of the chat protocol that all models share."""
    answered = {response["id"] for content in contents for response in responses(content)}
    for content in contents:
        text, called = "\n".join(texts(content)), calls(content)
        # Responses follow the content with their calls (`request._paired`), as models require.
        for response in responses(content):
            yield {"role": "tool", "tool_call_id": response["id"], "content": _json(response["response"])}
        if called:
            yield {"role": "assistant", "content": text or None, "tool_calls": [_tool_call(call) for call in called]}
            # Models refuse a request in which a tool call has no result.
            for pending in [call["id"] for call in called if call["id"] not in answered]:
                yield {"role": "tool", "tool_call_id": pending, "content": '{"status": "pending"}'}
        elif text:
            yield {"role": "assistant" if content.get("role") == "model" else "user", "content": text}


def _tool_call(call: FunctionCall) -> MessageCall:
    function: CalledFunction = {"name": call["name"], "arguments": _json(call.get("args") or {})}
    return {"id": call["id"], "type": "function", "function": function}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class RunFailed(Exception):
    """The error that ends a turn, but not the call. `kind` is the error's name as project authors know it."""

    agent = ""
    """The name of the agent that failed."""
    author: str = ""
    """The author of the failure event in the history."""

    def __init__(self, kind: str, text: str, *, recorded: bool = False) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.recorded = recorded
        """Whether the history shows the failure already, so that it gets no failure event."""
