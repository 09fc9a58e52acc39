"""The agent of one call of an app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from callagent.agents.actions import Action, Handoff, HangUp, Listen
from callagent.agents.cx.engine.ambient_sound import ambience
from callagent.agents.cx.engine.deferred_speech import HeldWords
from callagent.agents.cx.engine.platform_code import CxCode
from callagent.agents.cx.engine.telephony import LIVE_AGENT, as_bool
from callagent.agents.cx.engine.turn_effects import MarkedActionQueue, Stage
from callagent.agents.cx.engine.turn_spans import Spans
from callagent.agents.cx.format import CxApp, seconds_of
from callagent.agents.protocol import AgentRecord, CallerTurn, HandoffFailed
from callagent.agents.tree import (
    ActionQueue,
    Content,
    Conversation,
    Ending,
    ModelRequest,
    TreeAgent,
    TreeSettings,
    calls,
    responses,
    text_content,
)
from callagent.models.protocol import LanguageModel

SESSION_START = "<event>session start</event>"
NO_ACTIVITY = "<context>no user activity detected for {seconds} seconds.</context>"
_DEFAULT_INACTIVITY = 10.0
"""Seconds of silence until a silent turn, where the app says nothing."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What an app says of its calls."""

    inactivity: float
    barge_in: bool | None
    """None: the call's default."""
    keys: bool
    """Entries on the telephone's keys are taken where they are asked for."""
    fallback: str
    """What is said when a turn fails; empty: our own."""
    max_fallbacks: int
    """Failed turns in a row; one more ends the call. 0: no limit."""
    ends_on_error: bool
    escalates_on_error: bool


def call_settings(app: CxApp) -> CallSettings:
    audio = app.data.get("audioProcessingConfig") or {}
    errors = app.data.get("errorHandlingSettings") or {}
    fallback = errors.get("fallbackResponseConfig") or {}
    messages: Mapping[str, Any] = fallback.get("customFallbackMessages") or {}
    strategy = str(errors.get("errorHandlingStrategy") or "")
    barge_in = audio.get("bargeInConfig") or {}
    channel = app.data.get("defaultChannelProfile") or {}
    uninterrupted = as_bool(barge_in.get("disableBargeIn")) or as_bool(channel.get("disableBargeInControl"))
    return CallSettings(
        inactivity=seconds_of(audio.get("inactivityTimeout")) or _DEFAULT_INACTIVITY,
        barge_in=False if uninterrupted else None,
        keys=not as_bool(channel.get("disableDtmf")),
        fallback="" if strategy == "NONE" else str(messages.get(app.language) or next(iter(messages.values()), "")),
        max_fallbacks=int(fallback.get("maxFallbackAttempts") or 0) if strategy == "FALLBACK_RESPONSE" else 0,
        ends_on_error=strategy == "END_SESSION",
        escalates_on_error=as_bool((errors.get("endSessionConfig") or {}).get("escalateSession")),
    )


class CxAgent(TreeAgent):
    """Implements `agents.protocol.Agent`."""

    nested = True

    def __init__(
        self,
        app: CxApp,
        conversation: Conversation,
        code: CxCode,
        stage: Stage,
        model: LanguageModel,
        settings: TreeSettings,
        observe: Callable[[ModelRequest], None] | None = None,
        *,
        recording: str = "",
        variant: str = "",
    ) -> None:
        """`recording`: where below the folder of recordings the app wants the call's; `variant`: which of several apps
        the call got."""
        more: dict[str, Any] = {} if observe is None else {"observe": observe}
        super().__init__(app.name, conversation, code, model, settings, **more)
        self._stage = stage
        self._tools = code
        self._call = call_settings(app)
        self._ambience = ambience(app.data)
        self._failures = 0
        self._recording = recording
        self._variant = variant

    async def start(self) -> AsyncIterator[Action]:
        """The app hears that the session starts; what it answers is the greeting."""
        if (sound := self._ambience) is not None:
            yield sound
        async for action in self.answer(text_content("user", SESSION_START)):
            yield action

    async def run_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """A tool's result outside of any turn; None: there is no such tool that is code."""
        return await self._tools.run_tool(name, arguments)

    def set_variables(self, variables: Mapping[str, Any]) -> None:
        """Of the session, from outside; the next turn's code and model see them."""
        self.conversation.state.apply(variables)

    def take_payloads(self) -> list[Any]:
        """What the last turn showed beside its words; taken once."""
        return self._stage.take_payloads()

    def spans(self) -> Spans:
        """Of the running turn."""
        return self._stage.spans

    def end_metadata(self) -> dict[str, Any]:
        """What whoever goes on is told at the end."""
        return dict(self._stage.end_arguments)

    def asked_of_client(self) -> list[dict[str, Any]]:
        """Calls of the client's own functions in the last turn, which it is to answer."""
        events = self.conversation.events[self._turn_began :]
        asked = {
            call["id"]: call for event in events for call in calls(event.content) if call["id"] in event.long_running
        }
        done = {each["id"] for event in events for each in responses(event.content)}
        return [
            {"id": key, "displayName": call["name"], "args": dict(call.get("args") or {})}
            for key, call in asked.items()
            if key not in done
        ]

    def record(self) -> AgentRecord:
        record = super().record()
        record.metrics = list(self._stage.metrics)
        record.recording = self._recording
        record.variant = self._variant or None
        return record

    def _caller_content(self, turn: CallerTurn | HandoffFailed) -> Content:
        content = super()._caller_content(turn)
        if isinstance(turn, HandoffFailed) or turn.text or turn.digits:
            return content
        return text_content("user", NO_ACTIVITY.format(seconds=f"{self._call.inactivity:g}"))

    async def _run(
        self, outbox: ActionQueue, invocation_id: str, content: Content, decide: Callable[[Ending], None]
    ) -> None:
        self._stage.open(outbox, decide)
        self._tools.words = HeldWords(MarkedActionQueue(outbox, self._stage))
        await super()._run(self._tools.words, invocation_id, content, decide)
        self._failures = self._failures + 1 if self.failure is not None else 0
        spent = 0 < self._call.max_fallbacks < self._failures
        if self.failure is not None and (self._call.ends_on_error or spent):
            escalates = self._call.ends_on_error and self._call.escalates_on_error
            self._stage.end_arguments = {"reason": "error", "session_escalated": escalates}
            decide(Handoff(LIVE_AGENT, "error", "bye") if escalates else HangUp())

    def _ending(self) -> Ending:
        ending = super()._ending()
        if not isinstance(ending, Listen):
            return ending
        given = ending.settings
        silence = self._call.inactivity if given.no_input_timeout is None else given.no_input_timeout
        barge_in = self._call.barge_in if given.barge_in is None else given.barge_in
        digits = given.digits if self._call.keys else None
        return Listen(replace(given, no_input_timeout=silence, barge_in=barge_in, digits=digits))
