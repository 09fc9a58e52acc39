"""The agent's turn: rounds of model and functions until the caller has the floor or the call ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from callagent.agents.actions import Action, HangUp, Listen, Say, WaitEnded, WaitStarted
from callagent.agents.flows.engine.decision import Decision, Position
from callagent.agents.flows.engine.function_calls import Dialogue
from callagent.agents.flows.engine.listening import interruptible, listen_settings, seconds_before_function
from callagent.agents.flows.engine.model_request import (
    Answer,
    ModelRequest,
    build_request,
    new_answer,
    stream_sentences,
)
from callagent.agents.flows.engine.retrieval import retrieved_topics
from callagent.agents.flows.engine.tools import Toolset, implicit_decision
from callagent.agents.flows.format import ProjectFunction
from callagent.call_info import EndReason
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.models import ToolCall

log = get_logger(__name__)
Actions = AsyncGenerator[Action, None]
REFUSED_METRIC = "OUTPUT_REFUSED"


class Turn:
    """One turn of the agent. Closing its generator interrupts it: nothing more is said, a running function finishes."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._conversation = dialogue.conversation
        self._settings = dialogue.conversation.settings
        self._over = False
        self._stopped = False
        """The last decision ended the turn or moved the call: the model's other tool calls are not executed."""
        self._said = False
        self._failures = 0
        self._hits = 0
        self._ending = False
        """Function steps that follow the last words are running; listening comes after them."""
        self._listen: Mapping[str, Any] | None = None
        self._stuck: Position | None = None
        """A function step that led nowhere in this turn. It is not run again before the caller has spoken."""

    async def run(self) -> Actions:
        """Ask the model and execute what it calls, round after round, until the turn is over."""
        for _ in range(self._settings.max_rounds):
            async with aclosing(self._round()) as actions:
                async for action in actions:
                    yield action
            if self._over:
                return
        log.warning("turn_without_end", rounds=self._settings.max_rounds)
        async with aclosing(self._give_up()) as actions:
            async for action in actions:
                yield action

    async def carry_out(self, decision: Decision) -> Actions:
        """Say and do what a decision asks for. Afterwards the turn is over, or the model is asked again."""
        conversation = self._conversation
        self._stopped = decision.stops_other_calls
        while (event := conversation.next_event()) is not None:
            yield event
        if decision.utterance:
            yield self._say(decision.utterance, channel=decision.channel)
        if decision.ends_call:
            self._over = True
            conversation.unfinished = None
            ending = await self._dialogue.handoff(decision.handoff) if decision.handoff else HangUp()
            while (event := conversation.next_event()) is not None:
                yield event
            yield ending
        elif decision.asks_model:
            self._failures += decision.unusable
        else:
            self._listen = decision.listen or self._listen
            async with aclosing(self._end()) as actions:
                async for action in actions:
                    yield action

    async def _end(self) -> Actions:
        """Give the caller the floor. A function step that was entered with the last words runs first."""
        if self._ending:
            return
        self._ending = True
        async with aclosing(self._function_steps()) as actions:
            async for action in actions:
                yield action
        if not self._over:
            self._over = True
            yield Listen(listen_settings(self._conversation, self._listen))

    async def call_function(
        self, function: ProjectFunction, arguments: Mapping[str, Any], call_id: str | None = None
    ) -> Actions:
        """Run a function and carry out its decision; `call_id` is the model's tool call that it answers."""
        running = self._dialogue.begin_function(function, arguments, call_id)
        yield running.started
        # shield(): closing this generator must not cancel the function, whose effects stand (see begin_function).
        decision = await asyncio.shield(running.done)
        async with aclosing(self.carry_out(decision)) as actions:
            async for action in actions:
                yield action

    async def _round(self) -> Actions:
        """Run the function steps, then one request to the model and the tools that it calls."""
        async with aclosing(self._function_steps()) as actions:
            async for action in actions:
                yield action
        if self._over:
            return
        given_up = self._failures >= self._settings.max_failures
        next_actions = self._give_up() if given_up else self._model_round()
        async with aclosing(next_actions) as actions:
            async for action in actions:
                yield action

    async def _function_steps(self) -> Actions:
        """Run the function step that the call stands on, and those that it leads to."""
        conversation = self._conversation
        for _ in range(self._settings.max_function_steps):
            here = conversation.position
            function = conversation.function_step
            if function is None or here == self._stuck:
                return
            async with aclosing(self.call_function(function, {})) as actions:
                async for action in actions:
                    yield action
            if self._over:
                return
            if conversation.position == here:
                self._stuck = here
                log.error("function_step_without_transition", flow=here.flow, step=here.step)
        if conversation.function_step is not None:
            log.error("function_steps_without_end", flow=conversation.position.flow)
            self._stuck = conversation.position

    async def _model_round(self) -> Actions:
        conversation = self._conversation
        # A filter's function may provoke the same phrase again: after max_filter_hits the answer is spoken unfiltered.
        answer = new_answer(conversation, filtered=self._hits < self._settings.max_filter_hits)
        request = build_request(conversation, retrieved_topics(conversation.project, conversation.topics))
        async with aclosing(self._ask(answer, request)) as actions:
            async for action in actions:
                yield action
        self._conversation.model_failures = self._conversation.model_failures + 1 if answer.error is not None else 0
        if answer.error is not None:
            next_actions = self._give_up()
        elif answer.hit is not None:
            next_actions = self._filtered(answer)
        elif answer.calls:
            next_actions = self._call_tools(answer.calls, request.toolset)
        elif self._said:
            next_actions = self.carry_out(Decision(utterance=""))
        else:
            next_actions = self._give_up()
        async with aclosing(next_actions) as actions:
            async for action in actions:
                yield action

    async def _ask(self, answer: Answer, request: ModelRequest) -> Actions:
        """Send the request and say the sentences as they come. A provider's failure is left in `answer.error`."""
        loop = asyncio.get_running_loop()
        wait = self._begin_wait()
        if wait is not None:
            yield wait
        try:
            async with aclosing(stream_sentences(self._dialogue.model, answer, request)) as sentences:
                async for sentence in sentences:
                    if wait is not None:
                        yield WaitEnded(wait.number)
                        wait = None
                    yield self._say(sentence, answer.utterance)
        except ProviderError as error:
            answer.error = f"{type(error).__name__}: {error}"
            log.error("model_failed", error=answer.error)
        for finding in answer.refused:
            log.warning("sentence_refused", rule=finding.rule)
            await self._conversation.write_metric(REFUSED_METRIC, finding.rule)
        while (event := self._conversation.next_event()) is not None:
            yield event
        if wait is not None:
            yield WaitEnded(wait.number)
        yield answer.answered(loop.time())

    def _begin_wait(self) -> WaitStarted | None:
        """Return the action that starts the fillers for a wait for the model; None where there are no fillers."""
        conversation, fillers = self._conversation, self._conversation.fillers
        if not fillers.phrases or conversation.channel != "voice":
            return None
        control = fillers.control(self._dialogue.random)
        if control is None:
            return None
        conversation.waits += 1
        return WaitStarted(-conversation.waits, control)

    def _say(self, text: str, utterance: int | None = None, channel: str = "speech") -> Say:
        # The history has the words before they are played; `FlowAgent.heard` shortens it after an interruption.
        self._conversation.history.agent(text, utterance)
        self._said = True
        return Say(text, interruptible(self._conversation), channel)

    async def _give_up(self) -> Actions:
        """Say that something went wrong and listen; after too many failed turns in a row, end the call."""
        if self._conversation.model_failures >= self._settings.max_model_failures:
            self._over = True
            log.error("call_given_up", failures=self._conversation.model_failures)
            yield self._say(self._settings.failure_utterance)
            yield HangUp(EndReason.ERROR)
            return
        decision = Decision(utterance=self._settings.fallback_utterance)
        async with aclosing(self.carry_out(decision)) as actions:
            async for action in actions:
                yield action

    async def _filtered(self, answer: Answer) -> Actions:
        """Run the function of the phrase filter that cut the answer; without one, the turn ends."""
        assert answer.hit is not None
        self._hits += 1
        rule = answer.hit.filter
        log.info("phrase_filtered", filter=rule.name, function=rule.function)
        function = self._conversation.project.functions.get(rule.function or "")
        if function is not None:
            # The model sees the call as its own, so that the result has a place in the history.
            call = self._new_call(ToolCall("", function.name, "{}"))
            self._conversation.history.called((call,))
            next_actions = self.call_function(function, {}, call.id)
        elif self._said:
            next_actions = self.carry_out(Decision(utterance=""))
        else:
            return
        async with aclosing(next_actions) as actions:
            async for action in actions:
                yield action

    def _new_call(self, call: ToolCall) -> ToolCall:
        """Give a tool call an identifier that is unique in this call: providers number each answer from the start."""
        self._conversation.calls += 1
        return replace(call, id=f"call_{self._conversation.calls}")

    async def _call_tools(self, calls: list[ToolCall], toolset: Toolset) -> Actions:
        """Execute tool calls in order, until one ends the turn or moves the call; the history says of the others that
        they were not executed.
        """
        numbered = tuple(self._new_call(call) for call in calls)
        self._conversation.history.called(numbered)
        self._stopped = False
        for call in numbered:
            async with aclosing(self._call_tool(call, toolset)) as actions:
                async for action in actions:
                    yield action
            if self._stopped:
                return

    async def _call_tool(self, call: ToolCall, toolset: Toolset) -> Actions:
        arguments, target, history = _arguments(call), toolset.find(call.name), self._conversation.history
        if arguments is None:
            history.answered(call.id, "Error: the arguments are not a JSON object.")
        elif target is None:
            log.warning("function_not_found", name=call.name)
            history.answered(call.id, self._conversation.project.experimental.prompts.function_not_found)
        elif isinstance(target, ProjectFunction):
            # smart_vad: a caller who goes on speaking closes this generator here, before the function has run.
            await asyncio.sleep(seconds_before_function(self._conversation, target))
            async with aclosing(self.call_function(target, arguments, call.id)) as actions:
                async for action in actions:
                    yield action
        else:
            decision = await implicit_decision(self._dialogue, target, arguments)
            self._dialogue.apply_decision(decision)
            history.answered(call.id, decision.content)
            async with aclosing(self.carry_out(decision)) as actions:
                async for action in actions:
                    yield action


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return a tool call's arguments; None where the model did not write a JSON object."""
    try:
        value = json.loads(call.arguments or "{}")
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
