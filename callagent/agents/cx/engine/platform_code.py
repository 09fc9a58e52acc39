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
from callagent.agents.cx.engine.instruction import dynamic_names, render, state_update
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
_SYSTEM = (END_SESSION, CUSTOMIZE_RESPONSE)
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
        """The value of each `{variable}` that the model was told last."""
        self.speech: DeferredSpeech | None = None
        """The speech of the running turn. None in an agent tool, whose words are a result and are not spoken."""
        self._checked_turn = ""
        """The turn (invocation) whose caller's words the guardrails have checked."""

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
                self._conversation, "\n".join(state_update(each, value) for each, value in changed.items()), invocation
            )
        return CodeAnswer(render(self._app, name, variables))

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, subject: JsonObject) -> CodeAnswer:
        """Run what stands at a point of the turn: the platform's own steps and the agent's callbacks."""
        # Points of tools come here only for calls that the tree carries out itself: transfers, agent tools, and names
        # that the agent does not list. Around the app's own tools the worker calls the callbacks.
        match point:
            case CallbackPoint.BEFORE_MODEL:
                return await self._before_model(invocation, subject)
            case CallbackPoint.AFTER_MODEL:
                return await self._after_model(invocation, subject)
            case CallbackPoint.BEFORE_TOOL:
                return await self._before_tool(invocation, subject)
        answer = await self._agent_callbacks(invocation, point, subject)
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
        # After the app's tools, so that `end_session` sees the variables that they have set.
        for call in calls:
            if call.id not in answers:
                answers[call.id] = await self._run_platform_tool(invocation, call)
        return [answers[call.id] for call in calls]

    async def run_tool(self, name: str, arguments: JsonObject) -> object:
        """Run a tool outside of any turn and without callbacks. None: the app has no such tool of its own."""
        tool = self._tools.get(name)
        if tool is None or self._runs_here(name):
            return None
        invocation = Invocation(self._conversation.root, "", "", None)
        (answer,) = await self._worker.tools(invocation, [CodeCall(tool, OUTSIDE_TURN, arguments)], parallel=False)
        # No event records this call, so nobody else applies what it changed.
        self._conversation.state.apply(answer.actions.get("state_delta") or {}, answer.actions.get("removed") or ())
        return as_tool_result(answer).returned

    # The model ----------------------------------------------------------------------------------------------------

    async def _before_model(self, invocation: Invocation, subject: JsonObject) -> CodeAnswer:
        # A new request to the model: calls that code put into the last answer have been carried out by now.
        self._called_by_code.clear()
        if self.speech is not None:
            # An after_agent callback may replace everything the agent said, so nothing of it is spoken before.
            self.speech.begin_agent(invocation.node.name, hold=bool(self._agent(invocation).callbacks["after_agent"]))
        stopped = await self._check_input(invocation, subject) or await self._deterministic_transfer(invocation)
        if stopped is not None and stopped.returned is not None:
            return stopped
        # A guardrail that answers by another instruction has changed the request instead of answering.
        subject = stopped.subject if stopped is not None else subject
        answer = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_MODEL, subject)
        subject = answer.subject or subject
        if answer.error is not None or answer.returned is None:
            return replace(answer, subject=subject)
        content = self._accept_content(answer.returned)
        if is_partial(answer.returned) and not calls(content):
            self._say_partial_response(invocation, content)
            return replace(answer, returned=None, subject=subject)
        return replace(answer, returned=content)

    async def _after_model(self, invocation: Invocation, subject: JsonObject) -> CodeAnswer:
        answer = await self._agent_callbacks(invocation, CallbackPoint.AFTER_MODEL, subject)
        if answer.error is not None:
            return answer
        # A callback may change the response in place or return another one.
        response = object_at(answer.subject or subject, "llm_response", "content")
        content = self._accept_content(response if answer.returned is None else answer.returned)
        spoken = "\n".join(texts(content))
        # Guardrails judge what the caller would hear, so they come after the app's own changes of it.
        guardrail = await self._guardrail_checker.check_answer(
            invocation, self._guardrails(invocation), subject, spoken
        )
        if guardrail is not None:
            return replace(answer, returned=await self._guardrail_response(guardrail))
        return replace(answer, returned=content)

    async def replace_withheld(self, invocation: Invocation) -> Content | None:
        """Return what is said when the model's provider withholds an answer for safety; None: nothing is declared."""
        guardrail = next((each for each in self._guardrails(invocation) if each.safety), None)
        return None if guardrail is None else await self._guardrail_response(guardrail)

    async def _guardrail_response(self, guardrail: Guardrail) -> Content:
        """Return what a triggered guardrail says or calls in place of the model's answer."""
        await self._effects.write_metric("guardrail", guardrail.name)
        response = guardrail.response(self._app)
        if response is not None:
            return self._accept_content(response)
        text = await self._guardrail_checker.generate_answer(guardrail.prompt)
        return {"role": "model", "parts": [{"text": text}] if text else []}

    def _say_partial_response(self, invocation: Invocation, content: Content) -> None:
        """Say a callback's partial response at once; the model is asked all the same, and answers meanwhile."""
        for text in texts(content):
            self._effects.say(text)
        # In the history, so that the model goes on from these words instead of repeating them.
        event = Event(invocation.node.name, content, branch=invocation.branch, invocation_id=invocation.invocation_id)
        self._conversation.append(event)

    def _accept_content(self, content: Content) -> Content:
        """Return a content that code gives in the model's place as the tree needs it: rendered, agents by folder."""
        rendered = self._effects.render_content({"role": "model", "parts": list_at(content, "parts")})
        return {**rendered, "parts": [self._accept_part(part) for part in objects_at(rendered, "parts")]}

    def _accept_part(self, part: JsonObject) -> JsonObject:
        call = object_at(part, "function_call")
        if not call:
            return part
        name = text_at(call, "name")
        # By name, because a call that comes from code has no identifier yet: the tree gives it one later.
        self._called_by_code.add(name)
        return {**part, "function_call": {**call, "args": with_folder_names(self._app, name, object_at(call, "args"))}}

    # Guardrails and transfer rules ----------------------------------------------------------------------------------

    def _guardrails(self, invocation: Invocation) -> list[Guardrail]:
        return guardrails_for(self._app, self._agent(invocation))

    async def _check_input(self, invocation: Invocation, subject: JsonObject) -> CodeAnswer | None:
        """Check the caller's words, once in a turn. None: no guardrail was triggered."""
        # A turn has several requests to the model, after tools and transfers; the caller's words are the same in all.
        if self._checked_turn == invocation.invocation_id:
            return None
        self._checked_turn = invocation.invocation_id
        words = "\n".join(texts(invocation.user_content))
        guardrail = await self._guardrail_checker.check_caller(invocation, self._guardrails(invocation), subject, words)
        if guardrail is None:
            return None
        await self._effects.write_metric("guardrail", guardrail.name)
        response = guardrail.response(self._app)
        if response is not None:
            return CodeAnswer(self._accept_content(response), subject)
        # `generativeAnswer`: the agent's model answers this turn, by the guardrail's prompt as its instruction.
        request = {**object_at(subject, "llm_request"), "system_instruction": guardrail.prompt}
        return CodeAnswer(None, {**subject, "llm_request": request})

    async def _deterministic_transfer(self, invocation: Invocation) -> CodeAnswer | None:
        """Return the transfer of the first deterministic rule that holds; the model is not asked then."""
        variables = self._conversation.state.values
        for rule in deterministic_rules(self._app, self._agent(invocation), self._parent(invocation)):
            holds = rule.holds(variables)
            if rule.code is not None:
                # The worker runs a rule's Python like a callback; `code` names the file in place of the agent's own.
                subject = {"code": rule.code.file, "function": ""}
                holds = bool((await self._worker.callbacks(invocation, CallbackPoint.BEFORE_AGENT, subject)).returned)
            if holds:
                call = {"name": TRANSFER, "args": {"agent_name": rule.target}}
                return CodeAnswer({"role": "model", "parts": [{"function_call": call}]})
        return None

    # Tools --------------------------------------------------------------------------------------------------------

    async def _before_tool(self, invocation: Invocation, subject: JsonObject) -> CodeAnswer:
        """Handle calls that the worker does not carry out: transfers, and tools that the agent does not list.

        A returned answer takes the tool's place. The model may transfer only where the planner is allowed to; code may
        transfer to any child and to the parent.
        """
        name = text_at(object_at(subject, "tool"), "name")
        arguments = with_folder_names(self._app, name, object_at(subject, "args"))
        tool = self._tools.get(name)
        if tool is not None and name in self._called_by_code:
            # The tree knows an agent's own tools only and would refuse a call of another one.
            call = CodeCall(tool, str(subject.get("call_id") or ""), arguments)
            return (await self.tools(invocation, [call], parallel=False))[0]
        if name == TRANSFER:
            targets = planner_targets(
                self._app, self._agent(invocation), self._parent(invocation), self._conversation.state.values
            )
            if name in self._called_by_code:
                targets = [
                    *(child.name for child in invocation.node.children),
                    *filter(None, [self._parent(invocation)]),
                ]
            if arguments.get("agent_name") not in targets:
                error = f"The conversation cannot go to '{arguments.get('agent_name')}'. It can go to: {targets}."
                return CodeAnswer({"error": error})
        answer = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_TOOL, {**subject, "args": arguments})
        return answer if answer.subject else replace(answer, subject={"args": arguments})

    async def _run_platform_tool(self, invocation: Invocation, call: CodeCall) -> CodeAnswer:
        """Run a system tool or widget with the agent's tool callbacks around it, which may change its arguments."""
        subject: JsonObject = {"tool": call.tool.declaration, "args": dict(call.arguments), "call_id": call.id}
        before = await self._agent_callbacks(invocation, CallbackPoint.BEFORE_TOOL, subject)
        if before.error is not None or before.returned is not None:
            # A result of a callback takes the tool's place: the session does not end, nothing is shown.
            return as_tool_result(before)
        arguments = object_at(before.subject if "args" in before.subject else subject, "args")
        if call.tool.name == END_SESSION:
            await _end_session(self._effects, self._conversation, arguments)
        elif (widget := self._widgets.get(call.tool.name)) is not None:
            self._effects.show_payload(widget.payload(arguments), widget.spoken_text(arguments))
        else:
            self._effects.customize_response(arguments)
        done: JsonObject = {"status": "ok"}
        after = await self._agent_callbacks(
            invocation, CallbackPoint.AFTER_TOOL, {**subject, "args": arguments, "tool_response": done}
        )
        # One answer records what both callbacks changed; where both set a key, the later one counts.
        actions = {**before.actions, **after.actions, "skip_summarization": self._ends_turn(call.tool.name)}
        delta = {**(before.actions.get("state_delta") or {}), **(after.actions.get("state_delta") or {})}
        removed = [*(before.actions.get("removed") or ()), *(after.actions.get("removed") or ())]
        return CodeAnswer(after.returned or done, actions={**actions, "state_delta": delta, "removed": removed})

    def _runs_here(self, name: str) -> bool:
        """Return whether a tool is the platform's own or a widget, which no worker runs."""
        return name in _SYSTEM or name in self._widgets

    def _ends_turn(self, name: str) -> bool:
        """Return whether the turn is over. After a widget it is not when the model called other tools beside it."""
        called = next((found for event in reversed(self._conversation.events) if (found := calls(event.content))), [])
        return name in _SYSTEM or all(self._runs_here(each["name"]) for each in called)

    def _agent(self, invocation: Invocation) -> AgentConfig:
        return self._app.agents[invocation.node.name]

    def _parent(self, invocation: Invocation) -> str:
        return invocation.node.parent.name if invocation.node.parent is not None else ""

    async def _agent_callbacks(self, invocation: Invocation, point: CallbackPoint, subject: JsonObject) -> CodeAnswer:
        """Run the agent's own callbacks of a point, measured as a span of the turn."""
        if not self._agent(invocation).callbacks[point.value]:
            return CodeAnswer(subject=subject)
        with self._effects.spans.measured(f"{point.value}_callback", agent=invocation.node.name) as attributes:
            answer = await self._worker.callbacks(invocation, point, subject)
            attributes["error"] = ": ".join(answer.error or ())
        return answer


def with_folder_names(app: CxApp, tool: str, arguments: JsonObject) -> JsonObject:
    """Return a transfer's arguments with the agent named by its folder, whether its folder or display name is given."""
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
    """Say what waited for the `after_agent` callback, or drop it from the speech and from the history alike."""
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
        # The worker has these events already; it is sent them again from the first that was changed.
        conversation.sent_events = min(conversation.sent_events, index)


def _tell_model(conversation: Conversation, text: str, invocation: Invocation) -> None:
    """Append a text to the newest content of the role `user`.

    An event of its own would look to the model like another turn of the caller.
    """
    events = conversation.events
    index = next((place for place in range(len(events) - 1, -1, -1) if events[place].content), None)
    content = None if index is None else events[index].content
    if index is None or content is None or content.get("role") != "user":
        # After an answer of the model there is nothing to append to, as when an agent takes over within a turn.
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
