"""One call's conversation, worker and model, and how a function's answer is applied to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from callagent.agents.actions import (
    Attach,
    ControlRecording,
    DelayResponse,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    LatencyControl,
    SetLanguage,
    SetVoice,
    StepEntered,
    WaitStarted,
)
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Decision, HandoffRequest, Transition, decide, move
from callagent.agents.flows.engine.function_runner import FunctionAnswer, FunctionRunner
from callagent.agents.flows.engine.references import resolve_header, resolve_text
from callagent.agents.flows.engine.retrieval import TopicIndex
from callagent.agents.flows.format import ProjectFunction, background, filler_phrases, find_handoff
from callagent.agents.flows.senders import handoff_data
from callagent.log import get_logger
from callagent.models import LanguageModel, ModelSettings

log = get_logger(__name__)
DEFAULT_TEMPERATURE = 0.4
SURVEY_FLOWS = ("csat", "csat_flow", "csat_survey")


@dataclass(frozen=True, slots=True)
class RunningFunction:
    """A function in the worker: the action that tells of it, and the task that ends with its decision."""

    started: FunctionStarted
    done: asyncio.Task[Decision]


class Dialogue:
    """Owns the conversation and the function that runs now, which may outlive the turn that started it."""

    def __init__(
        self, conversation: Conversation, runner: FunctionRunner, model: LanguageModel, index: TopicIndex
    ) -> None:
        self.conversation = conversation
        self.runner = runner
        self.model = model
        self.index = index
        self._running: asyncio.Task[Decision] | None = None
        self._waits = 0
        self._random = random.Random(conversation.info.call_id)

    def begin_function(
        self,
        function: ProjectFunction,
        arguments: Mapping[str, Any],
        call_id: str | None = None,
        *,
        timeout: float | None = None,
    ) -> RunningFunction:
        """Start a function. It runs to its end and its effects are applied even if its turn is interrupted.

        `call_id` is the model's tool call that the result answers; None: the model did not call it.
        """
        conversation = self.conversation
        conversation.functions += 1
        number = conversation.functions
        # Owned here and awaited by settle(): an interrupted turn must not cancel its function.
        self._running = asyncio.create_task(self._run(function, arguments, number, call_id, timeout))
        started = FunctionStarted(number, function.name, dict(arguments), self._latency(function))
        return RunningFunction(started, self._running)

    def begin_wait(self) -> WaitStarted | None:
        """Return the action that starts the fillers for a wait for the model; None where there are no fillers."""
        conversation = self.conversation
        project = conversation.project
        fillers = filler_phrases(project.voice.fillers, project.experimental, conversation.language)
        control = fillers.control(self._random)
        if control is None or conversation.channel != "voice":
            return None
        self._waits += 1
        return WaitStarted(-self._waits, control)

    async def settle(self) -> None:
        """Wait for a function that an interrupted turn left running, at most until the function's deadline."""
        running = self._running
        if running is None:
            return
        # Unlike `await running`, wait() does not cancel the function when the waiting turn is interrupted too.
        await asyncio.wait({running})
        self._running = None
        if (error := running.exception()) is not None:
            log.error("function_lost", error=repr(error))

    async def _run(
        self,
        function: ProjectFunction,
        arguments: Mapping[str, Any],
        number: int,
        call_id: str | None,
        timeout: float | None,
    ) -> Decision:
        answer = await self.runner.run(function, self.conversation.vault.reveal(arguments), timeout=timeout)
        return self._apply(function, arguments, number, answer, call_id)

    def _latency(self, function: ProjectFunction) -> LatencyControl | None:
        control = function.latency
        if control is None:
            return None
        scope = self.conversation.scope()
        responses = [DelayResponse(resolve_text(r.text, scope), r.duration) for r in control.responses]
        if function.randomize:
            self._random.shuffle(responses)
        return LatencyControl(control.delay_before_start, control.silence_after_each, tuple(responses))

    def _apply(
        self,
        function: ProjectFunction,
        arguments: Mapping[str, Any],
        number: int,
        answer: FunctionAnswer,
        call_id: str | None,
    ) -> Decision:
        """Apply a function's answer in the order of the return protocol, without giving up control in between."""
        conversation = self.conversation
        if answer.error is not None:
            decision = Decision(content=f"Error: the function {function.name} failed: {answer.error}")
        else:
            decision = self._known_handoff(decide(answer.data))
        conversation.events.append(
            FunctionEnded(
                number=number,
                name=function.name,
                arguments=dict(arguments),
                result=answer.returned,
                error=answer.error,
                duration_ms=answer.duration_ms,
                logs=tuple(answer.logs),
                state_changes=answer.state_changes,
                transition=decision.transition.as_json() if decision.transition else None,
            )
        )
        if refused := self._apply_queued(answer.effects):
            decision = replace(decision, content="\n".join(filter(None, (decision.content, *refused))))
        self.apply_decision(self._with_survey(decision, answer.effects))
        if call_id is not None:
            conversation.history.answered(call_id, decision.content)
        elif decision.content:
            conversation.history.note(decision.content)
        return decision

    def apply_decision(self, decision: Decision) -> None:
        """Apply variant, language, voice and position; words, handoff and hang-up are left to the turn."""
        conversation = self.conversation
        if decision.variant in conversation.project.variants.attributes:
            conversation.variant = decision.variant
        if decision.language and decision.language != conversation.language:
            conversation.language = decision.language
            conversation.events.append(SetLanguage(decision.language))
        if decision.voice:
            conversation.voice = decision.voice
            provider, name = (str(decision.voice.get(key) or "") for key in ("provider", "provider_voice_id"))
            conversation.events.append(SetVoice(provider, name))
        self.follow(decision.transition)
        conversation.unfinished = decision if decision.ends_call else None

    def follow(self, transition: Transition) -> None:
        """Move to where a transition leads. One that leads nowhere is logged, and the call stays where it is."""
        conversation = self.conversation
        result = move(conversation.project, conversation.position, transition)
        if result.problem:
            log.error("transition_refused", problem=result.problem, flow=conversation.position.flow)
        if result.entered:
            log.debug("step_entered", old=str(conversation.position), new=str(result.position))
            conversation.position = result.position
            conversation.events.append(StepEntered(result.position.flow, result.position.step))

    async def handoff(self, request: HandoffRequest) -> Handoff:
        """Return the action of a handoff whose destination is known; note it in record and automatic metrics."""
        conversation = self.conversation
        target = find_handoff(conversation.project.handoffs, request.destination)
        destination = target.name if target else str(request.destination or "")
        reason = request.reason or destination
        scope = conversation.scope()
        headers = {**(dict(target.headers) if target else {}), **request.headers}
        resolved = {name: resolve_header(value, scope) for name, value in headers.items()}
        conversation.handoff = {"destination": destination, "reason": reason}
        shared = handoff_data(conversation.project.experimental.section("handoff_api"), conversation.state)
        if shared is not None:
            conversation.settings.outside.store_handoff(conversation.info.call_id, *shared)
        await conversation.write_metric("HANDOFF_TO", destination)
        await conversation.write_metric("HANDOFF_REASON", reason)
        return Handoff(
            destination=destination,
            reason=reason,
            method=request.method or (target.method if target else "bye"),
            number=request.number or (target.number if target else None),
            headers={name: text for name, text in resolved.items() if text is not None},
        )

    def model_settings(self) -> ModelSettings:
        """Return model, temperature and length: the step's model wins over variant, channel, step and flow settings."""
        conversation = self.conversation
        settings, step = conversation.position_settings, conversation.step
        name, parameters = settings.model_name, settings.inference_parameters
        experimental = conversation.project.experimental
        for overrides in experimental.model_overrides(conversation.channel_type, conversation.variant):
            name = str(overrides.get("provider_model_id") or name)
            parameters = {**parameters, **_inner(overrides, "inference_parameters")}
        if step is not None and step.model:
            name = step.model
        temperature, tokens = parameters.get("temperature"), parameters.get("max_tokens")
        return ModelSettings(
            model=conversation.settings.models.get(name, ""),
            temperature=float(temperature) if isinstance(temperature, int | float) else DEFAULT_TEMPERATURE,
            max_tokens=int(tokens) if isinstance(tokens, int) and tokens > 0 else None,
        )

    def _with_survey(self, decision: Decision, effects: Mapping[str, Any]) -> Decision:
        """Follow `conv.goto_csat_flow()` to the project's own survey flow; the platform's is not available here."""
        if not effects.get("goto_csat_flow") or decision.transition:
            return decision
        flows = self.conversation.project.flows.values()
        survey = next((flow.name for flow in flows if flow.folder in SURVEY_FLOWS), None)
        if survey is None:
            log.error("survey_flow_missing", remedy=f"the project needs a flow called one of {', '.join(SURVEY_FLOWS)}")
            return decision
        return replace(decision, transition=Transition(goto_flow=survey))

    def _known_handoff(self, decision: Decision) -> Decision:
        """Turn a handoff to an unknown destination into an error for the model, so that the call goes on."""
        request = decision.handoff
        if request is None or request.number or request.method == "bye":
            return decision
        if find_handoff(self.conversation.project.handoffs, request.destination) is not None:
            return decision
        log.error("handoff_unknown", destination=request.destination)
        return replace(decision, handoff=None, content=f"Error: there is no handoff '{request.destination}'.")

    def _apply_queued(self, effects: Mapping[str, Any]) -> list[str]:
        """Apply what a function queued beside its answer; return the refusals that the model is told."""
        conversation = self.conversation
        disabled, bias = effects.get("disabled_topics"), effects.get("asr_biasing")
        if disabled is not None:
            conversation.disabled_topics = tuple(disabled)
        if bias is not None:
            conversation.keywords = tuple(str(word) for word in bias.get("keywords") or ())
        track, shown = effects.get("background_track"), effects.get("shown")
        if track:
            conversation.events.append(background(track))
        if shown:
            conversation.events.append(
                Attach(shown.get("attachments") or (), shown.get("suggestions") or (), shown.get("call_actions") or ())
            )
        if effects.get("discard_recording"):
            conversation.events.append(ControlRecording("discard"))
        return conversation.queue_messages(effects)


def _inner(section: Mapping[str, Any], key: str | None) -> Mapping[str, Any]:
    value = section.get(key or "")
    return value if isinstance(value, dict) else {}
