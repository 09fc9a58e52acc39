"""The actions of one turn on their way to whoever drives the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Say

_AHEAD = 8
"""Actions that the turn may be ahead of what was taken: words must not be made faster than they can be stopped."""
_KEPT = 200


class Outbox:
    """Filled by the turn's task, emptied by `actions()`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Action | None] = asyncio.Queue(_AHEAD)
        self._closed = False
        self.spoke = False
        self.late: list[FunctionStarted | FunctionEnded] = []
        """What nobody has heard of because the turn was interrupted."""

    async def put(self, action: Action) -> None:
        self.spoke = self.spoke or isinstance(action, Say)
        if not self._closed:
            await self._queue.put(action)
        if self._closed:
            self._keep(action)

    async def finish(self) -> None:
        """Nothing more will come."""
        if not self._closed:
            await self._queue.put(None)

    async def actions(self) -> AsyncIterator[Action]:
        while (action := await self._queue.get()) is not None:
            yield action

    def close(self) -> None:
        """Nobody takes anything any more. Who waits in `put` goes on."""
        self._closed = True
        while not self._queue.empty():
            self._keep(self._queue.get_nowait())

    def _keep(self, action: Action | None) -> None:
        if isinstance(action, FunctionStarted | FunctionEnded) and len(self.late) < _KEPT:
            self.late.append(action)
