"""A worker pool that runs project code in threads of this process, for tests on a virtual clock.

Thread and event loop never run at the same time: the loop waits while the thread runs, and the thread waits while the
loop handles a message, an answer or a sleep. `time.sleep` in project code takes time on the loop's clock,
so a slow function takes virtual seconds and can run past its deadline. Any other blocking call blocks the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import SupportsIndex

from callagent import workers
from callagent.errors import CallagentError, FunctionTimeout, WorkerDied

_real_sleep = time.sleep
_UNWIND_TRIES = 100
"""How often `Abandoned` is raised in code that catches it, before its thread is given up."""


class Abandoned(BaseException):
    """Raised in a function that ran past its deadline, at its next message, ask or sleep."""


@dataclass(frozen=True, slots=True)
class _Answered:
    answer: workers.Plain


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


@dataclass(frozen=True, slots=True)
class _Sent:
    message: workers.Plain


@dataclass(frozen=True, slots=True)
class _Slept:
    seconds: float


class _Thread:
    """One request in a thread that runs only while `resume()` waits for it. It is the session's channel.

    The two queues pass control between loop and thread, so that only one of them runs at a time.
    """

    def __init__(self) -> None:
        self._to_loop: SimpleQueue[_Answered | _Raised | _Sent | _Slept] = SimpleQueue()
        self._to_thread: SimpleQueue[object] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, session: workers.Session, request: workers.Plain) -> _Answered | _Raised | _Sent | _Slept:
        """Run the request until the thread needs the loop for the first time, and return what for."""
        self._thread = threading.Thread(target=self._run, args=(session, request), daemon=True)
        return self.resume(None)

    def resume(self, value: object) -> _Answered | _Raised | _Sent | _Slept:
        """Let the thread go on with `value` (an exception is raised there) until it needs the loop; return what for."""
        assert self._thread is not None
        with _virtual_sleep():
            if self._thread.ident is None:
                self._thread.start()
            else:
                self._to_thread.put(value)
            return self._to_loop.get()

    def unwind(self, event: _Answered | _Raised | _Sent | _Slept) -> None:
        """End the thread, which waits at `event`."""
        # `except Exception` in project code does not catch `Abandoned`; a bare `except` does, so it is raised again.
        for _ in range(_UNWIND_TRIES):
            if isinstance(event, (_Answered, _Raised)):
                return
            event = self.resume(Abandoned())

    def send(self, message: workers.Plain) -> None:
        self._hand_over(_Sent(message))

    def ask(self, message: workers.Plain) -> object:
        return self._hand_over(_Sent(message))

    def sleep(self, seconds: float) -> None:
        self._hand_over(_Slept(seconds))

    def _hand_over(self, event: _Sent | _Slept) -> object:
        """Pass control to the loop, and return the value with which it resumes the thread."""
        self._to_loop.put(event)
        value = self._to_thread.get()
        if isinstance(value, BaseException):
            raise value
        return value

    def _run(self, session: workers.Session, request: workers.Plain) -> None:
        _local.thread = self
        try:
            answer = session.handle(request)
        except BaseException as error:  # the loop raises it as `WorkerDied`
            self._to_loop.put(_Raised(error))
        else:
            self._to_loop.put(_Answered(answer))


# `_local.thread` is the request that runs in the calling thread; other threads, such as the loop's, really sleep.
_local = threading.local()


def _sleep(seconds: float | SupportsIndex, /) -> None:
    thread: _Thread | None = getattr(_local, "thread", None)
    if thread is None:
        _real_sleep(seconds)
    else:
        thread.sleep(float(seconds))


@contextmanager
def _virtual_sleep() -> Iterator[None]:
    """Replace `time.sleep` by `_sleep` while project code runs or is imported.

    The import is included because `from time import sleep` keeps the function that it finds.
    """
    time.sleep = _sleep
    try:
        yield
    finally:
        time.sleep = _real_sleep


def _import_runtime(project: workers.ProjectRuntime) -> workers.Runtime:
    with _virtual_sleep():
        return workers.find_runtime(project)()


class _SessionChannel:
    """The channel of a session, which leads to the thread that runs now. Messages outside of a run are dropped."""

    def __init__(self) -> None:
        self.thread: _Thread | None = None

    def send(self, message: workers.Plain) -> None:
        if self.thread is not None:
            self.thread.send(message)

    def ask(self, message: workers.Plain) -> object:
        if self.thread is None:
            raise workers.AskFailed("project code can only ask while a request runs")
        return self.thread.ask(message)


class InProcessLease:
    """A `Lease` whose project code runs in this process."""

    def __init__(self, runtime: workers.Runtime, context: workers.Plain) -> None:
        self._runtime = runtime
        self._context = context
        self._checkpoint: dict[str, bytes] = {}
        self._channel = _SessionChannel()
        self._session = runtime.open(context, {}, self._channel)
        self._closed = False

    async def run(self, request: workers.Plain, *, timeout: float, on_message: workers.OnMessage) -> workers.Plain:
        if self._closed:
            raise WorkerDied("the lease is closed")
        if self._channel.thread is not None:
            raise RuntimeError("a lease runs one request at a time")
        thread = _Thread()
        self._channel.thread = thread
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                answer = await self._exchange(thread, request, on_message)
        except TimeoutError:
            # A `TimeoutError` may also come from `on_message`; then the deadline has not expired.
            if not deadline.expired():
                raise
            # A new session goes on from the last checkpoint, as after a worker was killed.
            self._replace_session()
            raise FunctionTimeout(f"no answer within {timeout:g} s") from None
        finally:
            self._channel.thread = None
        workers.merge_checkpoint(self._checkpoint, answer.pop("checkpoint", {}))
        return answer

    async def close(self) -> None:
        self._closed = True

    async def _exchange(self, thread: _Thread, request: workers.Plain, on_message: workers.OnMessage) -> workers.Plain:
        event = thread.start(self._session, request)
        try:
            while not isinstance(event, (_Answered, _Raised)):
                if isinstance(event, _Slept):
                    await asyncio.sleep(event.seconds)
                    value: object = None
                else:
                    value = await _deliver(event.message, on_message)
                event = thread.resume(value)
        finally:
            # The thread of a cancelled request would otherwise wait for ever at its message or sleep.
            thread.unwind(event)
        if isinstance(event, _Raised):
            self._replace_session()
            raise WorkerDied(f"{type(event.error).__name__}: {event.error}") from event.error
        return event.answer

    def _replace_session(self) -> None:
        self._channel = _SessionChannel()
        self._session = self._runtime.open(self._context, dict(self._checkpoint), self._channel)


async def _deliver(message: workers.Plain, on_message: workers.OnMessage) -> object:
    """Hand a message to `on_message` and return its answer; for an ask, a `CallagentError` becomes an `AskFailed`."""
    try:
        returned = on_message(message)
        result = await returned if inspect.isawaitable(returned) else returned
    except CallagentError as error:
        if not message.get("ask"):
            raise
        return workers.AskFailed(str(error) or type(error).__name__)
    return result if message.get("ask") else None


class InProcessPool:
    """A `WorkerPool` for one project, in this process."""

    def __init__(self, runtime: workers.ProjectRuntime) -> None:
        self._project = runtime
        self._runtime: workers.Runtime | None = None

    async def lease(self, context: workers.Plain) -> InProcessLease:
        if self._runtime is None:
            self._runtime = _import_runtime(self._project)
        return InProcessLease(self._runtime, context)

    async def reload(self) -> None:
        """Import the project anew for the leases to come."""
        self._runtime = _import_runtime(self._project)

    async def close(self) -> None:
        self._runtime = None
