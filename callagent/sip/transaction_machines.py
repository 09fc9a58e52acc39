"""The four transaction machines as tables, and the timers that run them (RFC 3261 §17, RFC 6026, RFC 4320).

A row maps (state, input) to (next state, effects). An input without a row in a state is absorbed. Timers belong to
states: entering a state starts the timers that have a row in it and do not run yet, and stops all others. There is no
clock here: the owner of the user agent asks when the next timer is due, and then calls it with the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count

from callagent.sip.message import Request, Response


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """The timer values of RFC 3261 §17.1.1.1, in seconds."""

    t1: float = 0.5
    """Estimated round-trip time, and the first interval between retransmissions."""
    t2: float = 4.0
    """Longest interval between retransmissions."""
    t4: float = 5.0
    """How long a message may live in the network."""
    d: float = 32.0
    """How long retransmitted responses to an INVITE that failed are absorbed (timer D)."""

    @property
    def timeout(self) -> float:
        """How long a response or an ACK is waited for (timers B, F, H)."""
        return 64 * self.t1


class Timer:
    """One timer; cancelling it twice does no harm."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[float], None]) -> None:
        self.when = when
        self.callback: Callable[[float], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """All timers of one user agent, ordered by time."""

    def __init__(self) -> None:
        # The number keeps timers of the same time in order, and spares the heap comparing the timers themselves.
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._sweep_at = 64

    def at(self, when: float, callback: Callable[[float], None]) -> Timer:
        """Return a timer; `handle` calls `callback(now)` once `now` is not before `when`."""
        timer = Timer(when, callback)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        self._drop_cancelled()
        return timer

    def next(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def handle(self, now: float) -> None:
        """Run the timers that are due, in order, including those that the callbacks start."""
        while (when := self.next()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[2]
            # Cleared first: its owner may cancel a timer that is running, and must not keep the callback alive.
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback(now)

    def __len__(self) -> int:
        return sum(1 for entry in self._heap if entry[2].callback is not None)

    def _drop_cancelled(self) -> None:
        # A cancelled timer of 32 s would keep its call alive for as long. Sweeping only when the heap has doubled costs
        # O(1) per timer on average.
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))


class State(Enum):
    __hash__ = object.__hash__  # Faster than the hash of the name; members are compared by identity anyway.

    CALLING = "calling"
    TRYING = "trying"
    PROCEEDING = "proceeding"
    COMPLETED = "completed"
    CONFIRMED = "confirmed"
    ACCEPTED = "accepted"
    TERMINATED = "terminated"


class Input(Enum):
    __hash__ = object.__hash__  # Faster than the hash of the name; members are compared by identity anyway.

    REQUEST = "request"
    """A retransmission of the request."""
    ACK = "ack"
    PROVISIONAL = "provisional"
    """A 1xx. A client receives it; the user of a server sends it. The same holds for the next two."""
    SUCCESS = "success"
    """A 2xx."""
    FAILURE = "failure"
    """A final response other than 2xx."""
    TRANSPORT_ERROR = "transport error"
    TIMER_A = "A"
    TIMER_B = "B"
    TIMER_D = "D"
    TIMER_E = "E"
    TIMER_F = "F"
    TIMER_G = "G"
    TIMER_H = "H"
    TIMER_I = "I"
    TIMER_J = "J"
    TIMER_K = "K"
    TIMER_L = "L"
    TIMER_M = "M"


class Effect(Enum):
    SEND = "send"
    """Send the request, or the last response, (again)."""
    ACK = "ack"
    """Acknowledge a final response other than 2xx (§17.1.1.3)."""
    PASS = "pass"
    """Pass the message to the user of the transaction."""
    TIMEOUT = "timeout"
    """Tell the user of the transaction that no response arrived."""


Table = Mapping[tuple[State, Input], tuple[State, tuple[Effect, ...]]]

INVITE_CLIENT: Table = {
    # Timer B has a row in CALLING only: once the peer has responded, the call itself limits how long it may ring.
    (State.CALLING, Input.TIMER_A): (State.CALLING, (Effect.SEND,)),
    (State.CALLING, Input.TIMER_B): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.CALLING, Input.TRANSPORT_ERROR): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.CALLING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.PASS,)),
    (State.CALLING, Input.SUCCESS): (State.ACCEPTED, (Effect.PASS,)),
    (State.CALLING, Input.FAILURE): (State.COMPLETED, (Effect.ACK, Effect.PASS)),
    (State.PROCEEDING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.PASS,)),
    (State.PROCEEDING, Input.SUCCESS): (State.ACCEPTED, (Effect.PASS,)),
    (State.PROCEEDING, Input.FAILURE): (State.COMPLETED, (Effect.ACK, Effect.PASS)),
    (State.COMPLETED, Input.FAILURE): (State.COMPLETED, (Effect.ACK,)),
    (State.COMPLETED, Input.TIMER_D): (State.TERMINATED, ()),
    # Every 2xx is passed on: it may come from another branch of a fork (RFC 6026 §7.2).
    (State.ACCEPTED, Input.SUCCESS): (State.ACCEPTED, (Effect.PASS,)),
    (State.ACCEPTED, Input.TIMER_M): (State.TERMINATED, ()),
}

CLIENT: Table = {
    (State.TRYING, Input.TIMER_E): (State.TRYING, (Effect.SEND,)),
    (State.TRYING, Input.TIMER_F): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.TRYING, Input.TRANSPORT_ERROR): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.TRYING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.PASS,)),
    (State.TRYING, Input.SUCCESS): (State.COMPLETED, (Effect.PASS,)),
    (State.TRYING, Input.FAILURE): (State.COMPLETED, (Effect.PASS,)),
    (State.PROCEEDING, Input.TIMER_E): (State.PROCEEDING, (Effect.SEND,)),
    (State.PROCEEDING, Input.TIMER_F): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.PROCEEDING, Input.TRANSPORT_ERROR): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.PROCEEDING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.PASS,)),
    (State.PROCEEDING, Input.SUCCESS): (State.COMPLETED, (Effect.PASS,)),
    (State.PROCEEDING, Input.FAILURE): (State.COMPLETED, (Effect.PASS,)),
    (State.COMPLETED, Input.TIMER_K): (State.TERMINATED, ()),
}

INVITE_SERVER: Table = {
    (State.PROCEEDING, Input.REQUEST): (State.PROCEEDING, (Effect.SEND,)),
    (State.PROCEEDING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.SEND,)),
    (State.PROCEEDING, Input.SUCCESS): (State.ACCEPTED, (Effect.SEND,)),
    (State.PROCEEDING, Input.FAILURE): (State.COMPLETED, (Effect.SEND,)),
    # The user of the transaction sends the 2xx again until its ACK; a retransmitted INVITE is absorbed (RFC 6026 §7.1).
    (State.ACCEPTED, Input.SUCCESS): (State.ACCEPTED, (Effect.SEND,)),
    (State.ACCEPTED, Input.ACK): (State.ACCEPTED, (Effect.PASS,)),
    (State.ACCEPTED, Input.TIMER_L): (State.TERMINATED, ()),
    (State.COMPLETED, Input.REQUEST): (State.COMPLETED, (Effect.SEND,)),
    (State.COMPLETED, Input.TIMER_G): (State.COMPLETED, (Effect.SEND,)),
    # The ACK of a refusal never came. The transaction ends without a report, because the call has ended already.
    (State.COMPLETED, Input.TIMER_H): (State.TERMINATED, (Effect.TIMEOUT,)),
    (State.COMPLETED, Input.ACK): (State.CONFIRMED, ()),
    (State.CONFIRMED, Input.TIMER_I): (State.TERMINATED, ()),
}

SERVER: Table = {
    # TRYING has no row for a retransmission: there is no response yet that could be repeated (§17.2.2).
    (State.TRYING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.SEND,)),
    (State.TRYING, Input.SUCCESS): (State.COMPLETED, (Effect.SEND,)),
    (State.TRYING, Input.FAILURE): (State.COMPLETED, (Effect.SEND,)),
    (State.PROCEEDING, Input.REQUEST): (State.PROCEEDING, (Effect.SEND,)),
    (State.PROCEEDING, Input.PROVISIONAL): (State.PROCEEDING, (Effect.SEND,)),
    (State.PROCEEDING, Input.SUCCESS): (State.COMPLETED, (Effect.SEND,)),
    (State.PROCEEDING, Input.FAILURE): (State.COMPLETED, (Effect.SEND,)),
    (State.COMPLETED, Input.REQUEST): (State.COMPLETED, (Effect.SEND,)),
    (State.COMPLETED, Input.TIMER_J): (State.TERMINATED, ()),
}

_FIRST_STATES = {id(INVITE_CLIENT): State.CALLING, id(INVITE_SERVER): State.PROCEEDING}
_NO_REQUEST = Request()
_RETRANSMISSIONS = (Input.TIMER_A, Input.TIMER_E, Input.TIMER_G)
_ABSORBING = (Input.TIMER_D, Input.TIMER_I, Input.TIMER_J, Input.TIMER_K)


def timers_of(table: Table, state: State) -> tuple[Input, ...]:
    """Return the timers of a state: those with a row in it."""
    return tuple(event for own, event in table if own is state and event.name.startswith("TIMER"))


# Derived from the tables once, so that timers and rows agree. The key is the identity: tables are not hashable.
_TIMERS = {
    (id(table), state): timers_of(table, state)
    for table in (INVITE_CLIENT, CLIENT, INVITE_SERVER, SERVER)
    for state in State
}


class Transaction:
    """One request and its responses; subclasses for clients and servers carry out the effects."""

    __slots__ = (
        *("_running", "_settings", "_table", "_timers", "answered"),
        *("reliable", "repeatable", "request", "sent", "state"),
    )

    def __init__(self, table: Table, request: Request, settings: TimerSettings, timers: Timers) -> None:
        self.request = request
        self.sent = b""
        """The last response of a server, for retransmission."""
        self.repeatable = False
        """Whether the request, received again as a new one, would get the same response and change nothing."""
        self.answered = False
        """Whether a final response was sent."""
        self.state = _FIRST_STATES.get(id(table), State.TRYING)
        self.reliable = False
        """Whether the transport is reliable, so that nothing is retransmitted (§17.1.1.2)."""
        self._table = table
        self._settings = settings
        self._timers = timers
        self._running: dict[Input, tuple[Timer, float]] = {}

    def carry_out(self, effect: Effect, message: Request | Response | None, now: float) -> None:
        """Carry out one effect of a row."""
        raise NotImplementedError

    def release(self) -> None:
        """Remove the terminated transaction from its layer."""
        raise NotImplementedError

    def start(self, now: float) -> None:
        """Start the timers of the first state."""
        self._start_timers(now)

    def apply(self, event: Input, message: Request | Response | None, now: float) -> None:
        """Apply one input to the table: change the state, then carry out the effects of the row."""
        row = self._table.get((self.state, event))
        if row is None:
            return
        state, effects = row
        if state is not self.state:
            self.state = state
            self._start_timers(now)
        for effect in effects:
            self.carry_out(effect, message, now)
        if state is State.TERMINATED:
            self.release()

    def respond(self, response: Response, now: float) -> None:
        """Send a response as a server, unless a final one was sent already."""
        event = input_of(response)
        # A CANCEL that crossed this response may have sent a final one already.
        if (self.state, event) not in self._table:
            return
        self.sent = bytes(response)
        self.answered = response.status >= 200
        self.apply(event, response, now)
        if self.answered:
            # The transaction stays for 32 s to retransmit these bytes; it does not need its parsed request for that.
            self.request = _NO_REQUEST

    def forget(self) -> None:
        """End the transaction now, without waiting for its timers."""
        self.state = State.TERMINATED
        self._start_timers(0.0)
        self.release()

    @property
    def is_terminated(self) -> bool:
        return self.state is State.TERMINATED

    def _start_timers(self, now: float) -> None:
        wanted = _TIMERS[id(self._table), self.state]
        running = self._running
        for name in [name for name in running if name not in wanted] if running else ():
            running.pop(name)[0].cancel()
        for name in wanted:
            if name not in running and not (self.reliable and name in _RETRANSMISSIONS):
                self._arm(name, self._interval(name), now)

    def _arm(self, name: Input, interval: float, now: float) -> None:
        timer = self._timers.at(now + interval, partial(self._fire, name))
        self._running[name] = (timer, interval)

    def _fire(self, name: Input, now: float) -> None:
        _, interval = self._running.pop(name)
        # The timer is armed again before the input is applied: a change of state then cancels it with the others.
        if name in _RETRANSMISSIONS:
            self._arm(name, self._next_interval(name, interval), now)
        self.apply(name, None, now)

    def _interval(self, name: Input) -> float:
        settings = self._settings
        if name in _RETRANSMISSIONS:
            return settings.t1
        # Over a reliable transport there are no retransmissions to absorb (§17.1.1.2, §17.1.2.2, §17.2.1).
        if name in _ABSORBING and self.reliable:
            return 0.0
        # Shorter than RFC 3261 says: a later retransmission is served as a new request, and gets the same response.
        if name is Input.TIMER_J and self.repeatable:
            return settings.t4
        if name is Input.TIMER_D:
            return settings.d
        return settings.t4 if name in (Input.TIMER_I, Input.TIMER_K) else settings.timeout

    def _next_interval(self, name: Input, interval: float) -> float:
        # Only the INVITE is repeated with intervals that double without a limit; timer B ends that (§17.1.1.2).
        if name is Input.TIMER_A:
            return 2 * interval
        if name is Input.TIMER_E and self.state is State.PROCEEDING:
            return self._settings.t2
        return min(2 * interval, self._settings.t2)


def input_of(response: Response) -> Input:
    """Return the input that a response makes, for clients and servers."""
    if response.status < 200:
        return Input.PROVISIONAL
    return Input.SUCCESS if response.status < 300 else Input.FAILURE
