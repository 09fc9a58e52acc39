"""Notifications of other programs about calls: signed webhooks, and a file with a line of JSON for every ended call.

A webhook is signed with HMAC-SHA256 over `<seconds>.<body>`, in `X-Callagent-Signature: t=<seconds>,v1=<hexadecimal>`.
Each receiver gets its events one after the other; while it does not answer, the event is sent again with the same `id`.
Neither way makes a call wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import queue
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callagent.json_values import JsonObject
from callagent.log import get_logger

if TYPE_CHECKING:
    import aiohttp

log = get_logger(__name__)

SIGNATURE: Final = "X-Callagent-Signature"
_MAX_EVENTS: Final = 1000
"""Events that wait for one receiver; further ones are lost."""
_ANSWER_SECONDS: Final = 10.0
"""Time limit of one request to a receiver."""
_RETRY_WAITS: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds before each further attempt; after the last one the event is given up."""
RETRY_SECONDS: Final = 1.0
"""Time between attempts to write a line while the file cannot be written."""
_MAX_LINES: Final = 1000
"""Lines that wait in memory; further ones are lost."""
_CLOSING_SECONDS: Final = 5.0
"""Time to deliver what waits when the server stops."""


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    """A URL that events are sent to, the secret for their signatures, and the types of these events."""

    url: str
    secret: str = field(repr=False)
    events: Collection[str] = ("call.started", "call.ended")


def signature(secret: str, body: bytes, seconds: int) -> str:
    """Return the header's value for a body sent at a Unix second."""
    # The time is signed with the body, so that a receiver can refuse a request that somebody sends again later.
    digest = hmac.new(secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


class Webhooks:
    """Sends events. A receiver that does not answer loses those beyond the queue's bound, with a log line for each."""

    def __init__(self, receivers: Sequence[WebhookReceiver], waits: Sequence[float] = _RETRY_WAITS) -> None:
        # Each receiver has a queue: it gets its events in their order, and one that does not answer delays no other.
        self._queues = [(one, asyncio.Queue[bytes](_MAX_EVENTS)) for one in receivers]
        self._waits = waits
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Begin to deliver. Does nothing if there are no receivers."""
        if not self._queues:
            return
        import aiohttp

        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS))
        for receiver, events in self._queues:
            self._tasks.append(asyncio.create_task(self._deliver(receiver, events), name=f"webhook {receiver.url}"))

    def send(self, event: str, data: JsonObject) -> None:
        """Queue an event for every receiver that wants it. Returns at once."""
        wanted = [(receiver, events) for receiver, events in self._queues if event in receiver.events]
        if not wanted:
            return
        text = {"id": uuid.uuid4().hex, "type": event, "created_at": time.time(), "data": data}
        body = json.dumps(text, ensure_ascii=False, default=str).encode("utf-8", "replace")
        for receiver, events in wanted:
            try:
                events.put_nowait(body)
            except asyncio.QueueFull:
                log.error("webhook_lost", url=receiver.url, type=event)

    async def close(self) -> None:
        """Wait at most `_CLOSING_SECONDS` until the queued events are delivered, then stop."""
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                for _, events in self._queues if self._tasks else ():
                    await events.join()
        except TimeoutError:
            log.error("webhooks_not_delivered", events=sum(events.qsize() for _, events in self._queues))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    async def _deliver(self, receiver: WebhookReceiver, events: asyncio.Queue[bytes]) -> None:
        while True:
            body = await events.get()
            for wait in (*self._waits, None):
                if await self._post(receiver, body):
                    break
                if wait is None:
                    log.error("webhook_given_up", url=receiver.url)
                    break
                await asyncio.sleep(wait)
            events.task_done()

    async def _post(self, receiver: WebhookReceiver, body: bytes) -> bool:
        """Send an event once. Return whether the receiver has accepted it, or refused it for good."""
        import aiohttp

        assert self._session is not None, "made by start"
        headers = {
            "Content-Type": "application/json",
            SIGNATURE: signature(receiver.secret, body, int(time.time())),
        }
        try:
            # A redirect would send the event, which holds people's words, to a server that the settings do not name.
            async with self._session.post(receiver.url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("webhook_failed", url=receiver.url, error=str(error) or type(error).__name__)
            return False
        if 200 <= status < 300:
            return True
        log.warning("webhook_refused", url=receiver.url, status=status)
        # A client error would be the same again, except "request timeout", "too early" and "too many requests".
        return 400 <= status < 500 and status not in (408, 425, 429)


class JsonLines:
    """Appends lines to a file, in a thread of its own.

    While the file cannot be written, `_MAX_LINES` at most wait in memory; further ones are lost and counted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES)
        self._lost = 0
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="json lines", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Queue a line. Returns at once."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            if not self._lost:
                log.error("json_lines_lost", path=str(self._path), waiting=_MAX_LINES)
            self._lost += 1

    async def close(self) -> None:
        """Write what waits, if that is possible within some seconds."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSING_SECONDS)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive() or not self._lines.empty():
            log.error("json_lines_not_written", path=str(self._path), lines=self._lines.qsize())

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            while not self._append(line):
                if self._stopping.wait(RETRY_SECONDS):
                    return

    def _append(self, line: str) -> bool:
        """Append a line to the file; return whether that was possible."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _append_whole(self._path, f"{line}\n".encode("utf-8", "replace"))
        except OSError as error:
            if not self._failing:
                log.error("json_lines_failing", path=str(self._path), error=str(error))
            self._failing = True
            return False
        if self._failing or self._lost:
            log.warning("json_lines_work_again", path=str(self._path), lost=self._lost)
        self._failing, self._lost = False, 0
        return True


def _append_whole(path: Path, line: bytes) -> None:
    """Add the whole line or, if it does not fit on the disk, nothing. Raises `OSError`."""
    # The file is opened for each line: if another program has moved it away, a new one of the same name is made.
    with path.open("ab", buffering=0) as file:
        written = 0
        try:
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            # The part that did fit is removed, so that the next attempt does not write the line behind a broken one.
            if written:
                file.truncate(file.tell() - written)
            raise
