"""The embedded turn model: Smart Turn in a process of its own. It hears intonation, not words; of any language."""

from __future__ import annotations

import asyncio

from callagent.speech.local import weights, wire
from callagent.speech.local.engine import Engine, Job, Urgency

LATEST = 0.5
"""Seconds: an opinion that comes later than the end of the silence is none."""


class LocalTurnModel:
    """Shared by all calls. Weak on telephone speech, so it only shortens or lengthens a silence."""

    def __init__(self) -> None:
        self.engine = Engine("callagent.speech.local.turn_process", wire.LoadTurnModel())

    async def start(self) -> None:
        """Returns when the model is loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_turn_model()
        await self.engine.start()

    async def finished(self, pcm: bytes) -> float | None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[wire.Answer | None] = loop.create_future()

        def answered(judged: wire.Answer | None) -> None:
            if not answer.done():
                answer.set_result(judged)

        job = Job(Urgency.NOW, lambda number: wire.Judge(number, pcm), answered, loop.time() + LATEST)
        self.engine.submit(job)
        try:
            async with asyncio.timeout(LATEST):
                judged = await answer
        except TimeoutError:
            return None
        finally:
            self.engine.cancel(job)
        return judged.probability if isinstance(judged, wire.Judged) else None

    async def close(self) -> None:
        await self.engine.close()
