"""An agent as text: no leg, no speech. For trying a project out, for tests and for other programs."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from callagent.agents import (
    Action,
    Agent,
    AgentProject,
    Attach,
    CallerTurn,
    Emit,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HangUp,
    LatencyControl,
    Listen,
    ModelAnswered,
    Say,
    WaitEnded,
    WaitStarted,
)
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.records import CallRecord, FunctionRecord, TurnEntry

END_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class ChatOptions:
    caller: str | None = None
    callee: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    environment: str = "sandbox"
    started: datetime | None = None
    """None: now."""
    as_json: bool = False


@dataclass(slots=True)
class _Turn:
    number: int
    user: str
    agent: list[str] = field(default_factory=list)
    fillers: list[str] = field(default_factory=list)
    functions: list[FunctionEnded] = field(default_factory=list)
    listen: Mapping[str, Any] | None = None
    ended: dict[str, Any] | None = None
    shown: dict[str, list[Any]] = field(default_factory=dict)
    """For a screen: attachments, suggestions, call actions."""
    sentences: int = 0
    """Said since the last function or answer of the model: the sentences of one streamed answer."""

    def join_sentences(self) -> None:
        """A model's answer comes sentence by sentence; it is one utterance."""
        if self.sentences > 1:
            self.agent[-self.sentences :] = [" ".join(self.agent[-self.sentences :])]
        self.sentences = 0


class TextCall:
    """One conversation; `say` is a turn, `close` ends it."""

    def __init__(self, agent: Agent, info: CallInfo, options: ChatOptions) -> None:
        self._agent = agent
        self._info = info
        self._turns: list[_Turn] = []
        self._filling: asyncio.Task[None] | None = None
        self._record = CallRecord(
            id=info.call_id,
            environment=options.environment,
            channel="CHAT",
            wire=info.wire,
            from_number=info.caller,
            to_number=info.callee,
            started_at=info.started.isoformat(),
        )

    @property
    def ended(self) -> bool:
        return bool(self._turns) and self._turns[-1].ended is not None

    async def start(self) -> dict[str, Any]:
        """Turn 0: the start function and the greeting."""
        return await self._run(_Turn(0, ""), self._agent.start)

    async def say(self, text: str) -> dict[str, Any]:
        """The next turn; an empty text is a silent one."""
        turn = _Turn(len(self._turns), text)
        return await self._run(turn, partial(self._agent.reply, CallerTurn(text=text)))

    async def close(self) -> dict[str, Any]:
        """The end function, then the record."""
        ended = self._turns[-1].ended if self._turns else None
        reason = EndReason(ended["reason"]) if ended else EndReason.CALLER_HANGUP
        record = self._record
        record.end_reason, record.in_progress = reason.value, False
        record.end_function = "failed"
        for attempt in range(1, END_ATTEMPTS + 1):
            if await self._agent.end(reason, attempt):
                record.end_function = "done"
                break
        await self._agent.close()
        self._fill_record(ended)
        return {"record": record.to_json()}

    async def _run(self, turn: _Turn, run_agent: Callable[[Emit], Awaitable[None]]) -> dict[str, Any]:
        self._turns.append(turn)
        started = datetime.now(UTC).isoformat()
        try:
            await run_agent(partial(self._take, turn))
        finally:
            self._stop_filling()
        self._agent.heard(" ".join(turn.agent), cut=False)
        known = self._agent.record()
        self._record.turns.append(_entry(turn, started, known.flow, known.step))
        return _as_json(turn, known.flow, known.step)

    def _take(self, turn: _Turn, action: Action) -> None:
        match action:
            case Say(text):
                self._stop_filling()
                turn.agent.append(text)
                turn.sentences += 1
            case ModelAnswered():
                turn.join_sentences()
            case FunctionStarted(latency=latency):
                turn.sentences = 0
                if latency is not None:
                    self._filling = asyncio.create_task(self._fill(turn, latency))
            case WaitStarted(latency=latency):
                self._filling = asyncio.create_task(self._fill(turn, latency))
            case WaitEnded():
                self._stop_filling()
            case FunctionEnded():
                self._stop_filling()
                turn.sentences = 0
                turn.functions.append(action)
            case Listen(settings):
                turn.listen = asdict(settings)
            case Attach():
                for name, values in asdict(action).items():
                    if values:
                        turn.shown.setdefault(name, []).extend(values)
            case HangUp(reason):
                turn.ended = {"reason": reason.value, "handoff": None}
            case Handoff():
                turn.ended = {"reason": EndReason.HANDOFF.value, "handoff": _handoff(action)}

    async def _fill(self, turn: _Turn, latency: LatencyControl) -> None:
        """Fillers as their times come; text has no length, so each takes what the project expects of it."""
        await asyncio.sleep(latency.delay_before_start)
        for response in latency.responses:
            turn.fillers.append(response.text)
            self._agent.filler_spoken(response.text)
            await asyncio.sleep(response.duration + latency.silence_after_each)

    def _stop_filling(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            self._filling = None

    def _fill_record(self, ended: Mapping[str, Any] | None) -> None:
        known, record = self._agent.record(), self._record
        handoff = ended["handoff"] if ended else None
        record.ended_at = datetime.now(UTC).isoformat()
        record.project_id = known.project
        record.variant_name, record.language = known.variant, known.language
        record.flow, record.step = known.flow, known.step
        record.messages = known.messages
        record.state, record.metrics, record.entities = known.state, known.metrics, known.entities
        record.num_turns = len(self._turns) - 1
        record.num_silences = sum(not turn.user for turn in self._turns[1:])
        record.handoff = handoff is not None
        if handoff is not None:
            record.handoff_destination, record.handoff_reason = handoff["destination"], handoff["reason"]


async def run_chat(
    project: AgentProject, messages: Iterable[str] | None, options: ChatOptions, out: TextIO = sys.stdout
) -> EndReason | None:
    """Play `messages` (None: ask for them on standard input) and write what the agent does.

    The reason the call ended; None when the messages did. Raises what the agent raises, after the end function ran.
    """
    lines = _typed(out) if messages is None else _given(messages)
    while True:
        restart, reason = await _one_call(project, lines, options, out)
        if not restart:
            return reason


async def _one_call(
    project: AgentProject, lines: AsyncIterator[str], options: ChatOptions, out: TextIO
) -> tuple[bool, EndReason | None]:
    """One conversation; the first of the answer: the user asked for another."""
    show = _show_json if options.as_json else _show_text

    def write(row: Mapping[str, Any]) -> None:
        show(row, out.write)
        out.flush()

    call = await open_text_call(project, options)
    restart = False
    try:
        write(await call.start())
        while not call.ended:
            line = await anext(lines, "/exit")
            if line.strip() in ("/exit", "/restart"):
                restart = line.strip() == "/restart"
                break
            write(await call.say(line))
    finally:
        record = await call.close()
        write(record)
    return restart, EndReason(record["record"]["end_reason"]) if call.ended else None


async def open_text_call(project: AgentProject, options: ChatOptions) -> TextCall:
    """A conversation that has not begun."""
    info = CallInfo(
        call_id=f"chat-{uuid.uuid4().hex[:12]}",
        direction="inbound",
        caller=options.caller,
        callee=options.callee,
        wire="text",
        started=options.started or datetime.now(UTC),
        headers=options.headers,
    )
    return TextCall(await project.open(info, _keep_nothing), info, options)


async def _keep_nothing(name: str, value: Any) -> None:
    """Metrics of a chat are in its record only."""


async def _given(messages: Iterable[str]) -> AsyncIterator[str]:
    for message in messages:
        yield message


async def _typed(out: TextIO) -> AsyncIterator[str]:
    while True:
        out.write("> ")
        out.flush()
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            return
        yield line.rstrip("\n")


def _handoff(action: Handoff) -> dict[str, Any]:
    return {
        "destination": action.destination,
        "reason": action.reason,
        "method": action.method,
        "number": action.number,
        "headers": dict(action.headers),
    }


def _as_json(turn: _Turn, flow: str | None, step: str | None) -> dict[str, Any]:
    return {
        "turn": turn.number,
        "user": turn.user,
        "agent": turn.agent,
        "fillers": turn.fillers,
        "flow": flow,
        "step": step,
        "functions": [
            {
                "name": function.name,
                "arguments": dict(function.arguments),
                "result": function.result,
                "error": function.error,
                "duration_ms": round(function.duration_ms, 3),
            }
            for function in turn.functions
        ],
        "listen": turn.listen,
        "ended": turn.ended,
        **turn.shown,
    }


def _entry(turn: _Turn, started: str, flow: str | None, step: str | None) -> TurnEntry:
    functions = [
        FunctionRecord(
            number=function.number,
            name=function.name,
            arguments=dict(function.arguments),
            result=function.result,
            error=function.error,
            duration_ms=function.duration_ms,
            logs=[dict(entry) for entry in function.logs],
            state_changes=dict(function.state_changes),
            transition=dict(function.transition) if function.transition else None,
        )
        for function in turn.functions
    ]
    return TurnEntry(
        number=turn.number,
        user_input=turn.user,
        user_input_datetime=started,
        agent_response=" ".join(turn.agent),
        agent_response_datetime=datetime.now(UTC).isoformat(),
        is_silence=turn.number > 0 and not turn.user,
        flow=flow,
        step=step,
        functions=functions,
    )


def _show_json(row: Mapping[str, Any], write: Callable[[str], Any]) -> None:
    write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _show_text(row: Mapping[str, Any], write: Callable[[str], Any]) -> None:
    if "record" in row:
        write(f"[{row['record']['end_reason']}]\n")
        return
    for filler in row["fillers"]:
        write(f"({filler})\n")
    for text in row["agent"]:
        write(f"{text}\n")
    if row["ended"] and row["ended"]["handoff"]:
        write(f"[handed to {row['ended']['handoff']['destination']}]\n")
