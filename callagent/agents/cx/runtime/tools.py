"""The tools of an app in its worker: `tools` and `async_tools` for its code, and the toolbox that runs them."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from callagent.agents.cx import format
from callagent.agents.cx.runtime.app_code import Namespaces, call_by_name
from callagent.agents.cx.runtime.classes import CallbackContext, Tool, as_tool_context
from callagent.agents.cx.runtime.http import ExternalResponse, Requests
from callagent.agents.cx.runtime.tool_servers import Authentication, McpTools
from callagent.json_values import JsonObject, JsonValue, object_at

UNAVAILABLE_RESULT = {
    "error": "This tool is not available in this conversation. Go on without it; do not call it again."
}
"""The result of a tool that needs the platform's services or a client."""
ERROR_STATUS = 500
"""The HTTP status in the response of a tool whose code raised."""


Result = TypeVar("Result")


class UnknownTool(AttributeError):
    """The app has no tool of this name that code may call."""


class Toolbox:
    """The tools of one call: Python, OpenAPI operations and MCP tools, with fakes and mocks in their place."""

    def __init__(
        self,
        app: format.CxApp,
        namespaces: Namespaces,
        requests: Requests,
        *,
        fakes: bool = False,
        mocks: Mapping[str, Sequence[JsonObject]] | None = None,
    ) -> None:
        """`fakes`: whether the app's fakes replace its tools; `mocks`: answers by tool name, preferred to fakes."""
        self._mocks = {name: list(answers) for name, answers in (mocks or {}).items() if answers}
        self._namespaces = namespaces
        self._requests = requests
        self._authentication = Authentication(requests)
        self.remote = McpTools(app, self._authentication)
        self._python = {format.tool_name(tool): tool for tool in app.tools.values() if tool.kind == "pythonFunction"}
        replaced = [tool for tool in app.tools.values() if fakes and tool.fake is not None]
        self._fakes: dict[str, format.Code] = {
            format.tool_name(tool): tool.fake for tool in replaced if tool.fake is not None
        }
        self.seconds: float | None = None
        """Time limit in seconds of a request to a tool server now; None: the request's own limit."""
        self._operations: dict[str, tuple[format.Operation, JsonObject]] = {}
        """OpenAPI operations by tool name, with the settings of their tool or toolset."""
        for toolset in app.toolsets.values():
            for each in format.operations(toolset.schema or {}):
                name = f"{toolset.display_name}_{each.name}"
                self._operations[name] = each, object_at(toolset.data, "openApiToolset")
        for tool in app.tools.values():
            if (operation := format.single_operation(tool)) is not None:
                self._operations[format.tool_name(tool)] = operation, tool.own
        self._unavailable = {
            format.tool_name(tool): tool for tool in app.tools.values() if tool.kind in format.UNAVAILABLE
        }

    def run(self, name: str, arguments: JsonObject, context: CallbackContext) -> object:
        """Run a tool for the model. Raises `UnknownTool` and the tool's exceptions."""
        replaced = self._run_replacement(name, arguments, context)
        if replaced is not None:
            return replaced
        # The app's own Python comes first: of a server's tools only the prefix of the name is known.
        if name in self._python:
            return self._run_python(self._python[name], arguments, context)
        if name in self._unavailable:
            return dict(UNAVAILABLE_RESULT)
        if self.remote.knows(name):
            return self.remote.call(name, arguments, _session(context), self.seconds)
        if name in self._operations:
            response = self.respond(name, arguments, context)
            response.raise_for_status()
            try:
                return response.json()
            except ValueError:
                return response.text
        known = ", ".join([*self._python, *self._operations, *self.remote.names()])
        raise UnknownTool(f"there is no tool '{name}'; there are: {known}")

    def respond(self, name: str, arguments: JsonObject, context: CallbackContext) -> ExternalResponse:
        """Run a tool for the app's code, and return its result as a response. Raises `UnknownTool` and OSError."""
        replaced = self._run_replacement(name, arguments, context)
        if replaced is not None:
            return ExternalResponse(json.dumps(replaced, default=str))
        if self.remote.knows(name):
            answer = self.remote.call(name, arguments, _session(context), self.seconds)
            return ExternalResponse(json.dumps(answer, default=str))
        if name in self._operations:
            operation, own = self._operations[name]
            session = _session(context)
            request = operation.request(arguments, session)
            self._authentication.apply(own, request, session)
            return self._requests.request(
                request.method,
                request.url,
                params=request.params,
                data=request.data,
                json=request.json,
                headers=request.headers,
                timeout=self.seconds,
            )
        if name in self._unavailable:
            return ExternalResponse(json.dumps(UNAVAILABLE_RESULT), ERROR_STATUS, "not available")
        if name not in self._python:
            # There is no such tool: `run` raises the error that lists the existing ones.
            self.run(name, arguments, context)
        try:
            returned = self._run_python(self._python[name], arguments, context)
        except Exception as error:  # the edge of the other tool's code
            return ExternalResponse(json.dumps({"error": str(error)}), ERROR_STATUS, f"{type(error).__name__}: {error}")
        result = returned if isinstance(returned, dict) else {"result": returned}
        return ExternalResponse(json.dumps(result, default=str))

    def function(self, tool: format.ToolConfig) -> Callable[..., object]:
        """Return the function of a Python tool. Raises LookupError and the file's exceptions."""
        assert tool.code is not None
        # The tool's settings name the function, or the tool has its name; otherwise it is the first one in the file.
        names = self._namespaces.get(tool.code.file)
        wanted = next(
            (each for each in (tool.function, format.tool_name(tool), tool.name) if callable(names.get(each))), ""
        )
        return self._namespaces.function(tool.code.file, wanted if wanted or not tool.function else tool.function)

    def _run_replacement(self, name: str, arguments: JsonObject, context: CallbackContext) -> object:
        """Return the answer of a mock or fake; None if there is none and the tool itself has to run."""
        # The answer is copied, because code may change it. The last one is kept for all further calls.
        if answers := self._mocks.get(name):
            return copy.deepcopy(answers.pop(0) if len(answers) > 1 else answers[0])
        code = self._fakes.get(name)
        if code is None:
            return None
        names = self._namespaces.get(code.file)
        wanted = next((each for each in ("fake_tool_call", f"fake_{name}") if callable(names.get(each))), "")
        function = self._namespaces.function(code.file, wanted)
        named = {"tool": Tool(name=name), "input": dict(arguments), "callback_context": context}
        return with_context(function, context, lambda: call_by_name(function, named))

    def _run_python(self, tool: format.ToolConfig, arguments: JsonObject, context: CallbackContext) -> object:
        function = self.function(tool)
        return with_context(function, as_tool_context(context), lambda: call_by_name(function, arguments))


class Tools:
    """The global `tools` of an app's code: `tools.NAME({"argument": …})` runs a tool and returns its response."""

    def __init__(self, toolbox: Toolbox, context: Callable[[], CallbackContext]) -> None:
        self._toolbox = toolbox
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., ExternalResponse]:
        def call(arguments: JsonObject | None = None, **named: JsonValue) -> ExternalResponse:
            return self._toolbox.respond(name, {**(arguments or {}), **named}, self._context())

        return call


class AsyncTools:
    """The global `async_tools`: `async_tools.NAME({…})` starts a tool and returns a function that waits for it."""

    def __init__(self, toolbox: Toolbox, context: Callable[[], CallbackContext]) -> None:
        self._toolbox = toolbox
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., Callable[[], ExternalResponse]]:
        def start(arguments: JsonObject | None = None, **named: JsonValue) -> Callable[[], ExternalResponse]:
            # The context of the calling code is read here, because it may have changed when the thread runs.
            context, call_arguments = self._context(), {**(arguments or {}), **named}
            answers: list[ExternalResponse] = []
            errors: list[BaseException] = []

            def run() -> None:
                try:
                    answers.append(self._toolbox.respond(name, call_arguments, context))
                except BaseException as error:  # raised where the code waits for the answer
                    errors.append(error)

            # A daemon thread, because a tool that nobody waits for must not keep the worker process from ending.
            thread = threading.Thread(target=run, daemon=True)
            thread.start()

            def wait() -> ExternalResponse:
                thread.join()
                if errors:
                    raise errors[0]
                return answers[0]

            return wait

        return start


def with_context(function: Callable[..., object], context: CallbackContext, call: Callable[[], Result]) -> Result:
    """Run `call`, which calls the function, with `context` as a global of the function's file.

    The global stays afterwards, because another thread may still be running in the file.
    """
    getattr(function, "__globals__", {})["context"] = context
    return call()


def _session(context: CallbackContext) -> Mapping[str, object]:
    """Return the values that `$context.` leads to in the settings of tools."""
    return {
        "session_id": context.session_id,
        "project_id": context.project_id,
        "project_number": context.project_number,
        "location": context.location,
        "app_id": context.app_id,
        "variables": context.state,
    }
