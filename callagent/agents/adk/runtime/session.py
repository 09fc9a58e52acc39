"""One call of an agent-config project in a worker, and the runtime that opens it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from pydantic import BaseModel

from callagent.agents.adk.runtime import google_modules
from callagent.agents.adk.runtime.catalog import Catalog
from callagent.agents.adk.runtime.google_classes import (
    BaseAgent,
    CallbackContext,
    Content,
    Event,
    EventActions,
    FunctionDeclaration,
    GenerateContentConfig,
    InvocationContext,
    LlmRequest,
    LlmResponse,
    Session,
    Tool,
    ToolContext,
    to_plain,
)
from callagent.agents.adk.runtime.tools import BaseTool
from callagent.agents.tree import (
    CallbackPayload,
    LiveConversation,
    LiveState,
    TreeSession,
    WorkerRequest,
    server_timeout,
)
from callagent.workers import Channel, Plain

_ARGUMENT_ORDER = (
    "tool",
    "args",
    "tool_context",
    "response",
    "tool_response",
    "callback_context",
    "llm_request",
    "llm_response",
)
"""The order of arguments passed by position, to callbacks whose parameters do not have these names."""


class _Payload(CallbackPayload):
    """The arguments of one callback, with a function that returns them as the callback left them."""

    def __init__(self, by_name: Mapping[str, object], as_plain: Callable[[], Plain]) -> None:
        self.by_name = by_name
        self._as_plain = as_plain

    def as_plain(self) -> Plain:
        return self._as_plain()


class AdkSession(TreeSession[CallbackContext, Event]):
    """The session of one call."""

    def __init__(
        self, catalog: Catalog, context: Mapping[str, object], checkpoint: Mapping[str, bytes], channel: Channel
    ) -> None:
        super().__init__(checkpoint, channel)
        self._catalog = catalog
        self._identity = {key: str(context.get(key) or "") for key in ("id", "user_id", "app_name")}

    def describe(self) -> Plain:
        return self._catalog.describe()

    def functions(self, agent: int, point: str) -> Sequence[Callable[..., object]]:
        return self._catalog.functions(agent, point)

    def event(self, plain: Mapping[str, object]) -> Event:
        return Event.model_validate(dict(plain))

    def context(self, live: LiveConversation[Event], request: WorkerRequest, call_id: str | None) -> CallbackContext:
        session = Session(**self._identity, state=live.state, events=live.events)
        name, invocation = self._catalog.agents[request["agent"]].name, request["invocation"]
        if call_id is None:
            seen = CallbackContext(session, name, invocation)
            seen.ask = self.channel.ask
            return seen
        made = ToolContext(session, name, invocation, call_id)
        made.ask, made.seconds = self.channel.ask, server_timeout(request)
        return made

    def context_actions(self, context: CallbackContext) -> Plain:
        return self._actions(context.actions, context.session.state)

    def payload(self, point: str, context: CallbackContext, plain: Plain, agent: int) -> CallbackPayload:
        if point == "before_model":
            request = _request(plain["llm_request"])
            return _Payload({"llm_request": request}, lambda: {"llm_request": _plain_request(request)})
        if point == "after_model":
            response = LlmResponse(content=Content.model_validate(plain["llm_response"]["content"]))
            return _Payload({"llm_response": response}, lambda: {"llm_response": _content(response)})
        if point not in ("before_tool", "after_tool"):
            return _Payload({}, dict)
        arguments = plain["args"]
        named = {"tool": self._tool_of(agent, plain["tool"]), "args": arguments}
        if point == "after_tool":
            named["tool_response"] = plain.get("tool_response")
        return _Payload(named, lambda: {"args": arguments})

    def call(
        self, function: Callable[..., object], context: CallbackContext, payload: CallbackPayload, point: str
    ) -> object:
        named = {("tool_context" if point.endswith("tool") else "callback_context"): context, **payload.by_name}
        signature = inspect.signature(function)
        # Arguments go by keyword where the parameters have these names, and otherwise by position.
        try:
            signature.bind(**named)
        except TypeError:
            return function(*(named[key] for key in sorted(named, key=_ARGUMENT_ORDER.index)))
        return function(**named)

    def is_result(self, point: str, returned: object) -> bool:
        return returned is not None if point.endswith("tool") else bool(returned)

    def plain_result(self, value: object) -> object:
        # The tree uses only the content of a response.
        if isinstance(value, LlmResponse):
            return to_plain(value.content) if value.content is not None else None
        return to_plain(value) if isinstance(value, BaseModel) else value

    async def run_tool(self, agent: int, name: str, arguments: Plain, context: CallbackContext) -> object:
        assert isinstance(context, ToolContext)
        return await self._catalog.tool(agent, name).run_async(args=arguments, tool_context=context)

    async def run_agent(self, agent: int, live: LiveConversation[Event], request: WorkerRequest) -> None:
        found = self._catalog.agents[agent]
        session = Session(**self._identity, state=live.state, events=live.events)
        context = InvocationContext(session, found, request["invocation"])
        context.ask = self.channel.ask
        recorded: set[str] = set()

        async def run_child(child: BaseAgent) -> AsyncIterator[Event]:
            for event in await self.run_child(self._catalog.number(child), live):
                recorded.add(event.id)
                yield event

        context.run_child = run_child
        async with aclosing(found._run_async_impl(context)) as events:
            async for event in events:
                # Events of the agents that this one ran are in the history already.
                if event.id in recorded:
                    continue
                # `_actions` comes before `take_changes`, because it writes the event's `state_delta` to the state.
                actions = self._actions(event.actions, live.state)
                changed, removed = live.take_changes()
                message = {
                    "author": event.author or found.name,
                    "content": to_plain(event.content) if event.content is not None else None,
                    "actions": {**actions, "state_delta": changed, "removed": removed},
                }
                self.channel.ask({"type": "event", "event": message, "ask": True})

    async def make_instruction(self, agent: int, context: CallbackContext) -> str:
        made = getattr(self._catalog.agents[agent], "instruction", "")
        text = made(context) if callable(made) else made
        return str(await text if inspect.isawaitable(text) else text)

    def _tool_of(self, agent: int, described: Plain) -> BaseTool:
        # The catalog has neither the engine's own tools nor unknown ones; callbacks see their name and description.
        try:
            return self._catalog.tool(agent, described["name"])
        except LookupError:
            return BaseTool(name=described["name"], description=str(described.get("description") or ""))

    def _actions(self, actions: EventActions, state: LiveState) -> Plain:
        """Return the actions that code set, without their `state_delta`, which is written to the state."""
        if actions.state_delta:
            state.update(actions.state_delta)
        dumped = actions.model_dump(exclude_none=True, exclude={"state_delta"})
        known = {"transfer_to_agent", "escalate", "skip_summarization"}
        found = {key: value for key, value in dumped.items() if key in known}
        files = dumped.get("artifact_delta")
        return {**found, "other": {"artifact_delta": files}} if files else found


def _request(described: Plain) -> LlmRequest:
    tools = [Tool(function_declarations=[FunctionDeclaration(**each)]) for each in described["tools"]]
    config = GenerateContentConfig(
        system_instruction=described["system_instruction"],
        temperature=described["temperature"],
        max_output_tokens=described["max_output_tokens"],
        tools=tools or None,
    )
    contents = [Content.model_validate(each) for each in described["contents"]]
    return LlmRequest(model=described["model"], contents=contents, config=config)


def _plain_request(request: LlmRequest) -> Plain:
    config = request.config
    # Callbacks may remove tools from the request. The names are enough, because the core has the declarations.
    declared = [each for tool in config.tools or () for each in tool.function_declarations or ()]
    return {
        "model": request.model,
        "contents": [to_plain(content) for content in request.contents],
        "system_instruction": _instruction_text(config.system_instruction),
        "temperature": config.temperature,
        "max_output_tokens": config.max_output_tokens,
        "tools": [{"name": each.name} for each in declared],
    }


def _instruction_text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "\n".join(part.text for part in getattr(value, "parts", None) or () if part.text)


def _content(response: LlmResponse) -> Plain:
    return {"content": to_plain(response.content) if response.content is not None else None}


class AdkRuntime:
    """The runtime of a project: imports it once, and opens a session for each call."""

    def __init__(self, project: Path) -> None:
        # The catalog imports the project, whose imports of `google.adk` have to find our modules.
        google_modules.install()
        self._catalog = Catalog(Path(project).resolve())

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> AdkSession:
        """Open a call's session; with a checkpoint it goes on where another worker stopped."""
        return AdkSession(self._catalog, context, checkpoint, channel)
