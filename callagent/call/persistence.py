"""What remains of a call: its record and metrics in the store, and the run of its end function.

Every step that waits for the store or for the agent is bounded in time, and its exceptions are contained: a store that
fails or stalls costs the record, never the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from callagent.agents import Agent
from callagent.call.recorder import Recorder
from callagent.call.state import END_FUNCTION_ATTEMPTS, CallSettings
from callagent.call_info import EndReason
from callagent.log import Logger
from callagent.records import RecordWriter


class Persistence:
    """Writes one call to the store."""

    def __init__(self, store: RecordWriter, recorder: Recorder, settings: CallSettings, log: Logger) -> None:
        self._store = store
        self._recorder = recorder
        self._settings = settings
        self._log = log
        self._metrics = 0
        """How many metrics were written: with the call's identifier the key of the next one."""

    async def opened(self) -> None:
        """Write the first record, so that a call is known even if the server is killed during it."""
        await self.bounded("record", self._settings.first_record, self._store.opened, self._recorder.record)

    async def metric(self, name: str, value: Any) -> None:
        """Write a metric. It is durable on return, unless the store fails: then the project's function goes on."""
        self._metrics += 1
        arguments = (self._recorder.record.id, self._metrics, name, value)
        await self.bounded("metric", self._settings.metric, self._store.metric, *arguments)

    def progressed(self, agent: Agent | None) -> None:
        """Have the record so far written when there is time; it is what remains if the server is killed."""
        if agent is not None:
            self.record_agent(agent)
        self.contained("record", self._store.progressed, self._recorder.record)

    def record_agent(self, agent: Agent) -> None:
        """Put the agent's state into the record."""
        self.contained("agent_record", lambda: self._recorder.agent(agent.record()))

    async def end_function(self, agent: Agent, reason: EndReason) -> None:
        """Run the end function of a call whose start function began; a second time if the first does not reach its end.

        The store is told of each attempt before it begins, so that the next server knows whether one is missing.
        """
        self._recorder.record.end_function = "failed"
        self.contained("record", self._write_hang_up, agent)
        for attempt in range(1, END_FUNCTION_ATTEMPTS + 1):
            attempted = (self._recorder.record.id, attempt)
            await self.bounded("end_attempt", self._settings.first_record, self._store.end_attempted, *attempted)
            try:
                async with asyncio.timeout(self._settings.end_function):
                    done = await agent.end(reason, attempt, self._recorder.record.hang_up_headers)
            except TimeoutError:
                done = False
            except Exception:
                # The boundary of an agent: one that breaks its promise not to raise has failed to end.
                self._log.exception("end_failed", attempt=attempt)
                done = False
            if done:
                self._recorder.record.end_function = "done"
                return
            self._log.warning("end_function_failed", attempt=attempt)

    def _write_hang_up(self, agent: Agent) -> None:
        """Write how the call ended: if this server is killed now, the next one runs the end function from it."""
        self._recorder.agent(agent.record())
        self._store.progressed(replace(self._recorder.record, in_progress=True, ended_at=None))

    async def ended(self) -> None:
        """Write the final record."""
        record = self._recorder.record
        await self.bounded("record", self._settings.closing, self._store.ended, record)
        self._log.info("call_ended", reason=record.end_reason, seconds=record.total_duration, turns=record.num_turns)

    async def bounded(
        self, what: str, seconds: float, step: Callable[..., Awaitable[object]], *arguments: object
    ) -> None:
        """Wait for `step(*arguments)`, but no longer than `seconds`. Never raises: the next step has to be done too."""
        try:
            async with asyncio.timeout(seconds):
                await step(*arguments)
        except TimeoutError:
            self._log.error("took_too_long", what=what, seconds=seconds)
        except Exception:
            # The boundary of a call: whatever this step met, the steps after it still close what they own.
            self._log.exception("step_failed", what=what)

    def contained(self, what: str, step: Callable[..., object], *arguments: object) -> None:
        """Call `step(*arguments)`, which does not wait. Never raises, for the same reason."""
        try:
            step(*arguments)
        except Exception:
            # The boundary of a call, as in `bounded`.
            self._log.exception("step_failed", what=what)
