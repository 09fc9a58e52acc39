"""The agent of one call: a tree of agents with the app's code, its greeting, its silences and its error handling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from callagent.agents import tree
from callagent.agents.actions import Handoff, HangUp, Listen
from callagent.agents.cx.engine.platform_code import PlatformCode
from callagent.agents.cx.engine.telephony import LIVE_AGENT, ambient_sound, read_call_settings
from callagent.agents.cx.engine.turn_effects import DeferredSpeech, TurnEffects, TurnSpans
from callagent.agents.cx.format import CxApp
from callagent.agents.protocol import AgentRecord, CallerTurn, Emit, HandoffFailed
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject
from callagent.models import LanguageModel

SESSION_START = "<event>session start</event>"
"""Text that stands for the caller's words when a call begins, for the model and callbacks."""
NO_ACTIVITY = "<context>no user activity detected for {seconds} seconds.</context>"
"""Text that stands for the caller's words when the caller is silent."""


def _observe_nothing(request: tree.ModelRequest) -> None:
    """Do nothing."""


class CxAgent(tree.TreeAgent):
    """The `agents.protocol.Agent` of an app."""

    # An agent that transfers waits for the other agent's end, and its own `after_agent` callbacks run after that.
    nested = True

    def __init__(
        self,
        app: CxApp,
        conversation: tree.Conversation,
        code: PlatformCode,
        effects: TurnEffects,
        model: LanguageModel,
        settings: tree.TreeSettings,
        observe: Callable[[tree.ModelRequest], None] | None = None,
        *,
        recording: str = "",
        variant: str = "",
    ) -> None:
        """`recording`: the folder of the call's recording below that of all recordings; `variant`: the version that the
        call got where traffic is split."""
        super().__init__(app.name, conversation, code, model, settings, observe or _observe_nothing)
        self._effects = effects
        self._platform_code = code
        self._call_settings = read_call_settings(app)
        self._ambient_sound = ambient_sound(app.data)
        self._consecutive_failures = 0
        self._recording = recording
        self._variant = variant

    async def start(self, emit: Emit) -> None:
        """Tell the app that the session starts; its answer is the greeting."""
        # The sound begins before the greeting, so that it does not set in while the agent speaks.
        if (sound := self._ambient_sound) is not None:
            emit(sound)
        await self.answer(tree.text_content("user", SESSION_START), emit)

    async def run_tool(self, name: str, arguments: JsonObject) -> object:
        """Run a tool outside of any turn and return its result; None if the app has no such tool of its own."""
        return await self._platform_code.run_tool(name, arguments)

    def set_variables(self, variables: Mapping[str, object]) -> None:
        """Set variables of the session from outside; code and model see them from the next turn on."""
        self.conversation.state.apply(variables)

    def take_payloads(self) -> Sequence[JsonValue]:
        """Return the payloads for the client's screen; each payload once."""
        return self._effects.take_payloads()

    def spans(self) -> TurnSpans:
        """Return the spans of the running turn."""
        return self._effects.spans

    def end_metadata(self) -> MutableJsonObject:
        """Return the parameters of `end_session`, its reason and whether the session was escalated."""
        return dict(self._effects.end_arguments)

    def client_tool_calls(self) -> list[JsonValue]:
        """Return the calls of client functions in the last turn that the client has not answered yet."""
        # Calls of earlier turns were reported with those turns.
        events = self.conversation.events[self._turn_start :]
        called = {
            call["id"]: call
            for event in events
            for call in tree.calls(event.content)
            if call["id"] in event.long_running
        }
        answered = {each["id"] for event in events for each in tree.responses(event.content)}
        return [
            {"id": key, "displayName": call["name"], "args": dict(call.get("args") or {})}
            for key, call in called.items()
            if key not in answered
        ]

    def record(self) -> AgentRecord:
        record = super().record()
        record.metrics = list(self._effects.metrics)
        record.recording = self._recording
        record.variant = self._variant or None
        return record

    def _caller_content(self, turn: CallerTurn | HandoffFailed) -> tree.Content:
        content = super()._caller_content(turn)
        if isinstance(turn, HandoffFailed) or turn.text or turn.digits:
            return content
        # Apps expect the platform's own text for a silence, not that of the tree.
        return tree.text_content("user", NO_ACTIVITY.format(seconds=f"{self._call_settings.inactivity_timeout:g}"))

    async def _run(
        self, emit: Emit, invocation_id: str, content: tree.Content, decide: Callable[[tree.Ending], None]
    ) -> None:
        self._effects.begin_turn(emit, decide)
        # Words that a callback may replace are held back first; words are marked when they are spoken.
        speech = DeferredSpeech(lambda action: emit(self._effects.mark_speech(action)))
        self._platform_code.speech = speech
        await super()._run(speech.emit, invocation_id, content, decide)
        # A failed turn may not have reached the `after_agent` callback: its held-back words are said now. Those of an
        # interrupted turn, which does not get here, are never said.
        speech.release()
        self._consecutive_failures = self._consecutive_failures + 1 if self.failure is not None else 0
        settings = self._call_settings
        # The tree says the fallback for each failed turn; after more than `max_fallbacks` in a row the call ends.
        exhausted = 0 < settings.max_fallbacks < self._consecutive_failures
        if self.failure is not None and (settings.ends_on_error or exhausted):
            escalates = settings.ends_on_error and settings.escalates_on_error
            self._effects.end_arguments = {"reason": "error", "session_escalated": escalates}
            decide(Handoff(LIVE_AGENT, "error", "bye") if escalates else HangUp())

    def _ending(self) -> tree.Ending:
        ending = super()._ending()
        if not isinstance(ending, Listen):
            return ending
        # Settings that the turn's code made take precedence over the app's.
        listen, settings = ending.settings, self._call_settings
        silence = settings.inactivity_timeout if listen.no_input_timeout is None else listen.no_input_timeout
        barge_in = settings.barge_in if listen.barge_in is None else listen.barge_in
        digits = listen.digits if settings.takes_keys else None
        return Listen(replace(listen, no_input_timeout=silence, barge_in=barge_in, digits=digits))
