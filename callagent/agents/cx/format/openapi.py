"""The operations of an OpenAPI 3 description as tools: what the model gives, and the request it makes."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from callagent.agents.cx.format.app import ToolConfig
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at, objects_at

SESSION_CONTEXT = "x-ces-session-context"
"""Key of a parameter that the call fills in and the model never sees."""
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_MAX_DEPTH = 20
"""Nested references that are followed; deeper ones become empty schemas, as descriptions may refer to themselves."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operation."""

    name: str
    place: str
    """`path`, `query`, `header`, `cookie` or `body`."""
    schema: JsonObject
    required: bool
    source: str = ""
    """`$context.…`, from which the call fills it in; empty: the model does."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: a method on a path of a server."""

    name: str
    method: str
    path: str
    server: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    whole_body: bool = False
    """The body is not an object; the parameter `body` is all of it."""
    form: bool = False
    """The body is sent as a form, not as JSON."""

    def schema(self) -> JsonObject | None:
        """Return the JSON schema of the arguments that the model gives; None: there are none."""
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

        `session`: the values that `$context.` leads to.
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
                    # A list becomes the same parameter several times: the default style of OpenAPI 3, "form, explode".
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
        # Without any value for its body the request has none: an empty object could be refused where none is required.
        sent = body.get("body") if self.whole_body else body or None
        if self.form:
            request.data = sent
        else:
            request.json = sent
        return request


@dataclass(slots=True)
class OperationRequest:
    """The HTTP request of an operation; authentication adds to its parameters and headers."""

    method: str
    url: str
    params: dict[str, str | list[str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    data: object = None
    """The body as a form; None: there is none."""
    json: object = None
    """The body as JSON; None: there is none."""


def as_text(value: object) -> str:
    """Return a value as it is written in a URL or a header."""
    # OpenAPI 3, style "simple": the default for paths and headers.
    if isinstance(value, list):
        return ",".join(as_text(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def lookup(source: str, session: Mapping[str, object]) -> object:
    """Return the value of `$context.session_id`, `$context.variables.name` and the like; None: there is none."""
    value: object = session
    for key in source.removeprefix("$context.").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def operations(schema: JsonObject) -> list[Operation]:
    """Return the operations with an `operationId`; others cannot be called by name."""
    found = []
    for path in (paths := object_at(schema, "paths")):
        item = object_at(paths, path)
        found += [
            _operation(schema, str(path), method, item, operation)
            for method in _METHODS
            if (operation := object_at(item, method)).get("operationId")
        ]
    return found


def single_operation(tool: ToolConfig) -> Operation | None:
    """Return the operation of an `openApiTool`: the one with the tool's name, else the first one."""
    if tool.kind != "openApiTool":
        return None
    schema = tool.schema or {}
    # A description may have more operations than the tool is meant for.
    named = str(tool.own.get("name") or "")
    return next((each for each in operations(schema) if each.name == named), None) or _first(schema)


def _first(schema: JsonObject) -> Operation | None:
    """Return the first operation, which needs no `operationId`."""
    for path in (paths := object_at(schema, "paths")):
        item = object_at(paths, path)
        for method in _METHODS:
            if isinstance(own := item.get(method), Mapping):
                return _operation(schema, str(path), method, item, {"operationId": "operation", **own})
    return None


def _operation(schema: JsonObject, path: str, method: str, item: JsonObject, own: JsonObject) -> Operation:
    # The nearest list of servers holds: the operation's, else the path's, else that of the whole description.
    servers = objects_at(own, "servers") or objects_at(item, "servers") or objects_at(schema, "servers") or [{}]
    body = list(_body(schema, own))
    return Operation(
        name=str(own["operationId"]),
        method=method,
        path=path,
        server=_address(servers[0]),
        description=str(own.get("description") or own.get("summary") or ""),
        parameters=(*_parameters(schema, item, own), *body),
        form=_media(schema, own)[0] == "application/x-www-form-urlencoded",
        whole_body=len(body) == 1 and body[0].name == "body" and body[0].schema.get("type") != "object",
    )


def _parameters(schema: JsonObject, item: JsonObject, own: JsonObject) -> Iterator[Parameter]:
    # A parameter is identified by name and place; the operation's own replaces the path's.
    given: dict[tuple[str, str], JsonObject] = {}
    for each in (*objects_at(item, "parameters"), *objects_at(own, "parameters")):
        found = resolved(schema, each)
        given[str(found.get("name")), str(found.get("in"))] = found
    for (name, place), found in given.items():
        inner = {**resolved(schema, object_at(found, "schema"))}
        if found.get("description"):
            inner["description"] = found["description"]
        source = str(found.get(SESSION_CONTEXT) or inner.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(name, place, inner, bool(found.get("required")), source)


def _address(server: JsonObject) -> str:
    """Return a server's URL with the defaults of its variables."""
    url = str(server.get("url") or "")
    for name in (variables := object_at(server, "variables")):
        url = url.replace("{" + str(name) + "}", str(object_at(variables, name).get("default") or ""))
    return url


def _media(schema: JsonObject, own: JsonObject) -> tuple[str, JsonObject]:
    """Return media type and description of a request's body, JSON first; empty: it has none."""
    # Requests are JSON where the server takes it; else the first type that it names, of which only forms work.
    content = object_at(resolved(schema, object_at(own, "requestBody")), "content")
    kind = "application/json" if "application/json" in content else next(iter(content), "")
    return kind, object_at(content, kind)


def _body(schema: JsonObject, own: JsonObject) -> Iterator[Parameter]:
    media = _media(schema, own)[1]
    if not media:
        return
    body = resolved(schema, object_at(media, "schema"))
    # A list, or an object of which nothing is known: the model gives it as one argument. Else each property is one.
    if body.get("type") not in (None, "object") or not body.get("properties"):
        yield Parameter("body", "body", body, True)
        return
    required, properties = list_at(body, "required"), object_at(body, "properties")
    for name in properties:
        found = {**object_at(properties, name)}
        source = str(found.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(str(name), "body", found, name in required, source)


def resolved(schema: JsonObject, value: JsonObject) -> JsonObject:
    """Return an object with the references (`$ref`) in it replaced by what they lead to; empty: that is no object."""
    found = _resolved(schema, value)
    return found if isinstance(found, Mapping) else {}


def _resolved(schema: JsonObject, value: JsonValue, depth: int = 0) -> JsonValue:
    if depth > _MAX_DEPTH:
        return {}
    if isinstance(value, Mapping):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: JsonValue = schema
            for key in reference[2:].split("/"):
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            return _resolved(schema, target, depth + 1)
        return {key: _resolved(schema, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(schema, item, depth + 1) for item in value]
    return value
