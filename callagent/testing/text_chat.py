"""Text conversations with an agent, without a leg and without speech, for people, tests and other programs."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NotRequired, TextIO, TypedDict, final

from callagent import agents
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.json_values import JsonObject, JsonValue, text_at
from callagent.records import CallRecord, FunctionRecord, TurnEntry

MAX_END_ATTEMPTS = 2
"""Runs of an end function; as after a telephone call, one that fails is tried once more."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The settings of one text conversation."""

    caller: str | None = None
    callee: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    environment: str = "sandbox"
    started: datetime | None = None
    """None: now."""
    as_json: bool = False


class FunctionRow(TypedDict):
    """A function that ran in a turn."""

    name: str
    arguments: JsonObject
    result: JsonValue
    error: str | None
    duration_ms: float


class HandoffRow(TypedDict):
    """The handoff with which the agent ended the call."""

    destination: str
    reason: str
    method: str
    number: str | None
    headers: Mapping[str, str]


class EndRow(TypedDict):
    """Why the call ended."""

    reason: str
    handoff: HandoffRow | None


@final
class TurnRow(TypedDict):
    """One turn of a conversation, as it is shown and tested."""

    turn: int
    user: str
    agent: list[str]
    """The agent's utterances."""
    fillers: list[str]
    flow: str | None
    step: str | None
    functions: list[FunctionRow]
    listen: Mapping[str, object] | None
    """The agent's `ListenSettings` for the caller's next turn."""
    ended: EndRow | None
    """None: the call goes on."""
    attachments: NotRequired[list[object]]
    """This and the next two fields are for a screen."""
    suggestions: NotRequired[list[object]]
    call_actions: NotRequired[list[object]]


@final
class RecordRow(TypedDict):
    """The record of a conversation."""

    record: JsonObject


@dataclass(slots=True)
class _Turn:
    number: int
    user: str
    agent: list[str] = field(default_factory=list)
    fillers: list[str] = field(default_factory=list)
    functions: list[agents.FunctionEnded] = field(default_factory=list)
    listen: Mapping[str, object] | None = None
    ended: EndRow | None = None
    attachments: list[object] = field(default_factory=list)
    suggestions: list[object] = field(default_factory=list)
    call_actions: list[object] = field(default_factory=list)
    sentences: int = 0
    """Number of utterances since the last function or model answer: the sentences of the answer being streamed."""

    def join_sentences(self) -> None:
        """Join the sentences of a streamed answer into one utterance."""
        if self.sentences > 1:
            self.agent[-self.sentences :] = [" ".join(self.agent[-self.sentences :])]
        self.sentences = 0


class TextCall:
    """One conversation as text: `start` begins it, `say` plays a turn, `close` ends it."""

    def __init__(self, agent: agents.Agent, info: CallInfo, options: ChatOptions) -> None:
        self._agent = agent
        self._info = info
        self._turns: list[_Turn] = []
        self._filler_task: asyncio.Task[None] | None = None
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

    async def start(self) -> TurnRow:
        """Play turn 0: the start function and the greeting."""
        return await self._run(_Turn(0, ""), self._agent.start)

    async def say(self, text: str) -> TurnRow:
        """Play the next turn; an empty text means that the caller is silent."""
        turn = _Turn(len(self._turns), text)
        return await self._run(turn, partial(self._agent.reply, agents.CallerTurn(text=text)))

    async def close(self) -> RecordRow:
        """Run the end function, and return the record."""
        ended = self._turns[-1].ended if self._turns else None
        reason = EndReason(ended["reason"]) if ended else EndReason.CALLER_HANGUP
        record = self._record
        record.end_reason, record.in_progress = reason.value, False
        record.end_function = "failed"
        for attempt in range(1, MAX_END_ATTEMPTS + 1):
            if await self._agent.end(reason, attempt):
                record.end_function = "done"
                break
        await self._agent.close()
        self._fill_record(ended)
        return {"record": record.to_json()}

    async def _run(self, turn: _Turn, run_agent: Callable[[agents.Emit], Awaitable[None]]) -> TurnRow:
        self._turns.append(turn)
        started = datetime.now(UTC).isoformat()
        try:
            await run_agent(partial(self._perform, turn))
        finally:
            # After an error, too: otherwise a filler could come in the next turn.
            self._stop_fillers()
        # Text counts as heard as soon as it is written.
        self._agent.heard(" ".join(turn.agent), cut=False)
        position = self._agent.record()
        self._record.turns.append(_turn_entry(turn, started, position.flow, position.step))
        return _turn_row(turn, position.flow, position.step)

    def _perform(self, turn: _Turn, action: agents.Action) -> None:
        match action:
            case agents.Say(text):
                self._stop_fillers()
                turn.agent.append(text)
                turn.sentences += 1
            # A streamed answer ends here, and its sentences become one utterance.
            case agents.ModelAnswered():
                turn.join_sentences()
            case agents.FunctionStarted(latency=latency):
                turn.sentences = 0
                if latency is not None:
                    self._filler_task = asyncio.create_task(self._speak_fillers(turn, latency))
            case agents.WaitStarted(latency=latency):
                self._filler_task = asyncio.create_task(self._speak_fillers(turn, latency))
            case agents.WaitEnded():
                self._stop_fillers()
            case agents.FunctionEnded():
                self._stop_fillers()
                turn.sentences = 0
                turn.functions.append(action)
            case agents.Listen(settings):
                turn.listen = asdict(settings)
            case agents.Attach():
                turn.attachments += action.attachments
                turn.suggestions += action.suggestions
                turn.call_actions += action.call_actions
            case agents.HangUp(reason):
                turn.ended = {"reason": reason.value, "handoff": None}
            case agents.Handoff():
                turn.ended = {"reason": EndReason.HANDOFF.value, "handoff": _handoff_row(action)}

    async def _speak_fillers(self, turn: _Turn, latency: agents.LatencyControl) -> None:
        """Say fillers when they are due; as text has no length, each one lasts as long as the project declares."""
        await asyncio.sleep(latency.delay_before_start)
        for response in latency.responses:
            turn.fillers.append(response.text)
            self._agent.filler_spoken(response.text)
            await asyncio.sleep(response.duration + latency.silence_after_each)

    def _stop_fillers(self) -> None:
        if self._filler_task is not None:
            self._filler_task.cancel()
            self._filler_task = None

    def _fill_record(self, ended: EndRow | None) -> None:
        agent_record, record = self._agent.record(), self._record
        handoff = ended["handoff"] if ended else None
        record.ended_at = datetime.now(UTC).isoformat()
        record.project_id = agent_record.project
        record.variant_name, record.language = agent_record.variant, agent_record.language
        record.flow, record.step = agent_record.flow, agent_record.step
        record.messages = agent_record.messages
        record.state, record.metrics = agent_record.state, agent_record.metrics
        record.entities = agent_record.entities
        record.num_turns = len(self._turns) - 1
        record.num_silences = sum(not turn.user for turn in self._turns[1:])
        record.handoff = handoff is not None
        if handoff is not None:
            record.handoff_destination, record.handoff_reason = handoff["destination"], handoff["reason"]


async def run_chat(
    project: agents.AgentProject, messages: Iterable[str] | None, options: ChatOptions, out: TextIO = sys.stdout
) -> EndReason | None:
    """Say `messages` (None: lines from standard input) as the caller and write what the agent does.

    Returns the reason for which the agent ended the call; None if the messages ran out, or the user left, before that.
    Raises what the agent raises, after the end function has run.
    """
    lines = _read_lines(out) if messages is None else _iterate(messages)
    while True:
        restart, reason = await _run_call(project, lines, options, out)
        if not restart:
            return reason


async def _run_call(
    project: agents.AgentProject, lines: AsyncIterator[str], options: ChatOptions, out: TextIO
) -> tuple[bool, EndReason | None]:
    """Hold one conversation; return whether the user asked for another, and why this one ended."""
    show = _show_json if options.as_json else _show_text

    def write(row: TurnRow | RecordRow) -> None:
        show(row, out.write)
        out.flush()

    call = await open_text_call(project, options)
    restart = False
    # Whatever happens, the end function runs and the record is shown.
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
    return restart, EndReason(text_at(record["record"], "end_reason")) if call.ended else None


async def open_text_call(project: agents.AgentProject, options: ChatOptions) -> TextCall:
    """Return a conversation that has not begun."""
    info = CallInfo(
        call_id=f"chat-{uuid.uuid4().hex[:12]}",
        direction="inbound",
        caller=options.caller,
        callee=options.callee,
        wire="text",
        started=options.started or datetime.now(UTC),
        headers=options.headers,
    )
    return TextCall(await project.open(info, _discard_metric), info, options)


async def _discard_metric(name: str, value: object) -> None:
    """Do nothing: a chat's metrics are only in its record."""


async def _iterate(messages: Iterable[str]) -> AsyncIterator[str]:
    for message in messages:
        yield message


async def _read_lines(out: TextIO) -> AsyncIterator[str]:
    while True:
        out.write("> ")
        out.flush()
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            return
        yield line.rstrip("\n")


def _handoff_row(action: agents.Handoff) -> HandoffRow:
    return {
        "destination": action.destination,
        "reason": action.reason,
        "method": action.method,
        "number": action.number,
        "headers": dict(action.headers),
    }


def _turn_row(turn: _Turn, flow: str | None, step: str | None) -> TurnRow:
    row: TurnRow = {
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
    }
    # Only agents that also answer on a screen have these.
    if turn.attachments:
        row["attachments"] = turn.attachments
    if turn.suggestions:
        row["suggestions"] = turn.suggestions
    if turn.call_actions:
        row["call_actions"] = turn.call_actions
    return row


def _turn_entry(turn: _Turn, started: str, flow: str | None, step: str | None) -> TurnEntry:
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


def _show_json(row: TurnRow | RecordRow, write: Callable[[str], object]) -> None:
    write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _show_text(row: TurnRow | RecordRow, write: Callable[[str], object]) -> None:
    if "record" in row:
        write(f"[{row['record']['end_reason']}]\n")
        return
    for filler in row["fillers"]:
        write(f"({filler})\n")
    for text in row["agent"]:
        write(f"{text}\n")
    if row["ended"] and row["ended"]["handoff"]:
        write(f"[handed to {row['ended']['handoff']['destination']}]\n")
