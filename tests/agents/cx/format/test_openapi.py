"""Operations of OpenAPI descriptions: toolsets, single tools, and what an environment fills in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app, read_cx_app
from callagent.agents.cx.format.app import ToolConfig
from callagent.agents.cx.format.openapi import OperationRequest, operations, single_operation
from tests.agents.cx.runtime.test_code_tools import call, echo
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import results

__all__ = ["echo"]
SESSION = {"session_id": "s", "variables": {"a": {"b": 1}, "vip": True}}


def schema(server: str = "https://{place}.test", **operation: Any) -> dict[str, Any]:
    return {
        "openapi": "3.0.0",
        "servers": [{"url": server, "variables": {"place": {"default": "here"}}}],
        "paths": {"/x/{id}": {"post": operation}},
    }


def parameter(name: str, place: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": {"type": kind}, **more}


@pytest.mark.parametrize(
    ("place", "value", "sent"),
    [
        ("query", True, {"params": {"p": "true"}}),
        ("query", [1, False], {"params": {"p": ["1", "false"]}}),
        ("query", {"a": 1}, {"params": {"p": '{"a": 1}'}}),
        ("header", 2.5, {"headers": {"p": "2.5"}}),
        ("header", ["a", "b"], {"headers": {"p": "a,b"}}),
        ("cookie", "a b", {"headers": {"Cookie": "p=a%20b"}}),
    ],
)
def test_values_stand_in_a_request_as_the_format_writes_them(place: str, value: Any, sent: dict[str, Any]) -> None:
    (operation,) = operations(schema(operationId="o", parameters=[parameter("p", place)]))
    request = operation.request({"p": value}, SESSION)
    expected = OperationRequest("POST", "https://here.test/x/{id}")
    assert request == replace(expected, **sent)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("$context.session_id", "s"),
        ("$context.variables", '{"a": {"b": 1}, "vip": true}'),
        ("$context.variables.vip", "true"),
        ("$context.variables.a.b", "1"),
    ],
)
def test_what_the_call_fills_in_is_hidden_from_the_model(source: str, value: str) -> None:
    hidden = parameter("p", "header", **{"x-ces-session-context": source})
    (operation,) = operations(schema(operationId="o", parameters=[hidden]))
    assert operation.schema() is None
    assert operation.request({"p": "the model's"}, SESSION).headers == {"p": value}


def test_a_form_goes_as_a_form_and_a_list_as_a_whole() -> None:
    form = {
        "application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    }
    (operation,) = operations(schema(operationId="o", requestBody={"content": form}))
    assert operation.request({"a": "1"}, {}).data == {"a": "1"}
    rows = {"application/json": {"schema": {"type": "array", "items": {"type": "string"}}}}
    (operation,) = operations(schema(operationId="o", requestBody={"content": rows}))
    assert operation.request({"body": []}, {}).json == []


def single(described: dict[str, Any]) -> ToolConfig:
    return ToolConfig("look_up", "look_up", {"openApiTool": {}}, "x.json", "openApiTool", schema=described)


def test_a_single_tool_needs_no_identifier_in_its_description() -> None:
    operation = single_operation(single(schema(summary="Looks up.")))
    assert operation is not None
    assert (operation.path, operation.description) == ("/x/{id}", "Looks up.")
    assert single_operation(single({"paths": {}})) is None


def app_with(root: Path, server: str) -> Path:
    described = json.dumps(schema("$env_var", operationId="get", parameters=[parameter("id", "path", required=True)]))
    tool = {"openApiTool": {"name": "fetch", "openApiSchema": "tools/fetch/schema.json", "description": "Fetches."}}
    toolset = {"displayName": "Things", "openApiToolset": {"openApiSchema": "toolsets/things/schema.json"}}
    environment = {
        "app": {"languageSettings": {"defaultLanguageCode": "de-DE"}},
        "tools": {"fetch": {"openApiTool": {"url": server}}},
        "toolsets": {"things": {"openApiToolset": {"url": server}}},
    }
    more = {
        "tools/fetch/fetch.json": json.dumps(tool),
        "tools/fetch/schema.json": described,
        "toolsets/things/things.json": json.dumps(toolset),
        "toolsets/things/schema.json": described,
        **({"environment.json": json.dumps(environment)} if server else {}),
    }
    agent = {"tools": ["fetch"], "toolsets": [{"toolset": "Things"}]}
    app = {"languageSettings": {"defaultLanguageCode": "$env_var"}}
    return write_app(root, app=app, agent=agent, more=more)


async def test_an_environment_names_the_servers_of_tools_and_toolsets(tmp_path: Path, echo: str) -> None:
    app = app_with(tmp_path, echo)
    assert check_cx_app(app).warnings == ()
    assert read_cx_app(app).language == "de-DE"
    async with driven(app, call("fetch", id="7"), call("Things_get", id="a/b"), {"text": "So."}) as agent:
        answers = results(await agent.says("Go."))
        assert answers["fetch"]["path"] == "/x/7"
        assert answers["Things_get"]["path"] == "/x/a%2Fb"
        assert set(agent.model.tools()) == {"fetch", "Things_get"}


def test_a_server_that_is_left_open_is_told(tmp_path: Path) -> None:
    told = {(each.file, each.message) for each in check_cx_app(app_with(tmp_path, "")).warnings}
    message = "the server is left open ($env_var): environment.json has no 'url' for it"
    assert told == {("tools/fetch/schema.json", message), ("toolsets/things/schema.json", message)}


def test_an_environment_that_is_broken_is_told(tmp_path: Path) -> None:
    app = app_with(tmp_path, "http://a.test")
    (app / "environment.json").write_text("{\n")
    assert [(each.file, each.line) for each in check_cx_app(app).errors] == [("environment.json", 2)]
