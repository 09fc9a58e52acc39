"""What is said in a tree, as plain data: `{"role": "user"|"model", "parts": [{"text"} | {"function_call": {"id",
"name", "args"}} | {"function_response": {"id", "name", "response"}}]}`. Parts of other kinds are kept as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callagent.models.protocol import Message

Content = Mapping[str, Any]
Part = Mapping[str, Any]


def text_content(role: str, *texts: str) -> Content:
    return {"role": role, "parts": [{"text": text} for text in texts]}


def response_part(call: Part, response: Mapping[str, Any]) -> Part:
    """The answer to a `function_call`."""
    return {"function_response": {"id": call["id"], "name": call["name"], "response": dict(response)}}


def parts(content: Content | None) -> Sequence[Part]:
    return (content or {}).get("parts") or ()


def texts(content: Content | None) -> list[str]:
    """The texts meant to be read or spoken; a model's thoughts are not."""
    return [part["text"] for part in parts(content) if part.get("text") and not part.get("thought")]


def calls(content: Content | None) -> list[Part]:
    return [part["function_call"] for part in parts(content) if part.get("function_call")]


def responses(content: Content | None) -> list[Part]:
    return [part["function_response"] for part in parts(content) if part.get("function_response")]


def as_messages(contents: Sequence[Content]) -> Iterator[Message]:
    """The contents as a model's messages."""
    answered = {response["id"] for content in contents for response in responses(content)}
    for content in contents:
        said, called = "\n".join(texts(content)), calls(content)
        for response in responses(content):
            yield {"role": "tool", "tool_call_id": response["id"], "content": _json(response["response"])}
        if called:
            yield {"role": "assistant", "content": said or None, "tool_calls": [_tool_call(call) for call in called]}
            # Models insist on an answer to every call.
            for call in called:
                if call["id"] not in answered:
                    yield {"role": "tool", "tool_call_id": call["id"], "content": '{"status": "pending"}'}
        elif said:
            yield {"role": "assistant" if content.get("role") == "model" else "user", "content": said}


def _tool_call(call: Part) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": _json(call.get("args") or {})}
    return {"id": call["id"], "type": "function", "function": function}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
