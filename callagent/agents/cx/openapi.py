"""The operations of an OpenAPI 3 description as tools: what the model gives, and the request it makes."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SESSION_CONTEXT = "x-ces-session-context"
"""Marks what the call fills in and the model never sees."""
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str
    """`path`, `query`, `header`, `cookie` or `body`."""
    schema: Mapping[str, Any]
    required: bool
    source: str = ""
    """`$context.…`: filled in by the call."""


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    method: str
    path: str
    server: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    whole_body: bool = field(default=False)
    """The body is no object: it is the parameter `body`."""

    def schema(self) -> dict[str, Any] | None:
        """JSON schema of what the model gives; None: nothing."""
        asked = [each for each in self.parameters if not each.source]
        if not asked:
            return None
        required = [each.name for each in asked if each.required]
        properties = {each.name: dict(each.schema) for each in asked}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}

    def request(self, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        """`{"method", "url", "params", "headers", "json"}`; `session`: what `$context.` leads to."""
        path, query, headers, body = self.path, {}, {}, {}
        cookies = []
        for each in self.parameters:
            value = lookup(each.source, session) if each.source else arguments.get(each.name)
            if value is None:
                continue
            match each.place:
                case "path":
                    path = path.replace("{" + each.name + "}", urllib.parse.quote(str(value), safe=""))
                case "query":
                    query[each.name] = value
                case "header":
                    headers[each.name] = str(value)
                case "cookie":
                    cookies.append(f"{each.name}={urllib.parse.quote(str(value))}")
                case _:
                    body[each.name] = value
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        sent = body.get("body") if self.whole_body else body
        url = self.server.rstrip("/") + path
        return {"method": self.method.upper(), "url": url, "params": query, "headers": headers, "json": sent or None}


def lookup(source: str, session: Mapping[str, Any]) -> Any:
    """The value of `$context.session_id`, `$context.variables.name` and the like; None: there is none."""
    value: Any = session
    for key in source.removeprefix("$context.").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def operations(schema: Mapping[str, Any]) -> list[Operation]:
    """Those that have an `operationId`; the others cannot be called by name."""
    found = []
    for path, item in (schema.get("paths") or {}).items():
        if not isinstance(item, Mapping):
            continue
        for method in _METHODS:
            operation = item.get(method)
            if isinstance(operation, Mapping) and operation.get("operationId"):
                found.append(_operation(schema, str(path), method, item, operation))
    return found


def _operation(
    schema: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any], own: Mapping[str, Any]
) -> Operation:
    servers = own.get("servers") or item.get("servers") or schema.get("servers") or [{}]
    body = list(_body(schema, own))
    return Operation(
        name=str(own["operationId"]),
        method=method,
        path=path,
        server=str(servers[0].get("url") or ""),
        description=str(own.get("description") or own.get("summary") or ""),
        parameters=(*_parameters(schema, item, own), *body),
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


def _body(schema: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Parameter]:
    content = resolve(schema, own.get("requestBody") or {}).get("content") or {}
    media = content.get("application/json") or next(iter(content.values()), None)
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
    """The value with references into the description replaced by what they name."""
    if depth > _DEEPEST:
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
