"""A session of the Session API that is held as a call: its agent as the call drives it, its outputs for the client.

The client says when the session starts, so there is no greeting before that; it carries out the app's client
functions; and where the agent would give the caller away, the session ends and the client is told where to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
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
from callagent.agents.cx.session_api.session import CxSession, tool_answers
from callagent.agents.cx.session_api.turn_outputs import TurnOutputs
from callagent.agents.kernel import PromptPosition
from callagent.agents.protocol import AgentProject, AgentRecord, CallerTurn, HandoffFailed, MetricWriter
from callagent.call_info import NO_HEADERS, CallInfo, EndReason

TOOL_ANSWERS: Final = "<context>tool responses</context>"
"""What the caller's turn says where a client has answered tool calls."""
UNTIL_FIRST: Final = 60.0
"""Seconds that a client may take until it says something first."""
Outlet = Callable[[dict[str, Any]], None]
"""Takes an output of the session. Returns at once."""


class SpokenSession:
    """Implements `agents.protocol.Agent`. Whoever opened the session closes it."""

    def __init__(self, session: CxSession, put: Outlet) -> None:
        self._session = session
        self._agent = session.agent
        self._put = put
        self._turn: TurnOutputs | None = None
        """The one whose last output is still owed."""
        self._answers: list[Any] = []

    async def start(self) -> AsyncIterator[Action]:
        yield Listen(ListenSettings(no_input_timeout=UNTIL_FIRST))

    async def reply(self, turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        self.close_turn()
        outputs = self._turn = self._session.begin_turn()
        async with aclosing(cast("Any", self._actions(turn))) as actions:
            async for action in actions:
                # A turn that was interrupted has had its last output.
                if self._turn is outputs:
                    self._tell(outputs, action)
                yield HangUp(EndReason.HANDOFF) if isinstance(action, Handoff) else action

    def answer_tools(self, answers: Sequence[Any]) -> None:
        """A client's answers, for the turn that says `TOOL_ANSWERS`. Raises `InputRefused`."""
        self._answers += tool_answers(answers)["parts"]

    def close_turn(self) -> None:
        """All of the turn is heard, or it was interrupted: its last output, once."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._put(turn.last())

    @property
    def turn_index(self) -> Mapping[str, int]:
        """Of the turn that sound belongs to now; empty: to none."""
        return {} if self._turn is None else self._turn.index

    @property
    def end_metadata(self) -> dict[str, Any] | None:
        """What the client is told at the end; None: the agent has not ended the session."""
        return self._agent.end_metadata() if self._session.ended else None

    def heard(self, text: str, *, cut: bool) -> None:
        self._agent.heard(text, cut=cut)

    def filler_spoken(self, text: str) -> None:
        self._agent.filler_spoken(text)

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        return await self._agent.end(reason, attempt, headers)

    async def close(self) -> None:
        """The session may go on in another call, or as text."""

    def record(self) -> AgentRecord:
        return self._agent.record()

    def _actions(self, turn: CallerTurn | HandoffFailed) -> AsyncIterator[Action]:
        answers, self._answers = self._answers, []
        if answers and isinstance(turn, CallerTurn) and turn.text == TOOL_ANSWERS:
            return self._agent.answer({"role": "user", "parts": answers})
        if isinstance(turn, CallerTurn) and turn.text == SESSION_START:
            return self._agent.start()
        return self._agent.reply(turn)

    def _tell(self, turn: TurnOutputs, action: Action) -> None:
        match action:
            case Say(text=text):
                self._put(turn.said(text))
            case FunctionEnded() | ModelAnswered():
                turn.note(action)
            case Listen():
                self._tell_rest(turn)
            case HangUp() | Handoff():
                self._session.ended = True
                self._tell_rest(turn)

    def _tell_rest(self, turn: TurnOutputs) -> None:
        for payload in turn.payloads():
            self._put(payload)
        if asked := self._agent.asked_of_client():
            self._put({"toolCalls": {"toolCalls": asked}, **turn.index})


class SpokenProject:
    """Implements `agents.protocol.AgentProject` for one session."""

    def __init__(self, project: AgentProject, agent: SpokenSession) -> None:
        self.name = project.name
        self._project = project
        self._agent = agent

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
        """Nothing is its own."""
