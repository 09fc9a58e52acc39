"""The operations of an OpenAPI 3 description as tools: their arguments, and the HTTP requests of their calls."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from callagent.agents.cx.format.app import ToolConfig
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at, objects_at

SESSION_CONTEXT = "x-ces-session-context"
"""Key in a parameter that the call fills in and the model never sees."""
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_MAX_REFERENCE_DEPTH = 20
"""Nesting depth beyond which values become empty schemas, because descriptions may refer to themselves."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operation."""

    name: str
    place: str
    """`path`, `query`, `header`, `cookie` or `body`."""
    schema: JsonObject
    required: bool
    source: str = ""
    """The `$context.…` value with which the call fills it in; empty if the model does."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a method on a path of a server."""

    name: str
    method: str
    path: str
    server: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    is_single_body: bool = False
    """Whether the body is no object; the parameter `body` is then the whole body."""
    is_form: bool = False
    """Whether the body is sent as a form instead of JSON."""

    def schema(self) -> JsonObject | None:
        """Return the JSON schema of the arguments that the model gives; None if there are none."""
        from_model = [each for each in self.parameters if not each.source]
        if not from_model:
            return None
        required = [each.name for each in from_model if each.required]
        schema: MutableJsonObject = {
            "type": "object",
            "properties": {each.name: dict(each.schema) for each in from_model},
        }
        return {**schema, "required": required} if required else schema

    def request(self, arguments: JsonObject, session: Mapping[str, object]) -> OperationRequest:
        """Return the request for a call of the operation.

        `session`: the values that `$context.` refers to.
        """
        path, body = self.path, dict[str, object]()
        params: dict[str, str | list[str]] = {}
        headers: dict[str, str] = {}
        cookies = []
        for each in self.parameters:
            value = lookup(each.source, session) if each.source else arguments.get(each.name)
            if value is None:
                continue
            match each.place:
                case "path":
                    path = path.replace("{" + each.name + "}", urllib.parse.quote(as_text(value), safe=""))
                case "query":
                    # A list repeats the parameter: the default style of OpenAPI 3, "form, explode".
                    params[each.name] = [as_text(one) for one in value] if isinstance(value, list) else as_text(value)
                case "header":
                    headers[each.name] = as_text(value)
                case "cookie":
                    cookies.append(f"{each.name}={urllib.parse.quote(as_text(value))}")
                case _:
                    body[each.name] = value
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        request = OperationRequest(self.method.upper(), self.server.rstrip("/") + path, params, headers)
        # Without any value the request has no body, because a server could refuse an empty object.
        sent = body.get("body") if self.is_single_body else body or None
        if self.is_form:
            request.data = sent
        else:
            request.json = sent
        return request


@dataclass(slots=True)
class OperationRequest:
    """The HTTP request of an operation. `Authentication` adds parameters and headers to it."""

    method: str
    url: str
    params: dict[str, str | list[str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    data: object = None
    """The values of a form in the body; None if the body is no form."""
    json: object = None
    """The value of a JSON body; None if the body is not JSON."""


def as_text(value: object) -> str:
    """Return a value as text for a URL or a header."""
    # This is the style "simple" of OpenAPI 3, the default for paths and headers.
    if isinstance(value, list):
        return ",".join(as_text(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def lookup(source: str, session: Mapping[str, object]) -> object:
    """Return the value of `$context.session_id`, `$context.variables.name` and the like; None if there is none."""
    value: object = session
    for key in source.removeprefix("$context.").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def operations(schema: JsonObject) -> list[Operation]:
    """Return the operations with an `operationId`, without which an operation has no name."""
    found = []
    for path in (paths := object_at(schema, "paths")):
        item = object_at(paths, path)
        found += [
            _read_operation(schema, str(path), method, item, operation)
            for method in _METHODS
            if (operation := object_at(item, method)).get("operationId")
        ]
    return found


def single_operation(tool: ToolConfig) -> Operation | None:
    """Return the operation of an `openApiTool`: the one with the tool's name, else the first one."""
    if tool.kind != "openApiTool":
        return None
    schema = tool.schema or {}
    # The description may have operations besides the tool's own.
    named = str(tool.own.get("name") or "")
    return next((each for each in operations(schema) if each.name == named), None) or _first_operation(schema)


def _first_operation(schema: JsonObject) -> Operation | None:
    """Return the first operation, even without an `operationId`."""
    for path in (paths := object_at(schema, "paths")):
        item = object_at(paths, path)
        for method in _METHODS:
            if isinstance(own := item.get(method), Mapping):
                return _read_operation(schema, str(path), method, item, {"operationId": "operation", **own})
    return None


def _read_operation(schema: JsonObject, path: str, method: str, item: JsonObject, own: JsonObject) -> Operation:
    # The innermost list of servers applies: the operation's, else the path's, else that of the whole description.
    servers = objects_at(own, "servers") or objects_at(item, "servers") or objects_at(schema, "servers") or [{}]
    body = list(_read_body(schema, own))
    return Operation(
        name=str(own["operationId"]),
        method=method,
        path=path,
        server=_server_url(servers[0]),
        description=str(own.get("description") or own.get("summary") or ""),
        parameters=(*_read_parameters(schema, item, own), *body),
        is_form=_request_media(schema, own)[0] == "application/x-www-form-urlencoded",
        is_single_body=len(body) == 1 and body[0].name == "body" and body[0].schema.get("type") != "object",
    )


def _read_parameters(schema: JsonObject, item: JsonObject, own: JsonObject) -> Iterator[Parameter]:
    # A parameter is identified by name and place; the operation's replaces the path's.
    parameters_by_key: dict[tuple[str, str], JsonObject] = {}
    for each in (*objects_at(item, "parameters"), *objects_at(own, "parameters")):
        parameter = resolve_references(schema, each)
        parameters_by_key[str(parameter.get("name")), str(parameter.get("in"))] = parameter
    for (name, place), parameter in parameters_by_key.items():
        inner = {**resolve_references(schema, object_at(parameter, "schema"))}
        if parameter.get("description"):
            inner["description"] = parameter["description"]
        source = str(parameter.get(SESSION_CONTEXT) or inner.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(name, place, inner, bool(parameter.get("required")), source)


def _server_url(server: JsonObject) -> str:
    """Return a server's URL with the defaults of its variables."""
    url = str(server.get("url") or "")
    for name in (variables := object_at(server, "variables")):
        url = url.replace("{" + str(name) + "}", str(object_at(variables, name).get("default") or ""))
    return url


def _request_media(schema: JsonObject, own: JsonObject) -> tuple[str, JsonObject]:
    """Return media type and description of a request's body; both are empty if it has no body."""
    # JSON is preferred, else the first declared type is used. Of other types, only forms are supported.
    content = object_at(resolve_references(schema, object_at(own, "requestBody")), "content")
    kind = "application/json" if "application/json" in content else next(iter(content), "")
    return kind, object_at(content, kind)


def _read_body(schema: JsonObject, own: JsonObject) -> Iterator[Parameter]:
    media = _request_media(schema, own)[1]
    if not media:
        return
    body = resolve_references(schema, object_at(media, "schema"))
    # A list, or an object without declared properties, is one argument. Otherwise each property is an argument.
    if body.get("type") not in (None, "object") or not body.get("properties"):
        yield Parameter("body", "body", body, True)
        return
    required, properties = list_at(body, "required"), object_at(body, "properties")
    for name in properties:
        found = {**object_at(properties, name)}
        source = str(found.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(str(name), "body", found, name in required, source)


def resolve_references(schema: JsonObject, value: JsonObject) -> JsonObject:
    """Return an object with its references (`$ref`) replaced by their targets; empty if the result is no object."""
    found = _resolve(schema, value)
    return found if isinstance(found, Mapping) else {}


def _resolve(schema: JsonObject, value: JsonValue, depth: int = 0) -> JsonValue:
    if depth > _MAX_REFERENCE_DEPTH:
        return {}
    if isinstance(value, Mapping):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: JsonValue = schema
            for key in reference[2:].split("/"):
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            return _resolve(schema, target, depth + 1)
        return {key: _resolve(schema, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(schema, item, depth + 1) for item in value]
    return value
