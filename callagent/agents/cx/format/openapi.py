"""The operations of an OpenAPI 3 description as tools: what the model gives, and the request it makes."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.cx.format.app import ToolConfig

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
    schema: Mapping[str, Any]
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

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the arguments that the model gives; None: there are none."""
        asked = [each for each in self.parameters if not each.source]
        if not asked:
            return None
        required = [each.name for each in asked if each.required]
        properties = {each.name: dict(each.schema) for each in asked}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def request(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request as `{"method", "url", "params", "headers", "json" or "data"}`.

        `session`: the values that `$context.` leads to.
        """
        path, query, headers, body = self.path, {}, {}, {}
        cookies = []
        for each in self.parameters:
            value = lookup(each.source, session) if each.source else arguments.get(each.name)
            if value is None:
                continue
            match each.place:
                case "path":
                    path = path.replace("{" + each.name + "}", urllib.parse.quote(as_text(value), safe=""))
                case "query":
                    query[each.name] = [as_text(one) for one in value] if isinstance(value, list) else as_text(value)
                case "header":
                    headers[each.name] = as_text(value)
                case "cookie":
                    cookies.append(f"{each.name}={urllib.parse.quote(as_text(value))}")
                case _:
                    body[each.name] = value
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        sent = body.get("body") if self.whole_body else body or None
        request = {"method": self.method.upper(), "url": self.server.rstrip("/") + path, "params": query}
        return {**request, "headers": headers, "data" if self.form else "json": sent}


def as_text(value: Any) -> str:
    """Return a value as it is written in a URL or a header."""
    if isinstance(value, list):
        return ",".join(as_text(each) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def lookup(source: str, session: Mapping[str, Any]) -> Any:
    """Return the value of `$context.session_id`, `$context.variables.name` and the like; None: there is none."""
    value: Any = session
    for key in source.removeprefix("$context.").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def operations(schema: Mapping[str, Any]) -> list[Operation]:
    """Return the operations with an `operationId`; others cannot be called by name."""
    found = []
    for path, item in (schema.get("paths") or {}).items():
        if not isinstance(item, Mapping):
            continue
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, Mapping) and operation.get("operationId"):
                found.append(_operation(schema, str(path), method, item, operation))
    return found


def single_operation(tool: ToolConfig) -> Operation | None:
    """Return the operation of an `openApiTool`: the one with the tool's name, else the first one."""
    if tool.kind != "openApiTool":
        return None
    schema = tool.schema or {}
    named = str(tool.data["openApiTool"].get("name") or "")
    return next((each for each in operations(schema) if each.name == named), None) or _first(schema)


def _first(schema: Mapping[str, Any]) -> Operation | None:
    """Return the first operation, which needs no `operationId`."""
    for path, item in (schema.get("paths") or {}).items():
        for method in _METHODS:
            if isinstance(item, Mapping) and isinstance(own := item.get(method), Mapping):
                return _operation(schema, str(path), method, item, {"operationId": "operation", **own})
    return None


def _operation(
    schema: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any], own: Mapping[str, Any]
) -> Operation:
    servers = own.get("servers") or item.get("servers") or schema.get("servers") or [{}]
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


def _parameters(schema: Mapping[str, Any], item: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Parameter]:
    given: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in (*(item.get("parameters") or ()), *(own.get("parameters") or ())):
        found = resolve(schema, each)
        given[str(found.get("name")), str(found.get("in"))] = found
    for (name, place), found in given.items():
        inner = resolve(schema, found.get("schema") or {})
        if found.get("description"):
            inner = {**inner, "description": found["description"]}
        source = str(found.get(SESSION_CONTEXT) or inner.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(name, place, inner, bool(found.get("required")), source)


def _address(server: Mapping[str, Any]) -> str:
    """Return a server's URL with the defaults of its variables."""
    url = str(server.get("url") or "")
    for name, variable in (server.get("variables") or {}).items():
        url = url.replace("{" + str(name) + "}", str(variable.get("default") or ""))
    return url


def _media(schema: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return media type and description of a request's body, JSON first; empty: it has none."""
    content = resolve(schema, own.get("requestBody") or {}).get("content") or {}
    kind = "application/json" if "application/json" in content else next(iter(content), "")
    return kind, content.get(kind) or {}


def _body(schema: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Parameter]:
    media = _media(schema, own)[1]
    if not media:
        return
    body = resolve(schema, media.get("schema") or {})
    if body.get("type") not in (None, "object") or not body.get("properties"):
        yield Parameter("body", "body", body, True)
        return
    required = body.get("required") or ()
    for name, inner in body["properties"].items():
        found = dict(inner)
        source = str(found.pop(SESSION_CONTEXT, "") or "")
        yield Parameter(str(name), "body", found, name in required, source)


def resolve(schema: Mapping[str, Any], value: Any, depth: int = 0) -> Any:
    """Return a value with its references (`$ref`) into the description replaced by what they refer to."""
    if depth > _MAX_DEPTH:
        return {}
    if isinstance(value, Mapping):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Any = schema
            for key in reference[2:].split("/"):
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            return resolve(schema, target, depth + 1)
        return {key: resolve(schema, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(schema, item, depth + 1) for item in value]
    return value
