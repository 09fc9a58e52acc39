"""An app in a worker process, read and compiled once for all calls, and the session of each call.

A session runs callbacks and tools, and holds the variables as the app's Python sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from callagent.agents.cx.format import AppExport, Code, CxApp, ToolConfig, read_export, tool_name
from callagent.agents.cx.runtime.app_code import Compiled, Namespaces, call_by_name, compile_app, declare, time_limit
from callagent.agents.cx.runtime.classes import (
    CallbackContext,
    CesModel,
    Content,
    Event,
    FunctionDeclaration,
    GenerateContentConfig,
    LlmRequest,
    LlmResponse,
    Part,
    Tool,
    ToolContext,
    ToolDeclaration,
    plain,
)
from callagent.agents.cx.runtime.http import Requests
from callagent.agents.cx.runtime.tools import AsyncTools, Toolbox, Tools, with_context
from callagent.agents.kernel import Finding, error_message, remedy_of
from callagent.agents.tree import (
    OUTSIDE_TURN,
    CallbackPayload,
    LiveConversation,
    ToolCallMessage,
    TreeSession,
    WorkerRequest,
    server_timeout,
)
from callagent.json_values import JsonObject
from callagent.workers import Channel, Plain

IMPORT_SECONDS = 5.0
"""Time limit in seconds for running one file's Python before the first call."""
_CALLBACK_RESULTS = {
    "before_agent": Content,
    "after_agent": Content,
    "before_model": LlmResponse,
    "after_model": LlmResponse,
    "before_tool": dict,
    "after_tool": dict,
}


class CxPayload(CallbackPayload):
    """The arguments of a callback, and what the engine gets back of them afterwards."""

    def __init__(
        self,
        by_name: Mapping[str, object],
        as_plain: Callable[[], Plain],
        replacements: Sequence[Callable[..., object]] | None = None,
    ) -> None:
        self.by_name = by_name
        self.replacements = replacements
        """A guardrail's or transfer rule's function, run instead of the agent's callbacks; None: they run."""
        self._as_plain = as_plain

    def as_plain(self) -> Plain:
        return self._as_plain()


class CxSession(TreeSession[CallbackContext, Event]):
    """The session of one call."""

    def __init__(
        self,
        app: CxApp,
        compiled: Mapping[str, Compiled],
        context: Plain,
        checkpoint: Mapping[str, bytes],
        channel: Channel,
        places: Mapping[str, str],
    ) -> None:
        """`places`: the folder of each served version by variant; the first one is this session's."""
        super().__init__(checkpoint, channel)
        self._places = places
        self._app = app
        self._agents = [app.agents[name] for name in sorted(app.agents)]
        self._display_names = {agent.name: agent.display_name for agent in self._agents}
        self._call_identity = {key: str(context.get(key) or "") for key in ("session_id", "app_id", "language_code")}
        self._context = CallbackContext()
        requests = Requests()
        platform: dict[str, object] = {
            "context": None,
            "ces_requests": requests,
            "get_variable": self._get_variable,
            "set_variable": self._set_variable,
            "remove_variable": self._remove_variable,
            "Tools": Tools,
            "AsyncTools": AsyncTools,
        }
        self._namespaces = Namespaces(compiled, platform)
        fakes, mocks = bool(context.get("use_tool_fakes")), context.get("mocks")
        self._toolbox = Toolbox(app, self._namespaces, requests, fakes=fakes, mocks=mocks)
        # Added after the namespaces, which the toolbox needs. The files see them, as none has run yet.
        platform["tools"] = Tools(self._toolbox, lambda: self._context)
        platform["async_tools"] = AsyncTools(self._toolbox, lambda: self._context)

    def _get_variable(self, key: str, default: object = None) -> object:
        return self._context.get_variable(key, default)

    def _set_variable(self, key: str, value: object) -> None:
        self._context.set_variable(key, value)

    def _remove_variable(self, key: str) -> None:
        self._context.remove_variable(key)

    # Requests of the tree engine ------------------------------------------------------------------------------------

    def functions(self, agent: int, point: str) -> Sequence[Callable[..., object]]:
        name = f"{point}_callback"
        return [self._namespaces.function(code.file, name) for code in self._agents[agent].callbacks[point]]

    def event(self, plain: Mapping[str, object]) -> Event:
        event = Event.model_validate(dict(plain))
        # Code knows agents by their display names, the engine by their folders.
        event.author = self._display_names.get(event.author, event.author)
        return event

    def context(self, live: LiveConversation[Event], request: WorkerRequest, call_id: str | None) -> CallbackContext:
        invocation = request["invocation"]
        content = invocation.get("user_content")
        turn = str(invocation.get("invocation_id") or "").removeprefix("turn-")
        kind = CallbackContext if call_id is None else ToolContext
        # `model_construct` does not copy the state and the events, so changes that code makes in them take effect.
        self._context = kind.model_construct(
            state=live.state,
            events=live.events,
            session_id=self._call_identity["session_id"],
            app_id=self._call_identity["app_id"],
            language_code=self._call_identity["language_code"],
            user_content=Content.model_validate(content) if content else None,
            invocation_id=invocation.get("invocation_id") or "",
            agent_name=self._agents[request["agent"]].display_name,
            turn_index=int(turn) if turn.isdigit() else 0,
        )
        if isinstance(self._context, ToolContext):
            self._context.function_call_id = call_id
        self._toolbox.seconds = server_timeout(request)
        return self._context

    def context_actions(self, context: CallbackContext) -> Plain:
        requested = context.actions
        # `TreeSession` finds changes by comparing the state, so a requested delta goes there.
        context.state.update(requested.state_delta)
        target = requested.transfer_to_agent
        return {
            "transfer_to_agent": target and (self._app.agent_named(target) or target),
            "escalate": bool(requested.escalate),
            "skip_summarization": bool(requested.skip_summarization),
        }

    def payload(self, point: str, context: CallbackContext, plain: Plain, agent: int) -> CxPayload:
        if "code" in plain:
            function = self._namespaces.function(plain["code"], str(plain.get("function") or ""))
            inner = self._payload(point, plain)
            return CxPayload(inner.by_name, inner.as_plain, [function])
        return self._payload(point, plain)

    def _payload(self, point: str, plain: Plain) -> CxPayload:
        if point == "before_model" and "llm_request" in plain:
            request = _read_request(plain["llm_request"])
            return CxPayload(
                {"llm_request": request}, lambda: {"llm_request": _changed_request(plain["llm_request"], request)}
            )
        if point == "after_model" and "llm_response" in plain:
            response = LlmResponse(content=Content.model_validate(plain["llm_response"]["content"]))
            return CxPayload({"llm_response": response}, lambda: {"llm_response": _plain_response(response)})
        if point not in ("before_tool", "after_tool"):
            return CxPayload({}, dict)
        # Callbacks change the arguments in place: the same dictionary goes back to the engine, and to the tool.
        described, arguments = plain["tool"], plain["args"]
        tool = Tool(name=described["name"], description=str(described.get("description") or ""))
        named: dict[str, object] = {"tool": tool, "input": arguments}
        if point == "after_tool":
            tool_result = plain.get("tool_response")
            named["tool_response"] = tool_result if isinstance(tool_result, dict) else {"result": tool_result}
        return CxPayload(named, lambda: {"args": arguments})

    async def run_callbacks(self, agent: int, point: str, context: CallbackContext, payload: CallbackPayload) -> object:
        """Run the callbacks of a point, or their replacements, until one returns a value."""
        replacements = payload.replacements if isinstance(payload, CxPayload) else None
        for function in self.functions(agent, point) if replacements is None else replacements:
            self._context = context
            returned = self.call(function, context, payload, point)
            # Guardrails return decisions and rules return truth values, so only callbacks' results are checked.
            if returned is not None:
                return returned if replacements is not None else _check_result(point, function, returned)
        return None

    def call(
        self, function: Callable[..., object], context: CallbackContext, payload: CallbackPayload, point: str
    ) -> object:
        named = {"callback_context": context, **payload.by_name}
        return with_context(function, context, lambda: call_by_name(function, named))

    def is_result(self, point: str, returned: object) -> bool:
        return returned is not None

    def plain_result(self, value: object) -> object:
        if isinstance(value, LlmResponse):
            content = value.content or Content(parts=[], role="model")
            return {**_plain_content(content), "partial": bool(value.partial)}
        if isinstance(value, Content):
            return _plain_content(value)
        return plain(value) if isinstance(value, CesModel) else value

    async def _around_tool(self, request: WorkerRequest, call: ToolCallMessage, context: CallbackContext) -> object:
        if call["id"] == OUTSIDE_TURN:
            return await self.run_tool(request["agent"], call["tool"], call["args"], context)
        return await super()._around_tool(request, call, context)

    async def run_tool(self, agent: int, name: str, arguments: Plain, context: CallbackContext) -> object:
        self._context = context
        return self._toolbox.run(name, arguments, context)

    async def run_agent(self, agent: int, live: LiveConversation[Event], request: WorkerRequest) -> None:
        raise LookupError("an app has no agents written in Python")

    async def make_instruction(self, agent: int, context: CallbackContext) -> str:
        return self._agents[agent].instruction

    # Requests of `check` --------------------------------------------------------------------------------------------

    def describe(self) -> Plain:
        """Run all files and return the declarations of tools, and the findings that `check` reports."""
        tools: dict[str, JsonObject] = {}
        errors: list[Finding] = []
        place = next(iter(self._places.values()))

        def run(code: Code, work: Callable[[], None]) -> None:
            def report_line(line: int) -> None:
                self.channel.send({"type": "describing", "file": place + code.file, "line": line})

            # The file is reported before it runs, so that the core knows the file if the process ends.
            report_line(1)
            try:
                with time_limit(code.file, IMPORT_SECONDS, report_line):
                    work()
            except BaseException as error:  # the edge of project code
                errors.append(_error_finding(place, code.file, error))

        def add_declaration(tool: ToolConfig) -> None:
            tools[tool_name(tool)] = declare(self._toolbox.function(tool), tool.description)

        # Every file runs here, so that `check` finds the files that fail when they are run.
        for tool in self._app.tools.values():
            if tool.code is not None:
                run(tool.code, partial(add_declaration, tool))
        for agent in self._agents:
            for point, row in agent.callbacks.items():
                for code in row:
                    run(code, partial(self._load_callback, code.file, point))
        remote, failures = self._toolbox.remote.describe()
        away = [replace(each, file=place + each.file) for each in failures]
        return {
            "tools": {**tools, **remote},
            "errors": [_plain_finding(each) for each in errors],
            "unreachable": [_plain_finding(each) for each in away],
            "places": self._places,
        }

    def _load_callback(self, file: str, point: str) -> None:
        self._namespaces.function(file, f"{point}_callback")


def _plain_finding(finding: Finding) -> Plain:
    return {"file": finding.file, "line": finding.line, "message": finding.message}


def _error_finding(place: str, file: str, error: BaseException) -> Finding:
    """Return an error as a finding at the innermost line of the file in the traceback."""
    line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    message = f"{type(error).__name__}: {error_message(error)}{remedy_of(error)}"
    return Finding(place + file, line, message)


def _check_result(point: str, function: Callable[..., object], returned: object) -> object:
    """Return a callback's result. Raises `TypeError` if it is not of the type that the point allows."""
    expected = _CALLBACK_RESULTS[point]
    if not isinstance(returned, expected):
        name, kind = getattr(function, "__name__", point), type(returned).__name__
        raise TypeError(f"{name} returned {kind}; {expected.__name__} or None is expected")
    return returned


def _plain_content(content: Content) -> dict[str, object]:
    parts = [_plain_part(part) for part in content.parts or ()]
    return {"role": content.role or "model", "parts": parts}


def _plain_part(part: Part) -> dict[str, object]:
    data = plain(part)
    # The engine reads `args` of every call; code may leave it out.
    call = data.get("function_call")
    if isinstance(call, dict):
        call.setdefault("args", {})
    return data


def _read_request(data: Plain) -> LlmRequest:
    declared = [FunctionDeclaration(name=each["name"]) for each in data["tools"]]
    config = GenerateContentConfig(
        system_instruction=Content(role="user", parts=[Part(text=data["system_instruction"])]),
        tools=[ToolDeclaration(function_declarations=[each]) for each in declared],
    )
    contents = [Content.model_validate(each) for each in data["contents"]]
    return LlmRequest(model=data["model"], contents=contents, config=config)


def _changed_request(data: Plain, request: LlmRequest) -> Plain:
    """Return a request to the model with the changes that code made."""
    config = request.config or GenerateContentConfig()
    # Code may set a text in place of the content, because the class does not validate assignments.
    system: object = config.system_instruction
    excluded = set(config.excluded_tools or ())
    names = [each.name for tool in config.tools or () for each in tool.function_declarations or ()]
    return {
        **data,
        "model": request.model,
        "contents": [_plain_content(content) | {"role": content.role or "user"} for content in request.contents],
        "system_instruction": system if isinstance(system, str) else _text(config.system_instruction),
        "tools": [{"name": name} for name in names if name not in excluded],
    }


def _text(content: Content | None) -> str:
    return "\n".join(part.text or "" for part in (content.parts if content else None) or ())


def _plain_response(response: LlmResponse) -> Plain:
    return {"content": _plain_content(response.content) if response.content is not None else None}


@dataclass(frozen=True, slots=True)
class _LoadedExport:
    """All versions that one deployment serves, or the app as it is exported."""

    versions: Mapping[str, tuple[CxApp, Mapping[str, Compiled]]]
    """Apps and their compiled files by variant; the first one is the default."""
    places: Mapping[str, str]
    """Folders of the versions in the export, by variant."""

    @classmethod
    def of(cls, exported: AppExport) -> _LoadedExport:
        """Read and compile what an export serves. Raises `ProjectError`."""
        served = exported.load()
        versions = {each.variant: (each.app, compile_app(each.app)) for each in served}
        return cls(versions, {each.variant: each.reader.place for each in served})


class CxRuntime:
    """The class that a worker pool loads for an app: it opens the session of each call."""

    def __init__(self, project: Path) -> None:
        self._exported = read_export(Path(project))
        self._loaded = {self._exported.deployment: _LoadedExport.of(self._exported)}

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> CxSession:
        """Open a call's session; with a checkpoint it continues where another worker stopped."""
        loaded = self._loaded_export(str(context.get("deployment") or self._exported.deployment))
        variant = str(context.get("variant") or next(iter(loaded.versions)))
        app, compiled = loaded.versions[variant]
        # `CxSession` takes the first entry as that of the session's own version.
        places = {variant: loaded.places[variant], **loaded.places}
        return CxSession(app, compiled, context, checkpoint, channel, places)

    def _loaded_export(self, deployment: str) -> _LoadedExport:
        """Return a deployment; one that the project does not serve is loaded when a session first names it."""
        if deployment not in self._loaded:
            self._loaded[deployment] = _LoadedExport.of(replace(self._exported, deployment=deployment))
        return self._loaded[deployment]
