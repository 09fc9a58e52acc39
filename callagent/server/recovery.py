"""Ends the calls that a killed server left open: runs their end functions and completes and publishes their records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from callagent.agents import Agent, AgentProject, AgentRecord, ResumableProject
from callagent.call import END_FUNCTION_ATTEMPTS
from callagent.call_info import CallInfo, EndReason
from callagent.json_values import MutableJsonObject
from callagent.log import get_logger
from callagent.records import CallRecord, LostCall, RecordWriter, heartbeat_owners, owner_of, remove_heartbeat

log = get_logger(__name__)

MAX_PARALLEL_ENDS: Final = 4
"""How many end functions of lost calls run at the same time, beside those of new calls."""
RETRY_SECONDS: Final = 2.0
"""Time between two attempts to read the lost calls from the store."""
OPENING_SECONDS: Final = 30.0
"""Limit for opening an agent, and again for closing it."""


class Recovery:
    """The recovery of lost calls, which runs once, when a server starts.

    It may be killed and repeated at any point: each attempt at an end function is stored before it begins, and the
    final record is stored last.
    """

    def __init__(
        self,
        writer: RecordWriter,
        project_of: Callable[[str, str], AgentProject | None],
        end_seconds: float,
        ended: Callable[[CallRecord], Awaitable[None]],
    ) -> None:
        """`project_of` finds a project by name and environment; `ended` is called with each final record."""
        self._writer = writer
        self._project_of = project_of
        self._end_seconds = end_seconds
        self._ended = ended
        self._free = asyncio.Semaphore(MAX_PARALLEL_ENDS)

    async def run(self) -> None:
        """Wait until the store works and has read what the spool holds, then end all lost calls."""
        lost = await self._claim()
        await asyncio.gather(*(self._end(call) for call in lost))
        if lost:
            log.warning("calls_recovered", calls=len(lost))
        await asyncio.to_thread(_remove_dead_heartbeats, self._writer)

    async def _claim(self) -> list[LostCall]:
        """Claim the calls of dead servers for this one and return them; repeat until the store has raised no error."""
        while True:
            await self._writer.wait_until_working()
            with log.contain("calls_not_recovered", again_in=RETRY_SECONDS):
                return await self._writer.store.claim_lost()
            await asyncio.sleep(RETRY_SECONDS)

    async def _end(self, lost: LostCall) -> None:
        record = lost.record
        _complete(record, lost.alive_at)
        async with self._free:
            if lost.end_attempts < END_FUNCTION_ATTEMPTS:
                # The record of the call is written even if this fails.
                with log.contain("end_function_failed", call=record.id):
                    await self._run_end_function(lost)
        # Stored before it is published: the receiver of a webhook may fetch the record at once.
        await self._writer.ended(record)
        await self._ended(record)

    async def _run_end_function(self, lost: LostCall) -> None:
        record, attempt = lost.record, lost.end_attempts + 1
        project = self._project_of(record.project_id, record.environment)
        if not isinstance(project, ResumableProject):
            return
        # Written first: if this server is killed too, the next one knows that an attempt has begun.
        record.end_function = "failed"
        await self._writer.end_attempted(record.id, attempt)

        async def write_metric(name: str, value: object) -> None:
            await self._writer.metric(record.id, lost.next_sequence(name), name, value)

        async with asyncio.timeout(OPENING_SECONDS):
            agent = await project.resume(_call_info(record), write_metric, _agent_record(record))
        try:
            async with asyncio.timeout(self._end_seconds):
                if await agent.end(EndReason(record.end_reason), attempt, record.hang_up_headers):
                    record.end_function = "done"
            _copy_effects(record, agent)
        finally:
            async with asyncio.timeout(OPENING_SECONDS):
                await agent.close()


def _complete(record: CallRecord, seen: str) -> None:
    """Complete the record. A call that had not ended ends at `seen`, when its server last gave a sign of life."""
    started = datetime.fromisoformat(record.started_at)
    detail = "the server was killed after the call"
    if record.end_reason is None:
        detail = "the server was killed during the call"
        ended = datetime.fromisoformat(max(seen, record.started_at, *_known_instants(record)))
        record.total_duration = round(max(0.0, (ended - started).total_seconds()), 3)
        record.end_reason = EndReason.SERVER_KILLED.value
        record.num_turns = max(0, len(record.turns) - 1)
    # A call that had ended keeps its own reason and duration; only its final record was missing.
    record.in_progress = False
    moment = (started + timedelta(seconds=record.total_duration)).isoformat(timespec="milliseconds")
    record.ended_at = moment.replace("+00:00", "Z")
    record.errors.append({"what": "server", "detail": detail, "at": record.total_duration})


def _known_instants(record: CallRecord) -> list[str]:
    return [record.answered_at or "", *(turn.user_input_datetime for turn in record.turns)]


def _call_info(record: CallRecord) -> CallInfo:
    return CallInfo(
        call_id=record.id,
        direction=record.direction,
        caller=record.from_number,
        callee=record.to_number,
        wire=record.wire,
        started=datetime.fromisoformat(record.started_at).astimezone(UTC),
        peer_call_id=record.peer_call_id,
    )


def _agent_record(record: CallRecord) -> AgentRecord:
    return AgentRecord(
        project=record.project_id,
        flow=record.flow,
        step=record.step,
        state=dict(record.state),
        metrics=[dict(metric) for metric in record.metrics],
        variant=record.variant_name,
        language=record.language,
        handoff=_handoff(record),
    )


def _handoff(record: CallRecord) -> MutableJsonObject | None:
    if record.handoff_destination is None:
        return None
    return {"destination": record.handoff_destination, "reason": record.handoff_reason}


def _copy_effects(record: CallRecord, agent: Agent) -> None:
    """Copy what the end function has changed into the record."""
    after = agent.record()
    record.state, record.metrics = after.state, after.metrics
    record.messages = [*record.messages, *after.messages]


def _remove_dead_heartbeats(writer: RecordWriter) -> None:
    """Remove the heartbeat files of dead servers, whose calls have all been ended."""
    path = writer.store.path
    for owner in heartbeat_owners(path):
        # An owner is a process id with a start time: if the id belongs to a new process, the start time differs.
        if owner != owner_of(int(owner.partition(":")[0])):
            try:
                remove_heartbeat(path, owner)
            except OSError as error:
                log.warning("heartbeat_not_removed", error=str(error))
