"""Which request an inference process works on next. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum

from callagent.speech.local import wire


class Urgency(IntEnum):
    """Lower goes first."""

    NOW = 0
    """Somebody waits in silence for it."""
    SOON = 1
    """Somebody will, or may."""
    FIRST = 2
    """The first words of an utterance: they decide whether the agent goes on speaking."""
    PARTIAL = 3
    """May be dropped."""


class Job:
    """One request, made when its turn comes, so that it holds what is known then."""

    __slots__ = ("answered", "due", "make", "number", "urgency")

    def __init__(
        self,
        urgency: Urgency,
        make: Callable[[int], wire.Request],
        answered: Callable[[wire.Answer | None], None],
        due: float,
    ) -> None:
        self.urgency = urgency
        self.make = make
        self.answered = answered
        """Called once, unless the job was cancelled; None: the process died or the deadline passed."""
        self.due = due
        """Instant after which nobody waits for it; once it is being worked on, after which it hangs."""
        self.number = 0


class Jobs:
    """The jobs that wait, and the few that the process works on."""

    def __init__(self, at_once: int, partials: int, longest: float) -> None:
        self._at_once = at_once
        self._partials = partials
        """Partial transcripts that may wait; finals always may."""
        self._longest = longest
        """Seconds of work on one job; a process that takes more hangs."""
        self._waiting: list[tuple[int, int, Job]] = []
        self._live: dict[int, Job] = {}
        self._running: dict[int, Job] = {}
        self._cancelled: set[int] = set()
        self._count = 0
        self.dropped = 0
        """Partials refused since the start."""

    def add(self, job: Job) -> bool:
        """False: dropped, because enough partials wait."""
        if job.urgency is Urgency.PARTIAL and self._waiting_partials() >= self._partials:
            self.dropped += 1
            return False
        self._push(job)
        return True

    def hasten(self, job: Job, urgency: Urgency) -> None:
        """Move a waiting job forward; one that is being worked on stays as it is."""
        if job.number in self._live and urgency < job.urgency:
            del self._live[job.number]
            job.urgency = urgency
            self._push(job)

    def cancel(self, job: Job) -> None:
        """Nobody wants the answer."""
        self._live.pop(job.number, None)
        if self._running.get(job.number) is job:
            self._cancelled.add(job.number)

    def take(self, now: float) -> tuple[int, Job] | None:
        """The next job to send, with its number; None: nothing waits, or the process has enough to do."""
        if len(self._running) >= self._at_once:
            return None
        while self._waiting:
            number = heapq.heappop(self._waiting)[1]
            job = self._live.pop(number, None)
            if job is not None and job.due >= now:
                job.due = now + self._longest
                self._running[number] = job
                return number, job
            if job is not None:
                job.answered(None)
        return None

    def answer(self, number: int, answer: wire.Answer | None) -> None:
        """The process answered (None: it did not) the job `number`."""
        job = self._running.pop(number, None)
        if job is None:
            return
        if number in self._cancelled:
            self._cancelled.remove(number)
        else:
            job.answered(answer)

    def abandon(self) -> None:
        """The process died: what it worked on has no answer."""
        for number in list(self._running):
            self.answer(number, None)

    def expire(self, now: float) -> bool:
        """Answer waiting jobs whose deadline passed; True if one that runs is over its own."""
        for number, job in list(self._live.items()):
            if job.due < now:
                del self._live[number]
                job.answered(None)
        return any(job.due < now for job in self._running.values())

    def clear(self) -> None:
        """Answer all with nothing."""
        self.abandon()
        for job in list(self._live.values()):
            job.answered(None)
        self._live.clear()
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        return not self._live and not self._running

    def _waiting_partials(self) -> int:
        return sum(job.urgency is Urgency.PARTIAL for job in self._live.values())

    def _push(self, job: Job) -> None:
        self._count += 1
        job.number = self._count
        self._live[job.number] = job
        heapq.heappush(self._waiting, (job.urgency, job.number, job))
