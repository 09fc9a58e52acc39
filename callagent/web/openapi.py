"""The OpenAPI description of the API."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from callagent import __version__
from callagent.web.control import Dial, Recording, TakeOver
from callagent.web.projects import ENVIRONMENTS

_TEXTS = ("search", "start_time", "end_time", "project_id", "client_env", "wire", "channel", "variant_name")
_REFUSALS = {
    "400": {"description": "A parameter is not valid."},
    "401": {"description": "Log in, or send a token."},
    "403": {"description": "A right is missing."},
    "404": {"description": "There is no such thing."},
    "409": {"description": "The settings or the state of the call do not let it be."},
    "415": {"description": "The body is of another type."},
    "503": {"description": "The store does not answer."},
}


def description() -> dict[str, Any]:
    """Return the description as JSON data; it names every path of the API."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "callagent", "version": __version__},
        "paths": {**_calls(), **_live(), **_projects(), **_others()},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _calls() -> dict[str, Any]:
    call_id = _parameter("id", "path")
    listing = [
        *(_parameter(name) for name in (*_TEXTS, "from_number", "end_reason", "cursor")),
        *({**_parameter(name), "schema": {"type": "boolean"}} for name in ("handoff", "in_progress")),
        _number("limit", 1, 500),
    ]
    return {
        "/api/calls": {
            **_get("A page of calls, newest first.", listing),
            "post": _operation("Place a call.", status="202", body=Dial),
        },
        "/api/calls/{id}": _get("The record of a call.", [call_id]),
        "/api/calls/{id}/recording": {
            **_get("The stereo recording.", [call_id], media="audio/wav"),
            "post": _operation(
                "Pause, resume or discard it in a call that is on.", [call_id], status="202", body=Recording
            ),
        },
        "/api/calls/{id}/waveform": _get("The recording's loudness.", [call_id, _number("points", 10, 2000)]),
        "/api/calls/{id}/hangup": {"post": _operation("End a call that is on.", [call_id], status="202")},
        "/api/calls/{id}/takeover": {
            "post": _operation("Give a call that is on to a person.", [call_id], status="202", body=TakeOver)
        },
    }


def _live() -> dict[str, Any]:
    call_id = _parameter("id", "path")
    return {
        "/api/live": _get("Calls that are on."),
        "/api/live/events": _get("The same, again whenever it changes.", media="text/event-stream"),
        "/api/live/{id}": _get("A call that is on, with its turns.", [call_id]),
        "/api/live/{id}/events": _get("The same, again whenever it changes.", [call_id], media="text/event-stream"),
        "/api/live/{id}/audio": _get("Listen in, through a WebSocket.", [call_id], status="101"),
    }


def _projects() -> dict[str, Any]:
    name, days = _parameter("name", "path"), _number("days", 1, 366)
    environment = {**_parameter("environment", "path"), "schema": {"type": "string", "enum": list(ENVIRONMENTS)}}
    return {
        "/api/overview": _get("Volume, containment, latency, metrics.", [days, _parameter("project_id")]),
        "/api/projects": _get("Projects that are served, and those that calls are kept of."),
        "/api/projects/{name}/graph": _get("Flows, steps, traffic.", [name, days]),
        "/api/projects/{name}/real-time-configs/{environment}": {
            **_get("What the project's functions read as real-time configuration.", [name, environment]),
            "put": _operation("Replace it.", [name, environment], body=dict),
            "patch": _operation("Replace some of its keys; null takes one away.", [name, environment], body=dict),
        },
        "/api/projects/{name}/real-time-configs/{environment}/schema": _get("Its JSON Schema.", [name, environment]),
    }


def _others() -> dict[str, Any]:
    return {
        "/api/me": _get("Who asks, and what they may."),
        "/api/targets": _get("Names of where a call may be sent."),
        "/api/callers/{number}": {
            "delete": _operation("Delete what is kept of a caller.", [_parameter("number", "path")])
        },
        "/api/handoffs": _get(
            "What a project leaves for who takes a call over.", [_parameter("id"), _parameter("shared_id")]
        ),
        "/external-events": {
            "post": _operation("An event for a call that waits for it.", [_parameter("id")], status="202")
        },
        "/api/openapi.json": _get("This description."),
    }


def _get(
    summary: str,
    parameters: list[dict[str, Any]] | None = None,
    *,
    media: str = "application/json",
    status: str = "200",
) -> Any:
    return {"get": _operation(summary, parameters, media=media, status=status)}


def _operation(
    summary: str,
    parameters: list[dict[str, Any]] | None = None,
    *,
    media: str = "application/json",
    status: str = "200",
    body: type | None = None,
) -> dict[str, Any]:
    content = {media: {"schema": {"type": "object"} if media == "application/json" else {"type": "string"}}}
    answers = {status: {"description": "Done.", "content": content}, **_REFUSALS}
    taken = {"requestBody": {"required": True, "content": _content(body)}} if body else {}
    return {"summary": summary, "parameters": parameters or [], **taken, "responses": answers}


def _content(body: type) -> dict[str, Any]:
    schema = body.model_json_schema() if issubclass(body, BaseModel) else {"type": "object"}
    return {"application/json": {"schema": schema}}


def _parameter(name: str, place: str = "query") -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _number(name: str, least: int, most: int) -> dict[str, Any]:
    return {**_parameter(name), "schema": {"type": "integer", "minimum": least, "maximum": most}}
