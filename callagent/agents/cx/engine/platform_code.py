"""What the platform does around an app's own code: guardrails, transfer rules, system tools and widgets.

The tree engine asks `ProjectCode` for instructions, callbacks and tools. Here these requests go to the worker, which
runs the app's Python, with the platform's own steps before and after.

Order before a request to the model: guardrails on the caller's words (once per turn), deterministic transfer rules, the
agent's `before_model` callbacks. Order after its answer: the agent's `after_model` callbacks, then guardrails on the
words that are left.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from callagent.agents.cx.engine.agent_tree import CUSTOMIZE_RESPONSE, END_SESSION
from callagent.agents.cx.engine.instruction import dynamic_names, render_instruction, state_update_text
from callagent.agents.cx.engine.telephony import as_bool, as_map, read_session_end
from callagent.agents.cx.engine.transfer_rules import deterministic_rules, planner_targets
from callagent.agents.cx.engine.turn_effects import DeferredSpeech, TurnEffects
from callagent.agents.cx.format import AgentConfig, CxApp, Widget
from callagent.agents.cx.guardrails import Guardrail, GuardrailChecker, guardrails_for
from callagent.agents.tree import (
    OUTSIDE_TURN,
    USER,
    CallbackPoint,
    CodeAnswer,
    CodeCall,
    Content,
    Conversation,
    Event,
    Invocation,
    OnEvent,
    ProjectCode,
    RunChild,
    Tool,
    calls,
    parts,
    text_content,
    texts,
)
from callagent.json_values import JsonObject, list_at, object_at, objects_at, text_at
from callagent.log import get_logger

log = get_logger(__name__)
TRANSFER = "transfer_to_agent"
"""The tool by which the model transfers the conversation to another agent."""
_SYSTEM_TOOLS = (END_SESSION, CUSTOMIZE_RESPONSE)
NO_WIDGETS: Mapping[str, Widget] = {}


class PlatformCode:
    """The `tree.ProjectCode` of an app's call."""

    def __init__(
        self,
        app: CxApp,
        worker: ProjectCode,
        conversation: Conversation,
        guardrail_checker: GuardrailChecker,
        effects: TurnEffects,
        tools: Mapping[str, Tool],
        widgets: Mapping[str, Widget] = NO_WIDGETS,
    ) -> None:
        """`widgets`: by tool name, the widgets that the client of this session can show; empty on the telephone."""
        self._app = app
        self._worker = worker
        self._conversation = conversation
        self._guardrail_checker = guardrail_checker
        self._effects = effects
        self._tools = tools
        """All tools of the app by name: callbacks may make the model call a tool that the agent does not list."""
        self._widgets = widgets
        self._called_by_code: set[str] = set()
        """Names of the calls in this answer that a callback, rule or guardrail put there, not the model."""
        self._told_variables: dict[str, object] = {}
        """The value of each `{variable}` that the model was last told."""
        self.speech: DeferredSpeech | None = None
        """The speech of the running turn. None in an agent tool, whose words are a result and are not spoken."""
        self._checked_turn = ""
        """The identifier of the turn (invocation) in which the guardrails have checked the caller's words."""

    def nested(self, conversation: Conversation) -> PlatformCode:
        """Return the code of an agent tool, which has a conversation of its own."""
        # Effects are shared: what a tool of the inner agent does to the call, such as ending it, is done to this call.
        worker = self._worker.nested(conversation)
        guardrail_checker = self._guardrail_checker.nested(worker, conversation)
        return PlatformCode(
            self._app, worker, conversation, guardrail_checker, self._effects, self._tools, self._widgets
        )

    async def close(self) -> None:
        await self._worker.close()

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        return await self._worker.agent(invocation, on_event, run_child)

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        """Return the agent's rendered instruction, and tell the model which of its `{variables}` have changed.

        Values of `{variable}` go into the history instead of the instruction: the beginning of the prompt stays the
        same from turn to turn, so that the model's provider can reuse it.
        """
        variables, name = self._conversation.state.values, invocation.node.name
        changed = {
            each: variables[each]
            for each in dynamic_names(self._app, name)
            if each in variables and (each not in self._told_variables or self._told_variables[each] != variables[each])
        }
        if changed:
            # A copy, because code may change a value in place and would then change both sides of the comparison.
            self._told_variables |= copy.deepcopy(changed)
            _tell_model(
                self._conversation,
                "\n".join(state_update_text(each, value) for each, value in changed.items()),
                invocation,
            )
        return CodeAnswer(render_instruction(self._app, name, variables))

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, payload: JsonObject) -> CodeAnswer:
        """Run the platform's own steps and the agent's callbacks at a point of the turn."""
        # Points of tools come here only for calls that the tree carries out itself: transfers, agent tools, and names
        # that the agent does not list. Around the app's own tools the worker calls the callbacks.
        match point:
            case CallbackPoint.BEFORE_MODEL:
                return await self._before_model(invocation, payload)
            case CallbackPoint.AFTER_MODEL:
                return await self._after_model(invocation, payload)
            case CallbackPoint.BEFORE_TOOL:
                return await self._before_tool(invocation, payload)
        answer = await self._agent_callbacks(invocation, point, payload)
        if point is CallbackPoint.AFTER_AGENT:
            _settle_deferred_speech(
                self.speech, self._conversation, invocation, replaced=isinstance(answer.returned, dict)
            )
        is_content = point in (CallbackPoint.BEFORE_AGENT, CallbackPoint.AFTER_AGENT) and isinstance(
            answer.returned, dict
        )
        return replace(answer, returned=self._effects.render_content(answer.returned)) if is_content else answer

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Run tool calls: the app's in the worker, the platform's here. A tool's error is a result for the model."""
        in_worker = [call for call in calls if not self._runs_here(call.tool.name)]
        results = await self._worker.tools(invocation, in_worker, parallel=parallel) if in_worker else []
        answers = {call.id: as_tool_result(answer) for call, answer in zip(in_worker, results, strict=True)}
        # The platform's tools run last, so that `end_session` sees the variables that the app's tools have set.
        for call in calls:
            if call.id not in answers:
                answers[call.id] = await self._run_platform_tool(invocation, call)
        return [answers[call.id] for call in calls]

    async def run_tool(self, name: str, arguments: JsonObject) -> object:
        """Run a tool outside of any turn and without callbacks; None if the app has no such tool of its own."""
        tool = self._tools.get(name)
        if tool is None or self._runs_here(name):
            return None
        invocation = Invocation(self._conversation.root, "", "", None)
        (answer,) = await self._worker.tools(invocation, [CodeCall(tool, OUTSIDE_TURN, arguments)], parallel=False)
        # No event records this call, so its changes of the state are applied here.
        self._conversation.state.apply(answer.actions.get("state_delta") or {}, answer.actions.get("removed") or ())
        return as_tool_result(answer).returned

    # The model ----------------------------------------------------------------------------------------------------

    async def _before_model(self, invocation: Invocation, payload: JsonObject) -> CodeAnswer:
        # The calls that code put into the previous answer have been carried out by now.
        self._called_by_code.clear()
        if self.speech is not None:
            # An `after_agent` callback may replace the agent's words, so they are not spoken before it has run.
            self.speech.begin_agent(
                invocation.node.name, hold=bool(self._agent_config(invocation).callbacks["after_agent"])
            )
        platform_answer = await self._check_input(invocation, payload) or await self._deterministic_transfer(invocation)
        if platform_answer is not None and platform_answer.returned is not None:
            return platform_answer
        # A guardrail with a `generativeAnswer` has not answered but changed the request.
        payload = platform_answer.payload if platform_answer is not None else payload
        answer = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_MODEL, payload)
        payload = answer.payload or payload
        if answer.error is not None or answer.returned is None:
            return replace(answer, payload=payload)
        content = self._accept_content(answer.returned)
        if is_partial(answer.returned) and not calls(content):
            self._say_partial_response(invocation, content)
            return replace(answer, returned=None, payload=payload)
        return replace(answer, returned=content)

    async def _after_model(self, invocation: Invocation, payload: JsonObject) -> CodeAnswer:
        answer = await self._agent_callbacks(invocation, CallbackPoint.AFTER_MODEL, payload)
        if answer.error is not None:
            return answer
        # A callback may change the response in place or return another one.
        response = object_at(answer.payload or payload, "llm_response", "content")
        content = self._accept_content(response if answer.returned is None else answer.returned)
        spoken = "\n".join(texts(content))
        # Guardrails check the words that the caller would hear, so they come after the app's own changes.
        guardrail = await self._guardrail_checker.check_answer(
            invocation, self._guardrails(invocation), payload, spoken
        )
        if guardrail is not None:
            return replace(answer, returned=await self._guardrail_response(guardrail))
        return replace(answer, returned=content)

    async def replace_withheld(self, invocation: Invocation) -> Content | None:
        """Return the app's answer in place of one that the provider withholds for safety; None if it has none."""
        guardrail = next((each for each in self._guardrails(invocation) if each.safety), None)
        return None if guardrail is None else await self._guardrail_response(guardrail)

    async def _guardrail_response(self, guardrail: Guardrail) -> Content:
        """Return the words or calls of a triggered guardrail in place of the model's answer."""
        await self._effects.write_metric("guardrail", guardrail.name)
        response = guardrail.response(self._app)
        if response is not None:
            return self._accept_content(response)
        text = await self._guardrail_checker.generate_answer(guardrail.prompt)
        return {"role": "model", "parts": [{"text": text}] if text else []}

    def _say_partial_response(self, invocation: Invocation, content: Content) -> None:
        """Say a callback's partial response at once, while the model is asked for the rest."""
        for text in texts(content):
            self._effects.say(text)
        # The words go into the history, so that the model continues them instead of repeating them.
        event = Event(invocation.node.name, content, branch=invocation.branch, invocation_id=invocation.invocation_id)
        self._conversation.append(event)

    def _accept_content(self, content: Content) -> Content:
        """Return a content of the app's code in the form the tree needs: rendered, with agents named by folder."""
        rendered = self._effects.render_content({"role": "model", "parts": list_at(content, "parts")})
        return {**rendered, "parts": [self._accept_part(part) for part in objects_at(rendered, "parts")]}

    def _accept_part(self, part: JsonObject) -> JsonObject:
        call = object_at(part, "function_call")
        if not call:
            return part
        name = text_at(call, "name")
        # The name is noted, because a call that comes from code has no identifier before the tree assigns one.
        self._called_by_code.add(name)
        return {**part, "function_call": {**call, "args": with_folder_names(self._app, name, object_at(call, "args"))}}

    # Guardrails and transfer rules ----------------------------------------------------------------------------------

    def _guardrails(self, invocation: Invocation) -> list[Guardrail]:
        return guardrails_for(self._app, self._agent_config(invocation))

    async def _check_input(self, invocation: Invocation, payload: JsonObject) -> CodeAnswer | None:
        """Check the caller's words once per turn. Return a triggered guardrail's answer or changed request, or None."""
        # A turn has several requests to the model, after tools and transfers; the caller's words are the same in all.
        if self._checked_turn == invocation.invocation_id:
            return None
        self._checked_turn = invocation.invocation_id
        words = "\n".join(texts(invocation.user_content))
        guardrail = await self._guardrail_checker.check_caller(invocation, self._guardrails(invocation), payload, words)
        if guardrail is None:
            return None
        await self._effects.write_metric("guardrail", guardrail.name)
        response = guardrail.response(self._app)
        if response is not None:
            return CodeAnswer(self._accept_content(response), payload)
        # `generativeAnswer`: the agent's model answers this turn, with the guardrail's prompt as its instruction.
        request = {**object_at(payload, "llm_request"), "system_instruction": guardrail.prompt}
        return CodeAnswer(None, {**payload, "llm_request": request})

    async def _deterministic_transfer(self, invocation: Invocation) -> CodeAnswer | None:
        """Return the transfer of the first deterministic rule that holds, in place of the model's answer, or None."""
        variables = self._conversation.state.values
        for rule in deterministic_rules(self._app, self._agent_config(invocation), self._parent_name(invocation)):
            holds = rule.holds(variables)
            if rule.code is not None:
                # The worker runs a rule's Python like a callback; `code` names the file in place of the agent's own.
                payload = {"code": rule.code.file, "function": ""}
                holds = bool((await self._worker.callbacks(invocation, CallbackPoint.BEFORE_AGENT, payload)).returned)
            if holds:
                call = {"name": TRANSFER, "args": {"agent_name": rule.target}}
                return CodeAnswer({"role": "model", "parts": [{"function_call": call}]})
        return None

    # Tools --------------------------------------------------------------------------------------------------------

    async def _before_tool(self, invocation: Invocation, payload: JsonObject) -> CodeAnswer:
        """Handle calls that the worker does not carry out: transfers, and tools that the agent does not list.

        A returned answer takes the tool's place. The model may transfer only to `planner_targets`; code may transfer to
        any child and to the parent.
        """
        name = text_at(object_at(payload, "tool"), "name")
        arguments = with_folder_names(self._app, name, object_at(payload, "args"))
        tool = self._tools.get(name)
        if tool is not None and name in self._called_by_code:
            # The tree knows only the tools that the agent lists and would refuse this call.
            call = CodeCall(tool, str(payload.get("call_id") or ""), arguments)
            return (await self.tools(invocation, [call], parallel=False))[0]
        if name == TRANSFER:
            targets = planner_targets(
                self._app,
                self._agent_config(invocation),
                self._parent_name(invocation),
                self._conversation.state.values,
            )
            if name in self._called_by_code:
                targets = [
                    *(child.name for child in invocation.node.children),
                    *filter(None, [self._parent_name(invocation)]),
                ]
            if arguments.get("agent_name") not in targets:
                error = f"The conversation cannot go to '{arguments.get('agent_name')}'. It can go to: {targets}."
                return CodeAnswer({"error": error})
        answer = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_TOOL, {**payload, "args": arguments})
        return answer if answer.payload else replace(answer, payload={"args": arguments})

    async def _run_platform_tool(self, invocation: Invocation, call: CodeCall) -> CodeAnswer:
        """Run a system tool or widget between the agent's tool callbacks, which may change its arguments."""
        payload: JsonObject = {"tool": call.tool.declaration, "args": dict(call.arguments), "call_id": call.id}
        before = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_TOOL, payload)
        if before.error is not None or before.returned is not None:
            # A callback's result takes the tool's place: the session does not end, and nothing is shown.
            return as_tool_result(before)
        arguments = object_at(before.payload if "args" in before.payload else payload, "args")
        if call.tool.name == END_SESSION:
            await _end_session(self._effects, self._conversation, arguments)
        elif (widget := self._widgets.get(call.tool.name)) is not None:
            self._effects.show_payload(widget.payload(arguments), widget.spoken_text(arguments))
        else:
            self._effects.customize_response(arguments)
        done: JsonObject = {"status": "ok"}
        after = await self._agent_callbacks(
            invocation, CallbackPoint.AFTER_TOOL, {**payload, "args": arguments, "tool_response": done}
        )
        # One answer records the changes of both callbacks; where both set a key, the later one counts.
        actions = {**before.actions, **after.actions, "skip_summarization": self._ends_turn(call.tool.name)}
        delta = {**(before.actions.get("state_delta") or {}), **(after.actions.get("state_delta") or {})}
        removed = [*(before.actions.get("removed") or ()), *(after.actions.get("removed") or ())]
        result = done if after.returned is None else after.returned
        return CodeAnswer(result, actions={**actions, "state_delta": delta, "removed": removed})

    def _runs_here(self, name: str) -> bool:
        """Return whether a tool is a system tool or a widget, which run here and not in the worker."""
        return name in _SYSTEM_TOOLS or name in self._widgets

    def _ends_turn(self, name: str) -> bool:
        """Return whether a system tool or widget ends the turn; a widget does not beside calls of other tools."""
        called = next((found for event in reversed(self._conversation.events) if (found := calls(event.content))), [])
        return name in _SYSTEM_TOOLS or all(self._runs_here(each["name"]) for each in called)

    def _agent_config(self, invocation: Invocation) -> AgentConfig:
        return self._app.agents[invocation.node.name]

    def _parent_name(self, invocation: Invocation) -> str:
        return invocation.node.parent.name if invocation.node.parent is not None else ""

    async def _agent_callbacks(self, invocation: Invocation, point: CallbackPoint, payload: JsonObject) -> CodeAnswer:
        """Run the agent's own callbacks of a point, measured as a span of the turn."""
        if not self._agent_config(invocation).callbacks[point.value]:
            return CodeAnswer(payload=payload)
        with self._effects.spans.measured(f"{point.value}_callback", agent=invocation.node.name) as attributes:
            answer = await self._worker.callbacks(invocation, point, payload)
            attributes["error"] = ": ".join(answer.error or ())
        return answer


def with_folder_names(app: CxApp, tool: str, arguments: JsonObject) -> JsonObject:
    """Return a tool's arguments; in those of a transfer, an agent's display name is replaced by its folder's name."""
    if tool != TRANSFER:
        return dict(arguments)
    wanted = str(arguments.get("agent_name") or arguments.get("agent") or "")
    return {**arguments, "agent_name": app.agent_named(wanted) or wanted}


def is_partial(returned: JsonObject) -> bool:
    """Return whether a callback's response is marked partial, as a whole or in each of its parts."""
    parts = objects_at(returned, "parts")
    return bool(returned.get("partial")) or (bool(parts) and all(part.get("is_partial") for part in parts))


def as_tool_result(answer: CodeAnswer) -> CodeAnswer:
    """Return a tool's answer as an object: an error under `error`, any other value under `result`."""
    if answer.error is not None:
        kind, text = answer.error
        log.warning("tool_failed", kind=kind, error=text)
        return replace(answer, returned={"error": f"{kind}: {text}"}, error=None)
    if isinstance(answer.returned, dict):
        return answer
    return replace(answer, returned={"result": answer.returned})


def _settle_deferred_speech(
    speech: DeferredSpeech | None, conversation: Conversation, invocation: Invocation, *, replaced: bool
) -> None:
    """Say the words that waited for the `after_agent` callback, or drop them from the speech and the history."""
    if speech is None:
        return
    if not replaced:
        speech.release()
        return
    speech.drop()
    own = (invocation.invocation_id, invocation.node.name)
    for index, event in enumerate(conversation.events):
        if (event.invocation_id, event.author) != own or not texts(event.content):
            continue
        # Calls stay in the history: they were carried out, and models refuse a result without its call.
        kept = [part for part in parts(event.content) if not part.get("text")]
        event.content = {**(event.content or {}), "parts": kept}
        # The worker has these events already, so all from the first changed one on are sent again.
        conversation.sent_events = min(conversation.sent_events, index)


def _tell_model(conversation: Conversation, text: str, invocation: Invocation) -> None:
    """Append a text to the newest content of the role `user`.

    In an event of its own, the text would look to the model like another turn of the caller.
    """
    events = conversation.events
    index = next((place for place in range(len(events) - 1, -1, -1) if events[place].content), None)
    content = None if index is None else events[index].content
    if index is None or content is None or content.get("role") != "user":
        # When an agent takes over within a turn, the newest content is an answer of the model: nothing to append to.
        conversation.append(Event(USER, text_content("user", text), invocation_id=invocation.invocation_id))
        return
    events[index].content = {**content, "parts": [*(content.get("parts") or ()), {"text": text}]}
    conversation.sent_events = min(conversation.sent_events, index)


async def _end_session(effects: TurnEffects, conversation: Conversation, arguments: JsonObject) -> None:
    """Say the farewell, record the reason, and decide how the turn ends: hanging up or a transfer."""
    message, ending = read_session_end(arguments, conversation.state.values)
    if message:
        effects.say(message)
    if arguments.get("reason"):
        await effects.write_metric("end_session_reason", str(arguments["reason"]))
    effects.end_arguments = {
        **as_map(arguments.get("params")),
        "reason": str(arguments.get("reason") or ""),
        "session_escalated": as_bool(arguments.get("session_escalated")),
    }
    effects.decide(ending)
