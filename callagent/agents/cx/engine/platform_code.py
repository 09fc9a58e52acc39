"""An app's code as the tree asks for it: the worker's, with what the platform itself does around it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from callagent.agents.cx.engine.agent_tree import CUSTOMIZE_RESPONSE, END_SESSION
from callagent.agents.cx.engine.deferred_speech import HeldWords
from callagent.agents.cx.engine.instruction import dynamic_names, render, state_update
from callagent.agents.cx.engine.telephony import as_bool, as_map, session_end
from callagent.agents.cx.engine.transfer_rules import planner_targets, rules_of
from callagent.agents.cx.engine.turn_effects import Stage
from callagent.agents.cx.format import AgentConfig, CxApp, Widget
from callagent.agents.cx.guardrails import Gate, Guardrail, guardrails_of
from callagent.agents.tree import (
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
from callagent.log import get_logger

log = get_logger(__name__)
TRANSFER = "transfer_to_agent"
_SYSTEM = (END_SESSION, CUSTOMIZE_RESPONSE)
NO_WIDGETS: Mapping[str, Widget] = {}
ALONE = "alone"
"""The identifier of a call outside of any turn: no callbacks stand around it."""
Plain = Mapping[str, Any]


class CxCode:
    """Implements `tree.ProjectCode`."""

    def __init__(
        self,
        app: CxApp,
        worker: ProjectCode,
        conversation: Conversation,
        gate: Gate,
        stage: Stage,
        tools: Mapping[str, Tool],
        widgets: Mapping[str, Widget] = NO_WIDGETS,
    ) -> None:
        """`widgets`: those that whoever drives the agent shows, by name."""
        self._app = app
        self._worker = worker
        self._conversation = conversation
        self._gate = gate
        self._stage = stage
        self._tools = tools
        """All of the app, by name: code may call what the model is not offered."""
        self._widgets = widgets
        self._called_by_code: set[str] = set()
        self._told: dict[str, Any] = {}
        """Variables as the model was told them last."""
        self.words: HeldWords | None = None
        """Of the running turn; None: what is said is a result."""
        self._checked_turn = ""
        """The turn whose words the guardrails have seen."""

    def nested(self, conversation: Conversation) -> CxCode:
        worker = self._worker.nested(conversation)
        gate = self._gate.nested(worker, conversation)
        return CxCode(self._app, worker, conversation, gate, self._stage, self._tools, self._widgets)

    async def close(self) -> None:
        await self._worker.close()

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        return await self._worker.agent(invocation, on_event, run_child)

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        """The agent's, with its variables; what changed of them goes into the history."""
        variables, name = self._conversation.state.values, invocation.node.name
        news = {
            each: variables[each]
            for each in dynamic_names(self._app, name)
            if each in variables and (each not in self._told or self._told[each] != variables[each])
        }
        if news:
            self._told |= copy.deepcopy(news)
            self._tell("\n".join(state_update(each, value) for each, value in news.items()), invocation)
        return CodeAnswer(render(self._app, name, variables))

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, subject: Plain) -> CodeAnswer:
        match point:
            case CallbackPoint.BEFORE_MODEL:
                return await self._before_model(invocation, subject)
            case CallbackPoint.AFTER_MODEL:
                return await self._after_model(invocation, subject)
            case CallbackPoint.BEFORE_TOOL:
                return await self._before_tool(invocation, subject)
        answer = await self._own(invocation, point, subject)
        if point is CallbackPoint.AFTER_AGENT:
            await self._settle_words(invocation, replaced=isinstance(answer.returned, dict))
        is_content = point in (CallbackPoint.BEFORE_AGENT, CallbackPoint.AFTER_AGENT) and isinstance(
            answer.returned, dict
        )
        return replace(answer, returned=self._stage.spoken(answer.returned)) if is_content else answer

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """An error of a tool is told to the model."""
        own = [call for call in calls if not self._is_system(call.tool.name)]
        given = await self._worker.tools(invocation, own, parallel=parallel) if own else []
        answers = {call.id: as_result(answer) for call, answer in zip(own, given, strict=True)}
        for call in calls:
            if call.id not in answers:
                answers[call.id] = await self._system(invocation, call)
        return [answers[call.id] for call in calls]

    async def run_tool(self, name: str, arguments: Plain) -> Any:
        """A tool outside of any turn and without callbacks; None: there is no such tool that is code."""
        tool = self._tools.get(name)
        if tool is None or self._is_system(name):
            return None
        invocation = Invocation(self._conversation.root, "", "", None)
        (answer,) = await self._worker.tools(invocation, [CodeCall(tool, ALONE, arguments)], parallel=False)
        self._conversation.state.apply(answer.actions.get("state_delta") or {}, answer.actions.get("removed") or ())
        return as_result(answer).returned

    # The model ----------------------------------------------------------------------------------------------------

    async def _before_model(self, invocation: Invocation, subject: Plain) -> CodeAnswer:
        self._called_by_code.clear()
        if self.words is not None:
            await self.words.begin(invocation.node.name, hold=bool(self._agent(invocation).callbacks["after_agent"]))
        stopped = await self._check_input(invocation, subject) or await self._deterministic_transfer(invocation)
        if stopped is not None and stopped.returned is not None:
            return stopped
        subject = stopped.subject if stopped is not None else subject
        answer = await self._own(invocation, CallbackPoint.BEFORE_MODEL, subject)
        subject = answer.subject or subject
        if answer.error is not None or answer.returned is None:
            return replace(answer, subject=subject)
        content = self._taken(answer.returned)
        if is_partial(answer.returned) and not calls(content):
            await self._say_partly(invocation, content)
            return replace(answer, returned=None, subject=subject)
        return replace(answer, returned=content)

    async def _after_model(self, invocation: Invocation, subject: Plain) -> CodeAnswer:
        answer = await self._own(invocation, CallbackPoint.AFTER_MODEL, subject)
        if answer.error is not None:
            return answer
        given = (answer.subject or subject)["llm_response"]["content"] or {"role": "model", "parts": []}
        content = self._taken(given if answer.returned is None else answer.returned)
        said = "\n".join(texts(content))
        guardrail = await self._gate.stops_answer(invocation, self._guardrails(invocation), subject, said)
        if guardrail is not None:
            return replace(answer, returned=await self._in_place(guardrail))
        return replace(answer, returned=content)

    async def withheld(self, invocation: Invocation) -> Content | None:
        guardrail = next((each for each in self._guardrails(invocation) if each.safety), None)
        return None if guardrail is None else await self._in_place(guardrail)

    async def _in_place(self, guardrail: Guardrail) -> dict[str, Any]:
        """What is said and called instead of an answer that is not to be given."""
        await self._stage.write("guardrail", guardrail.name)
        decided = guardrail.answer(self._app)
        if decided is not None:
            return self._taken(decided)
        text = await self._gate.answer_by(guardrail.prompt)
        return {"role": "model", "parts": [{"text": text}] if text else []}

    async def _say_partly(self, invocation: Invocation, content: Plain) -> None:
        """The caller hears it while the model is asked."""
        for text in texts(content):
            await self._stage.say(text)
        event = Event(invocation.node.name, content, branch=invocation.branch, invocation_id=invocation.invocation_id)
        self._conversation.append(event)

    def _taken(self, content: Plain) -> dict[str, Any]:
        """What code made the model say and call, with our names of agents."""
        spoken = self._stage.spoken({"role": "model", "parts": content.get("parts") or []})
        for part in spoken["parts"]:
            call = part.get("function_call")
            if call:
                self._called_by_code.add(call["name"])
                call["args"] = our_names(self._app, call["name"], call.get("args") or {})
        return spoken

    async def _settle_words(self, invocation: Invocation, *, replaced: bool) -> None:
        """What waited is said, or is neither said nor in the history."""
        if self.words is None:
            return
        if not replaced:
            await self.words.release()
            return
        self.words.drop()
        for index, event in enumerate(self._conversation.events):
            if (event.invocation_id, event.author) == (invocation.invocation_id, invocation.node.name) and texts(
                event.content
            ):
                kept = [part for part in parts(event.content) if not part.get("text")]
                event.content = {**(event.content or {}), "parts": kept}
                self._conversation.revised = min(self._conversation.revised, index)

    def _tell(self, text: str, invocation: Invocation) -> None:
        """Into what was said to the model last: an event of its own would look like another turn of the caller."""
        events = self._conversation.events
        index = next((place for place in range(len(events) - 1, -1, -1) if events[place].content), None)
        content = None if index is None else events[index].content
        if index is None or content is None or content.get("role") != "user":
            self._conversation.append(Event(USER, text_content("user", text), invocation_id=invocation.invocation_id))
            return
        events[index].content = {**content, "parts": [*(content.get("parts") or ()), {"text": text}]}
        self._conversation.revised = min(self._conversation.revised, index)

    # Guardrails and rules -----------------------------------------------------------------------------------------

    def _guardrails(self, invocation: Invocation) -> list[Guardrail]:
        return guardrails_of(self._app, self._agent(invocation))

    async def _check_input(self, invocation: Invocation, subject: Plain) -> CodeAnswer | None:
        """The caller's words, once a turn. None: nothing is wrong with them."""
        if self._checked_turn == invocation.invocation_id:
            return None
        self._checked_turn = invocation.invocation_id
        said = "\n".join(texts(invocation.user_content))
        guardrail = await self._gate.stops_caller(invocation, self._guardrails(invocation), subject, said)
        if guardrail is None:
            return None
        await self._stage.write("guardrail", guardrail.name)
        answer = guardrail.answer(self._app)
        if answer is not None:
            return CodeAnswer(self._taken(answer), subject)
        request = {**subject["llm_request"], "system_instruction": guardrail.prompt}
        return CodeAnswer(None, {**subject, "llm_request": request})

    async def _deterministic_transfer(self, invocation: Invocation) -> CodeAnswer | None:
        """The first transfer rule that holds; the model is not asked then."""
        variables = self._conversation.state.values
        for rule in rules_of(self._app, self._agent(invocation), self._parent(invocation)):
            holds = rule.holds(variables)
            if rule.code is not None:
                subject = {"code": rule.code.file, "function": ""}
                holds = bool((await self._worker.callbacks(invocation, CallbackPoint.BEFORE_AGENT, subject)).returned)
            if holds:
                call = {"name": TRANSFER, "args": {"agent_name": rule.target}}
                return CodeAnswer({"role": "model", "parts": [{"function_call": call}]})
        return None

    # Tools --------------------------------------------------------------------------------------------------------

    async def _before_tool(self, invocation: Invocation, subject: Plain) -> CodeAnswer:
        """Only what the worker does not carry out comes here: transfers, and tools that the agent does not list."""
        name = str(subject["tool"]["name"])
        arguments = our_names(self._app, name, subject["args"])
        tool = self._tools.get(name)
        if tool is not None and name in self._called_by_code:
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
        answer = await self._own(invocation, CallbackPoint.BEFORE_TOOL, {**subject, "args": arguments})
        return answer if answer.subject else replace(answer, subject={"args": arguments})

    async def _system(self, invocation: Invocation, call: CodeCall) -> CodeAnswer:
        """A tool of the platform or a widget, with the agent's callbacks around it: they may fill in its arguments."""
        subject: dict[str, Any] = {"tool": call.tool.declaration, "args": dict(call.arguments), "call_id": call.id}
        before = await self._own(invocation, CallbackPoint.BEFORE_TOOL, subject)
        if before.error is not None or before.returned is not None:
            return as_result(before)
        arguments = before.subject.get("args", subject["args"])
        if call.tool.name == END_SESSION:
            await self._end_session(arguments)
        elif (widget := self._widgets.get(call.tool.name)) is not None:
            await self._stage.show(widget.payload(arguments), widget.said(arguments))
        else:
            await self._stage.customize(arguments)
        done = {"status": "ok"}
        after = await self._own(
            invocation, CallbackPoint.AFTER_TOOL, {**subject, "args": arguments, "tool_response": done}
        )
        actions = {**before.actions, **after.actions, "skip_summarization": self._is_last(call.tool.name)}
        delta = {**(before.actions.get("state_delta") or {}), **(after.actions.get("state_delta") or {})}
        removed = [*(before.actions.get("removed") or ()), *(after.actions.get("removed") or ())]
        return CodeAnswer(after.returned or done, actions={**actions, "state_delta": delta, "removed": removed})

    def _is_system(self, name: str) -> bool:
        return name in _SYSTEM or name in self._widgets

    def _is_last(self, name: str) -> bool:
        """Whether nothing follows in the turn: after a widget the model hears what its other tools found."""
        called = next((found for event in reversed(self._conversation.events) if (found := calls(event.content))), [])
        return name in _SYSTEM or all(self._is_system(each["name"]) for each in called)

    async def _end_session(self, arguments: Plain) -> None:
        message, ending = session_end(arguments, self._conversation.state.values)
        if message:
            await self._stage.say(message)
        if arguments.get("reason"):
            await self._stage.write("end_session_reason", str(arguments["reason"]))
        self._stage.end_arguments = {
            **as_map(arguments.get("params")),
            "reason": str(arguments.get("reason") or ""),
            "session_escalated": as_bool(arguments.get("session_escalated")),
        }
        self._stage.decide(ending)

    # Help ---------------------------------------------------------------------------------------------------------

    def _agent(self, invocation: Invocation) -> AgentConfig:
        return self._app.agents[invocation.node.name]

    def _parent(self, invocation: Invocation) -> str:
        return invocation.node.parent.name if invocation.node.parent is not None else ""

    async def _own(self, invocation: Invocation, point: CallbackPoint, subject: Plain) -> CodeAnswer:
        """The agent's own callbacks."""
        if not self._agent(invocation).callbacks[point.value]:
            return CodeAnswer(subject=subject)
        with self._stage.spans.measured(f"{point.value}_callback", agent=invocation.node.name) as attributes:
            answer = await self._worker.callbacks(invocation, point, subject)
            attributes["error"] = ": ".join(answer.error or ())
        return answer


def our_names(app: CxApp, tool: str, arguments: Plain) -> dict[str, Any]:
    """Agents are named by their folder or as they are displayed; the tree knows folders."""
    if tool != TRANSFER:
        return dict(arguments)
    wanted = str(arguments.get("agent_name") or arguments.get("agent") or "")
    return {**arguments, "agent_name": app.agent_named(wanted) or wanted}


def is_partial(returned: Plain) -> bool:
    parts = returned.get("parts") or ()
    return bool(returned.get("partial")) or (bool(parts) and all(part.get("is_partial") for part in parts))


def as_result(answer: CodeAnswer) -> CodeAnswer:
    """A tool's failure as its result; other values than objects are wrapped."""
    if answer.error is not None:
        kind, text = answer.error
        log.warning("tool_failed", kind=kind, error=text)
        return replace(answer, returned={"error": f"{kind}: {text}"}, error=None)
    if isinstance(answer.returned, dict):
        return answer
    return replace(answer, returned={"result": answer.returned})
