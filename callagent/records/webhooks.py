"""Events sent to other programs: signed, one after the other for each receiver, tried again when it does not answer.

The signature is HMAC-SHA256 over `<seconds>.<body>` in `X-Callagent-Signature: t=<seconds>,v1=<hexadecimal>`; the `id`
of an event stays the same however often it is tried.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from callagent.log import get_logger

if TYPE_CHECKING:
    import aiohttp

log = get_logger(__name__)

SIGNATURE: Final = "X-Callagent-Signature"
_MAX_QUEUED: Final = 1000
_SECONDS = 10.0
_WAITS: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
_CLOSING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    url: str
    secret: str = field(repr=False)
    events: Collection[str] = ("call.started", "call.ended")


def signature(secret: str, body: bytes, seconds: int) -> str:
    """The header's value for a body sent at a Unix second."""
    digest = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


class Webhooks:
    """`send` never waits; a receiver that stays away loses the events beyond the queue's bound, with a log line."""

    def __init__(self, receivers: Sequence[WebhookReceiver], waits: Sequence[float] = _WAITS) -> None:
        self._queues = [(one, asyncio.Queue[bytes](_MAX_QUEUED)) for one in receivers]
        self._waits = waits
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        if not self._queues:
            return
        import aiohttp

        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))
        for receiver, queue in self._queues:
            self._tasks.append(asyncio.create_task(self._deliver(receiver, queue), name=f"webhook {receiver.url}"))

    def send(self, event: str, data: Mapping[str, Any]) -> None:
        """Queue an event for every receiver that wants it."""
        wanted = [(receiver, queue) for receiver, queue in self._queues if event in receiver.events]
        if not wanted:
            return
        text = {"id": uuid.uuid4().hex, "type": event, "created_at": time.time(), "data": data}
        body = json.dumps(text, ensure_ascii=False, default=str).encode("utf-8", "replace")
        for receiver, queue in wanted:
            try:
                queue.put_nowait(body)
            except asyncio.QueueFull:
                log.error("webhook_lost", url=receiver.url, type=event)

    async def close(self) -> None:
        """Give what is queued a last chance, then stop."""
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                for _, queue in self._queues if self._tasks else ():
                    await queue.join()
        except TimeoutError:
            log.error("webhooks_not_delivered", events=sum(queue.qsize() for _, queue in self._queues))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    async def _deliver(self, receiver: WebhookReceiver, queue: asyncio.Queue[bytes]) -> None:
        while True:
            body = await queue.get()
            for wait in (*self._waits, None):
                if await self._post(receiver, body):
                    break
                if wait is None:
                    log.error("webhook_given_up", url=receiver.url)
                    break
                await asyncio.sleep(wait)
            queue.task_done()

    async def _post(self, receiver: WebhookReceiver, body: bytes) -> bool:
        """Whether the receiver has taken it, or never will (a 4xx)."""
        import aiohttp

        assert self._session is not None, "made by start"
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: signature(receiver.secret, body, int(time.time())),
        }
        try:
            async with self._session.post(receiver.url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("webhook_failed", url=receiver.url, error=str(error) or type(error).__name__)
            return False
        if 200 <= status < 300:
            return True
        log.warning("webhook_refused", url=receiver.url, status=status)
        return 400 <= status < 500 and status not in (408, 425, 429)
