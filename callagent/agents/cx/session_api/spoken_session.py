"""A session of the Session API with audio, which is held as a call: its agent for the call, its outputs for the client.

It differs from a telephone call in three ways. The client says when the session starts, so there is no greeting before
that; the client carries out the app's client functions; and where the agent would transfer the caller, the session ends
and the client is told where to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from callagent.agents.actions import (
    Action,
    FunctionEnded,
    Handoff,
    HangUp,
    Listen,
    ListenSettings,
    ModelAnswered,
    Say,
)
from callagent.agents.cx.engine import SESSION_START
from callagent.agents.cx.session_api.session import CxSession, TurnOutputs, tool_answers
from callagent.agents.kernel import ProjectGraph, PromptPosition
from callagent.agents.protocol import AgentProject, AgentRecord, CallerTurn, HandoffFailed, MetricWriter
from callagent.call_info import NO_HEADERS, CallInfo, EndReason

TOOL_ANSWERS: Final = "<context>tool responses</context>"
"""The text of the caller's turn that stands for a client's answers to tool calls."""
MAX_START_SECONDS: Final = 60.0
"""Seconds that a client may take before its first input."""
PutOutput = Callable[[dict[str, Any]], None]
"""Sends an output of the session to the client. Returns at once."""


class SpokenSession:
    """The `agents.protocol.Agent` of a session with audio. The session outlives the call and is closed elsewhere."""

    def __init__(self, session: CxSession, put: PutOutput) -> None:
        self._session = session
        self._agent = session.agent
        self._put = put
        self._turn: TurnOutputs | None = None
        """The turn whose last output has not been sent yet."""
        self._answers: list[Any] = []

    async def start(self) -> AsyncIterator[Action]:
        yield Listen(ListenSettings(no_input_timeout=MAX_START_SECONDS))

    async def reply(self, turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        self.close_turn()
        outputs = self._turn = self._session.begin_turn()
        async with aclosing(cast("Any", self._actions(turn))) as actions:
            async for action in actions:
                # A turn that was interrupted has had its last output: nothing may follow it.
                if self._turn is outputs:
                    self._put_action(outputs, action)
                yield HangUp(EndReason.HANDOFF) if isinstance(action, Handoff) else action

    def answer_tools(self, answers: Sequence[Any]) -> None:
        """Keep a client's answers for the turn whose text is `TOOL_ANSWERS`. Raises `InputRefused`."""
        self._answers += tool_answers(answers)["parts"]

    def close_turn(self) -> None:
        """Send the turn's last output, once: all of the turn has been heard, or it was interrupted."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._put(turn.last_output())

    @property
    def turn_index(self) -> Mapping[str, int]:
        """The index of the turn that audio belongs to now; empty: it belongs to none."""
        return {} if self._turn is None else self._turn.index

    @property
    def end_metadata(self) -> dict[str, Any] | None:
        """The metadata of `endSession`; None: the agent has not ended the session."""
        return self._agent.end_metadata() if self._session.ended else None

    def heard(self, text: str, *, cut: bool) -> None:
        self._agent.heard(text, cut=cut)

    def filler_spoken(self, text: str) -> None:
        self._agent.filler_spoken(text)

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        return await self._agent.end(reason, attempt, headers)

    async def close(self) -> None:
        """Close nothing: the session may go on in another call, or as text."""

    def record(self) -> AgentRecord:
        return self._agent.record()

    def _actions(self, turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        answers, self._answers = self._answers, []
        if answers and isinstance(turn, CallerTurn) and turn.text == TOOL_ANSWERS:
            return self._agent.answer({"role": "user", "parts": answers})
        if isinstance(turn, CallerTurn) and turn.text == SESSION_START:
            return self._agent.start()
        return self._agent.reply(turn)

    def _put_action(self, turn: TurnOutputs, action: Action) -> None:
        """Send the client what an action means for it."""
        match action:
            case Say(text=text):
                self._put(turn.text_output(text))
            case FunctionEnded() | ModelAnswered():
                turn.note(action)
            case Listen():
                self._put_rest(turn)
            case HangUp() | Handoff():
                self._session.ended = True
                self._put_rest(turn)

    def _put_rest(self, turn: TurnOutputs) -> None:
        """Send the payloads and client tool calls of a turn that ends."""
        for payload in turn.payload_outputs():
            self._put(payload)
        if client_calls := self._agent.client_tool_calls():
            self._put({"toolCalls": {"toolCalls": client_calls}, **turn.index})


class SpokenProject:
    """The `agents.protocol.AgentProject` of one session with audio: each call gets the session's agent."""

    def __init__(self, project: AgentProject, agent: SpokenSession) -> None:
        self.name = project.name
        self._project = project
        self._agent = agent

    async def prepare(self) -> None:
        """Do nothing: the project was prepared when it was opened."""

    def graph(self) -> ProjectGraph:
        return self._project.graph()

    def real_time_folder(self, environment: str) -> Path | None:
        return self._project.real_time_folder(environment)

    def phrases(self) -> Sequence[str]:
        return self._project.phrases()

    def pronounce(self, text: str, language: str | None) -> str:
        return self._project.pronounce(text, language)

    async def prompt_positions(
        self, at: datetime | None = None, state: Mapping[str, Any] | None = None
    ) -> list[PromptPosition]:
        return await self._project.prompt_positions(at, state)

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> SpokenSession:
        return self._agent

    async def close(self) -> None:
        """Close nothing: project and session are closed by their owners."""
