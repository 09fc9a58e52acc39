"""Words of an agent whose callback may put others in their place: they wait until it has been asked."""

from __future__ import annotations

from callagent.agents.actions import Action, Say
from callagent.agents.tree import ActionQueue


class HeldWords(ActionQueue):
    """Passes everything on to the turn's outbox, words after a while."""

    def __init__(self, inner: ActionQueue) -> None:
        super().__init__()
        self._inner = inner
        self._holder = ""
        """The agent whose words wait; empty: none wait."""
        self._held: list[Say] = []

    async def put(self, action: Action) -> None:
        if self._holder and isinstance(action, Say):
            self._held.append(action)
        else:
            await self._inner.put(action)

    async def finish(self) -> None:
        await self.release()
        await self._inner.finish()

    async def begin(self, agent: str, *, hold: bool) -> None:
        """An agent speaks now; what another said before it has its time."""
        if agent != self._holder:
            await self.release()
        self._holder = agent if hold else ""

    async def release(self) -> None:
        held, self._held = self._held, []
        self._holder = ""
        for action in held:
            await self._inner.put(action)

    def drop(self) -> None:
        """Other words take their place."""
        self._held.clear()
        self._holder = ""
