"""The agent's turn: rounds of model and functions until the caller has the floor or the call ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

from callagent.agents.actions import HangUp, Listen, Say, WaitEnded, WaitStarted
from callagent.agents.flows.engine import model_request
from callagent.agents.flows.engine.decision import Decision, Position
from callagent.agents.flows.engine.function_calls import FunctionCalls
from callagent.agents.flows.engine.listening import is_interruptible, listen_settings, seconds_before_function
from callagent.agents.flows.engine.retrieval import retrieved_topics
from callagent.agents.flows.engine.tools import Toolset, execute_implicit_tool
from callagent.agents.flows.format import ProjectFunction
from callagent.agents.protocol import Emit
from callagent.call_info import EndReason
from callagent.errors import ProviderError
from callagent.json_values import JsonObject
from callagent.log import get_logger
from callagent.models import LanguageModel, ToolCall

log = get_logger(__name__)
REFUSED_METRIC = "OUTPUT_REFUSED"


class Turn:
    """One turn of the agent.

    A barge-in cancels it, which takes effect at an `await`: nothing more is said, but everything done before stays, and
    a running function finishes (`FunctionCalls.call`). Therefore every change is noted in the conversation before the
    next `await` or emitted action, never after.
    """

    def __init__(self, functions: FunctionCalls, model: LanguageModel, emit: Emit) -> None:
        self._functions = functions
        self._model = model
        self._emit = emit
        self._conversation = functions.conversation
        self._settings = functions.conversation.settings
        self._over = False
        self._stopped = False
        """Whether the last decision skips the model's other tool calls (`Decision.skips_other_tool_calls`)."""
        self._has_spoken = False
        self._failures = 0
        """Unusable return values of functions in this turn."""
        self._filter_hits = 0
        """Answers that a phrase filter has cut in this turn."""
        self._ending = False
        """Whether `_end()` is running the function steps that come before listening."""
        self._listen: JsonObject | None = None
        """The `listen` that a function returned; None: none did."""
        self._wait: WaitStarted | None = None
        """The wait for the model whose fillers are being said."""
        self._stuck_at: Position | None = None
        """Function step that led nowhere in this turn; it is not run again before the caller has spoken."""

    async def run(self) -> None:
        """Ask the model and execute what it calls, round after round, until the turn is over."""
        for _ in range(self._settings.max_rounds):
            await self._round()
            if self._over:
                return
        log.warning("turn_without_end", rounds=self._settings.max_rounds)
        await self._give_up()

    async def carry_out(self, decision: Decision) -> None:
        """Say and do what a decision asks for. Afterwards the turn is over, or the model is asked again."""
        conversation = self._conversation
        self._stopped = decision.skips_other_tool_calls
        conversation.emit_events(self._emit)
        if decision.utterance:
            self._say(decision.utterance, channel=decision.channel)
        if decision.ends_call:
            self._over = True
            ending = await self._functions.begin_handoff(decision.handoff) if decision.handoff else HangUp()
            # Up to this line an interruption leaves the ending to the next turn.
            conversation.unfinished, conversation.emitted_ending = None, decision
            conversation.emit_events(self._emit)
            self._emit(ending)
        elif decision.asks_model:
            self._failures += decision.unusable
        else:
            self._listen = decision.listen or self._listen
            await self._end()

    async def _end(self) -> None:
        """Give the caller the floor. If the call stands on a function step, the step runs first."""
        # The decision of such a function step leads here again, through carry_out().
        if self._ending:
            return
        self._ending = True
        await self._function_steps()
        if not self._over:
            self._over = True
            self._emit(Listen(listen_settings(self._conversation, self._listen)))

    async def _call(self, function: ProjectFunction, arguments: JsonObject, call_id: str | None = None) -> None:
        """Run a function and carry out its decision; `call_id` is the model's tool call that it answers."""
        await self.carry_out(await self._functions.call(function, arguments, self._emit, call_id))

    async def _round(self) -> None:
        """Run the function steps, then one request to the model and the tools that it calls."""
        await self._function_steps()
        if self._over:
            return
        if self._failures >= self._settings.max_failures:
            await self._give_up()
        else:
            await self._model_round()

    async def _function_steps(self) -> None:
        """Run the function step that the call stands on, and those that it leads to."""
        conversation = self._conversation
        for _ in range(self._settings.max_function_steps):
            here, function = conversation.position, conversation.function_step
            if function is None or here == self._stuck_at:
                return
            await self._call(function, {})
            if self._over:
                return
            if conversation.position == here:
                self._stuck_at = here
                log.error("function_step_without_transition", flow=here.flow, step=here.step)
        if conversation.function_step is not None:
            log.error("function_steps_without_end", flow=conversation.position.flow)
            self._stuck_at = conversation.position

    async def _model_round(self) -> None:
        conversation = self._conversation
        # A filter's function may provoke the same phrase again: after max_filter_hits the answer is spoken unfiltered.
        answer = model_request.new_answer(conversation, filtered=self._filter_hits < self._settings.max_filter_hits)
        request = model_request.build_request(conversation, retrieved_topics(conversation.project, conversation.topics))
        await self._stream_answer(answer, request)
        conversation.model_failures = conversation.model_failures + 1 if answer.error is not None else 0
        if answer.error is not None:
            await self._give_up()
        elif answer.hit is not None:
            await self._follow_filter(answer)
        elif answer.calls:
            await self._call_tools(answer.calls, request.toolset)
        elif self._has_spoken:
            await self.carry_out(Decision(utterance=""))
        else:
            await self._give_up()

    async def _stream_answer(self, answer: model_request.Answer, request: model_request.ModelRequest) -> None:
        """Send the request and say the sentences as they come. A provider's failure is stored in `answer.error`."""
        self._begin_wait()
        try:
            async with aclosing(model_request.stream_sentences(self._model, answer, request)) as sentences:
                async for sentence in sentences:
                    self._end_wait()
                    self._say(sentence, answer.utterance)
        except ProviderError as error:
            answer.error = f"{type(error).__name__}: {error}"
            log.error("model_failed", error=answer.error)
        for violation in answer.violations:
            log.warning("sentence_refused", rule=violation.rule)
            await self._conversation.write_metric(REFUSED_METRIC, violation.rule)
        self._conversation.emit_events(self._emit)
        self._end_wait()
        self._emit(answer.model_answered(asyncio.get_running_loop().time()))

    def _begin_wait(self) -> None:
        """Start the fillers for a wait for the model, where the project has any."""
        conversation, fillers = self._conversation, self._conversation.fillers
        if not fillers.phrases or conversation.channel != "voice":
            return
        control = fillers.latency_control(self._functions.random)
        if control is not None:
            conversation.waits += 1
            # Negative, because the sign distinguishes the numbers of waits from those of functions.
            self._wait = WaitStarted(-conversation.waits, control)
            self._emit(self._wait)

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._emit(WaitEnded(self._wait.number))
            self._wait = None

    def _say(self, text: str, utterance: int | None = None, channel: str = "speech") -> None:
        # The history has the words before they are played; `FlowAgent.heard` shortens it after an interruption.
        self._conversation.history.add_agent(text, utterance)
        self._has_spoken = True
        self._emit(Say(text, is_interruptible(self._conversation), channel))

    async def _give_up(self) -> None:
        """Say that something went wrong and listen; after too many failed turns in a row, end the call."""
        if self._conversation.model_failures >= self._settings.max_model_failures:
            self._over = True
            log.error("call_given_up", failures=self._conversation.model_failures)
            self._say(self._settings.failure_utterance)
            self._emit(HangUp(EndReason.ERROR))
        else:
            await self.carry_out(Decision(utterance=self._settings.fallback_utterance))

    async def _follow_filter(self, answer: model_request.Answer) -> None:
        """Run the function of the phrase filter that cut the answer; without one, the turn ends."""
        assert answer.hit is not None
        self._filter_hits += 1
        rule = answer.hit.filter
        log.info("phrase_filtered", filter=rule.name, function=rule.function)
        function = self._conversation.project.functions.get(rule.function or "")
        if function is not None:
            # Noted as a tool call of the model, so that the result has a place in the history.
            call = self._new_call(ToolCall("", function.name, "{}"))
            self._conversation.history.add_calls((call,))
            await self._call(function, {}, call.id)
        elif self._has_spoken:
            await self.carry_out(Decision(utterance=""))

    def _new_call(self, call: ToolCall) -> ToolCall:
        """Give a tool call an identifier that is unique in this call: providers number each answer from the start."""
        self._conversation.calls += 1
        return replace(call, id=f"call_{self._conversation.calls}")

    async def _call_tools(self, calls: list[ToolCall], toolset: Toolset) -> None:
        """Execute tool calls in order, until one stops the others; the model is told that those were not executed."""
        numbered = tuple(self._new_call(call) for call in calls)
        self._conversation.history.add_calls(numbered)
        self._stopped = False
        for call in numbered:
            await self._call_tool(call, toolset)
            if self._stopped:
                return

    async def _call_tool(self, call: ToolCall, toolset: Toolset) -> None:
        arguments, target, history = _arguments(call), toolset.find(call.name), self._conversation.history
        if arguments is None:
            history.add_answer(call.id, "Error: the arguments are not a JSON object.")
        elif target is None:
            log.warning("function_not_found", name=call.name)
            history.add_answer(call.id, self._conversation.project.experimental.prompts.function_not_found)
        elif isinstance(target, ProjectFunction):
            # smart_vad: a caller who goes on speaking cancels the turn here, before the function has run.
            await asyncio.sleep(seconds_before_function(self._conversation, target))
            await self._call(target, arguments, call.id)
        else:
            decision = await execute_implicit_tool(self._functions, target, arguments)
            self._functions.apply(decision)
            history.add_answer(call.id, decision.content)
            await self.carry_out(decision)


def _arguments(call: ToolCall) -> JsonObject | None:
    """Return a tool call's arguments; None where the model did not write a JSON object."""
    try:
        value = json.loads(call.arguments or "{}")
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
