"""A call's record as spans: call, turns, and what recogniser, model, functions and voice did in each. No I/O.

Names follow OpenTelemetry's conventions for generative AI (`gen_ai.*`); what they do not know is `callagent.*`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

Attributes = dict[str, str | int | float | bool]
Record = Mapping[str, Any]

CONTENT: Final = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    "callagent.voice.text",
)
"""Attributes that hold words of people. A span with one also has `callagent.content`: a collector drops by either."""


@dataclass(slots=True)
class Span:
    """Instants are seconds of Unix time."""

    name: str
    started: float
    ended: float
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    children: list[Span] = field(default_factory=list)


def spans_of(record: Record, model: str, *, content: bool) -> Span:
    """The call's span with all below it. `model` as the settings name it; `content`: with the words."""
    began = datetime.fromisoformat(record["started_at"]).timestamp()
    ended = began + record["total_duration"]
    call = Span(f"invoke_agent {record['project_id']}", began, ended, _call_attributes(record))
    if record["end_reason"] == "error":
        call.error = ", ".join(dict.fromkeys(error["what"] for error in record["errors"])) or "error"
    call.children = [_turn(turn, record, began, ended) for turn in record["turns"]]
    for turn, span in zip(record["turns"], call.children, strict=True):
        span.children = list(_parts(turn, record, began, model))
        if content:
            _add_content(span, turn)
        else:
            _hide_errors(span)
    return call


def _call_attributes(record: Record) -> Attributes:
    failures = record["provider_failures"]
    return _known(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": record["project_id"],
            "gen_ai.conversation.id": record["id"],
            "callagent.wire": record["wire"],
            "callagent.direction": record["direction"],
            "callagent.end_reason": record["end_reason"],
            "callagent.turns": record["num_turns"],
            "callagent.underruns": record["underruns"],
            "callagent.provider_failures": len(failures),
            "callagent.failed_providers": ",".join(sorted({f"{one['role']}/{one['provider']}" for one in failures})),
        }
    )


def _turn(turn: Record, record: Record, began: float, ended: float) -> Span:
    instants = [at for at in turn["instants"].values() if at is not None]
    spoken = [at for one in turn["spoken"] for at in (one["started_at"], one["ended_at"]) if at is not None]
    known = instants + spoken
    attributes: Attributes = {
        "gen_ai.conversation.id": record["id"],
        "callagent.turn.number": turn["number"],
        "callagent.turn.barge_in": turn["barge_in"],
        "callagent.turn.silence": turn["is_silence"],
        "callagent.turn.fillers": sum(one["kind"] == "filler" for one in turn["spoken"]),
        "callagent.turn.false_interruptions": sum(bool(pause["resumed"]) for pause in turn["pauses"]),
    }
    latency = {f"callagent.turn.{name}_seconds": seconds for name, seconds in turn["latency"].items()}
    position = {"callagent.flow": turn["flow"], "callagent.step": turn["step"]}
    span = Span("turn", began + min(known, default=0.0), began + max(known, default=0.0))
    span.ended = max(span.started, min(span.ended, ended))
    span.attributes = {**attributes, **_known(latency), **_known(position)}
    return span


def _parts(turn: Record, record: Record, began: float, model: str) -> Iterator[Span]:
    instants = turn["instants"]
    heard, ready = instants.get("speech_started"), instants.get("transcript_ready")
    if heard is not None and ready is not None:
        yield Span("recognize", began + heard, began + ready, {"callagent.role": "recognizer"})
    for request in turn["requests"]:
        yield _model(request, began, model)
    for function in turn["functions"]:
        yield _function(function, began)
    for number, spoken in enumerate(turn["spoken"]):
        asked = instants.get("voice_asked") if not number else None
        started = spoken["started_at"] if asked is None else asked
        ended = spoken["started_at"] if spoken["ended_at"] is None else spoken["ended_at"]
        attributes: Attributes = {
            "callagent.role": "voice",
            "callagent.voice.kind": spoken["kind"],
            "callagent.voice.interrupted": spoken["interrupted"],
        }
        yield Span("speak", began + started, began + max(started, ended), attributes)


def _model(request: Record, began: float, model: str) -> Span:
    provider, slash, name = model.partition("/")
    first = request["first_token_at"]
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name if slash else model,
        "gen_ai.usage.input_tokens": request["input_tokens"],
        "gen_ai.usage.output_tokens": request["output_tokens"],
        "callagent.role": "model",
        "gen_ai.server.time_to_first_token": None if first is None else round(first - request["requested_at"], 3),
    }
    started = began + request["requested_at"]
    span = Span(f"chat {model}", started, started + request["duration_ms"] / 1000, _known(attributes))
    span.error = request["error"]
    return span


def _function(function: Record, began: float) -> Span:
    started = began + function["started_at"]
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": function["name"],
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": str(function["number"]),
        "callagent.role": "function",
    }
    name = f"execute_tool {function['name']}"
    return Span(name, started, started + function["duration_ms"] / 1000, attributes, function["error"])


def _add_content(span: Span, turn: Record) -> None:
    """The words, on the spans that they belong to."""
    said = turn["user_input"] or turn["user_input_dtmf"]
    if said:
        _mark(span, "gen_ai.input.messages", _messages("user", said))
    if turn["agent_response"]:
        _mark(span, "gen_ai.output.messages", _messages("assistant", turn["agent_response"]))
    functions, spoken = iter(turn["functions"]), iter(turn["spoken"])
    for child in span.children:
        if child.attributes.get("callagent.role") == "function":
            function = next(functions)
            _mark(child, "gen_ai.tool.call.arguments", _json(function["arguments"]))
            _mark(child, "gen_ai.tool.call.result", _json(function["result"]))
        elif child.attributes.get("callagent.role") == "voice":
            _mark(child, "callagent.voice.text", next(spoken)["text"])


def _hide_errors(span: Span) -> None:
    """The kind of an error stays; its text may quote somebody."""
    for child in span.children:
        child.error = child.error and child.error.partition(":")[0][:100]


def _mark(span: Span, name: str, text: str) -> None:
    span.attributes[name] = text
    span.attributes["callagent.content"] = True


def _messages(role: str, text: str) -> str:
    return _json([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
