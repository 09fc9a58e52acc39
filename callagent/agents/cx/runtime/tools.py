"""The tools of an app as its code calls them: `tools`, `async_tools`, and what carries them out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from callagent.agents.cx.app import CxApp, ToolConfig, tool_name
from callagent.agents.cx.openapi import Operation, lookup, operations
from callagent.agents.cx.runtime.contexts import CallbackContext
from callagent.agents.cx.runtime.http import ExternalResponse, Requests
from callagent.agents.cx.runtime.namespace import Namespaces, call_by_name

ERROR = 500
"""The status of a tool whose code raised."""


class UnknownTool(AttributeError):
    """There is no tool of this name that code may call."""


class Toolbox:
    def __init__(self, app: CxApp, namespaces: Namespaces, requests: Requests) -> None:
        self._namespaces = namespaces
        self._requests = requests
        self._python = {tool_name(tool): tool for tool in app.tools.values() if tool.kind == "pythonFunction"}
        self._operations: dict[str, tuple[Operation, Mapping[str, Any]]] = {}
        for toolset in app.toolsets.values():
            for each in operations(toolset.schema or {}):
                self._operations[f"{toolset.display_name}_{each.name}"] = (each, toolset.data)

    def run(self, name: str, arguments: Mapping[str, Any], context: CallbackContext) -> Any:
        """A tool's result. Raises `UnknownTool` and whatever the tool raises."""
        if name in self._python:
            return self._run_python(self._python[name], arguments, context)
        if name in self._operations:
            response = self.respond(name, arguments, context)
            response.raise_for_status()
            try:
                return response.json()
            except ValueError:
                return response.text
        raise UnknownTool(f"there is no tool '{name}'; there are: {', '.join([*self._python, *self._operations])}")

    def respond(self, name: str, arguments: Mapping[str, Any], context: CallbackContext) -> ExternalResponse:
        """As code gets it that calls a tool. Raises `UnknownTool` and OSError."""
        if name in self._operations:
            operation, data = self._operations[name]
            session = _session(context)
            request = operation.request(arguments, session)
            request["headers"].update(_authentication(data, session))
            return self._requests.request(request.pop("method"), request.pop("url"), **request)
        if name not in self._python:
            self.run(name, arguments, context)
        try:
            returned = self._run_python(self._python[name], arguments, context)
        except Exception as error:  # the edge of the other tool's code
            return ExternalResponse(json.dumps({"error": str(error)}), ERROR, f"{type(error).__name__}: {error}")
        result = returned if isinstance(returned, dict) else {"result": returned}
        return ExternalResponse(json.dumps(result, default=str))

    def function(self, tool: ToolConfig) -> Callable[..., Any]:
        """Raises LookupError and what the file raises."""
        assert tool.code is not None
        names = self._namespaces.get(tool.code.file)
        wanted = next((each for each in (tool.function, tool_name(tool), tool.name) if callable(names.get(each))), "")
        return self._namespaces.function(tool.code.file, wanted if wanted or not tool.function else tool.function)

    def _run_python(self, tool: ToolConfig, arguments: Mapping[str, Any], context: CallbackContext) -> Any:
        function = self.function(tool)
        return with_context(function, context, lambda: call_by_name(function, arguments))


class Tools:
    """`tools.NAME({"argument": …})`."""

    def __init__(self, toolbox: Toolbox, context: Callable[[], CallbackContext]) -> None:
        self._toolbox = toolbox
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., ExternalResponse]:
        def call(arguments: Mapping[str, Any] | None = None, **named: Any) -> ExternalResponse:
            return self._toolbox.respond(name, {**(arguments or {}), **named}, self._context())

        return call


class AsyncTools:
    """`async_tools.NAME({…})` starts the tool; calling what it returns waits for the answer."""

    def __init__(self, toolbox: Toolbox, context: Callable[[], CallbackContext]) -> None:
        self._toolbox = toolbox
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., Callable[[], ExternalResponse]]:
        def start(arguments: Mapping[str, Any] | None = None, **named: Any) -> Callable[[], ExternalResponse]:
            context, given = self._context(), {**(arguments or {}), **named}
            answers: list[ExternalResponse] = []
            errors: list[BaseException] = []

            def run() -> None:
                try:
                    answers.append(self._toolbox.respond(name, given, context))
                except BaseException as error:  # raised where the answer is asked for
                    errors.append(error)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()

            def wait() -> ExternalResponse:
                thread.join()
                if errors:
                    raise errors[0]
                return answers[0]

            return wait

        return start


def with_context(function: Callable[..., Any], context: CallbackContext, work: Callable[[], Any]) -> Any:
    """Run with the global `context` of the function's file."""
    names = getattr(function, "__globals__", {})
    before = names.get("context")
    names["context"] = context
    try:
        return work()
    finally:
        names["context"] = before


def _session(context: CallbackContext) -> dict[str, Any]:
    return {
        "session_id": context.session_id,
        "project_id": context.project_id,
        "project_number": context.project_number,
        "location": context.location,
        "app_id": context.app_id,
        "variables": context.state,
    }


def _authentication(data: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, str]:
    """A bearer token that stands in the toolset, or in a variable of the call."""
    own = data.get("openApiToolset") or {}
    token = ((own.get("apiAuthentication") or {}).get("bearerTokenConfig") or {}).get("token")
    if isinstance(token, str) and token.startswith("$context."):
        token = lookup(token, session)
    return {"Authorization": f"Bearer {token}"} if token else {}
