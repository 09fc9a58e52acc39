"""Every row of the four machines, and that what has no row changes nothing."""

from __future__ import annotations

import itertools

import pytest

from callagent.sip import Headers, Request, Response, TimerSettings
from callagent.sip.transaction_machines import (
    CLIENT,
    INVITE_CLIENT,
    INVITE_SERVER,
    SERVER,
    Effect,
    Input,
    State,
    Table,
    Timers,
    Transaction,
    timers_of,
)

TABLES = {"invite client": INVITE_CLIENT, "client": CLIENT, "invite server": INVITE_SERVER, "server": SERVER}
STARTS = {
    "invite client": State.CALLING,
    "client": State.TRYING,
    "invite server": State.PROCEEDING,
    "server": State.TRYING,
}
ROWS = [(name, *key, *row) for name, table in TABLES.items() for key, row in table.items()]


class Recorded(Transaction):
    """Does nothing but keep its effects, and when it would have sent."""

    def __init__(self, table: Table, timers: Timers) -> None:
        super().__init__(table, Request(Headers(), method="INVITE"), TimerSettings(), timers)
        self.effects: list[Effect] = []
        self.times: list[float] = []
        self.left = False

    def carry_out(self, effect: Effect, message: Request | Response | None, now: float) -> None:
        self.effects.append(effect)
        if effect is Effect.SEND:
            self.times.append(now)

    def release(self) -> None:
        self.left = True


def made(table: Table) -> tuple[Recorded, Timers, list[Effect]]:
    timers = Timers()
    transaction = Recorded(table, timers)
    return transaction, timers, transaction.effects


@pytest.mark.parametrize(("name", "state", "event", "target", "wanted"), ROWS)
def test_each_row(name: str, state: State, event: Input, target: State, wanted: tuple[Effect, ...]) -> None:
    transaction, _, effects = made(TABLES[name])
    transaction.state = state
    transaction.apply(event, None, 0.0)
    assert transaction.state is target
    assert tuple(effects) == wanted
    assert transaction.left is (target is State.TERMINATED)


@pytest.mark.parametrize("name", TABLES)
def test_what_has_no_row_is_absorbed(name: str) -> None:
    table = TABLES[name]
    for state, event in itertools.product(State, Input):
        if (state, event) in table:
            continue
        transaction, _, effects = made(table)
        transaction.state = state
        transaction.apply(event, None, 0.0)
        assert transaction.state is state
        assert not effects


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_every_machine_ends(name: str) -> None:
    table, reached = TABLES[name], {STARTS[name]}
    for _ in State:
        reached |= {target for (state, _), (target, _) in table.items() if state in reached}
    assert {state for state, _ in table} <= reached
    assert State.TERMINATED in reached


@pytest.mark.parametrize("name", TABLES)
def test_whoever_waits_has_a_timer(name: str) -> None:
    """Only PROCEEDING of an INVITE, and a server whose user has not answered, may wait for somebody else's timer."""
    table = TABLES[name]
    without = {state for state, _ in table if not timers_of(table, state)}
    allowed = {"invite client": {State.PROCEEDING}, "invite server": {State.PROCEEDING}, "client": set()}
    assert without <= allowed.get(name, {State.TRYING, State.PROCEEDING})


def sending_times(table: Table, until: float, event: tuple[float, Input] | None = None) -> list[float]:
    transaction, timers, _ = made(table)
    now = 0.0
    transaction.start(0.0)
    while True:
        due = timers.next()
        if event is not None and (due is None or due > event[0]):
            transaction.apply(event[1], Response(status=100), event[0])
            event = None
            continue
        if due is None or due > until:
            return transaction.times
        now = due
        timers.handle(now)


def test_an_invite_is_repeated_at_doubling_intervals_until_timer_b() -> None:
    assert sending_times(INVITE_CLIENT, 100.0) == [0.5, 1.5, 3.5, 7.5, 15.5, 31.5]


def test_an_invite_is_not_repeated_once_it_is_heard() -> None:
    assert sending_times(INVITE_CLIENT, 100.0, (1.0, Input.PROVISIONAL)) == [0.5]


def test_other_requests_are_repeated_every_four_seconds_at_last() -> None:
    assert sending_times(CLIENT, 20.0) == [0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5]


def test_a_refusal_is_repeated_until_its_ack() -> None:
    transaction, timers, effects = made(INVITE_SERVER)
    transaction.start(0.0)
    transaction.respond(Response(status=486), 0.0)
    timers.handle(0.5)
    timers.handle(1.5)
    assert effects == [Effect.SEND] * 3
    transaction.apply(Input.ACK, None, 2.0)
    assert transaction.state is State.CONFIRMED
    timers.handle(7.0)
    assert transaction.is_terminated
    assert len(timers) == 0


def test_nothing_is_repeated_over_a_reliable_transport() -> None:
    transaction, timers, effects = made(INVITE_CLIENT)
    transaction.reliable = True
    transaction.start(0.0)
    timers.handle(31.0)
    assert not effects
    timers.handle(32.0)
    assert effects == [Effect.TIMEOUT]


def test_a_second_final_response_is_not_sent() -> None:
    transaction, _, effects = made(SERVER)
    transaction.respond(Response(status=200), 0.0)
    transaction.respond(Response(status=500), 0.0)
    assert effects == [Effect.SEND]
    assert transaction.sent.startswith(b"SIP/2.0 200")
    assert transaction.answered


def test_what_is_due_runs_in_order_and_new_timers_of_the_round_too() -> None:
    timers = Timers()
    seen: list[str] = []
    timers.at(2.0, lambda now: seen.append("second"))

    def first(now: float) -> None:
        seen.append("first")
        timers.at(now, lambda at: seen.append("again"))

    timers.at(1.0, first)
    timers.at(9.0, lambda now: seen.append("late"))
    timers.handle(3.0)
    assert seen == ["first", "second", "again"] or seen == ["first", "again", "second"]
    assert timers.next() == 9.0


def test_a_cancelled_timer_neither_runs_nor_is_waited_for() -> None:
    timers = Timers()
    timer = timers.at(1.0, lambda now: None)
    timer.cancel()
    timer.cancel()
    assert timers.next() is None
    assert len(timers) == 0


def test_cancelled_timers_are_swept_before_they_are_due() -> None:
    timers = Timers()
    for _ in range(10_000):
        timers.at(32.0, lambda now: None).cancel()
    assert len(timers._heap) < 200
