"""The events of a leg on the way to its call: their order, also of those that a listener causes."""

from __future__ import annotations

from callagent.legs import DigitPressed, LegEvent, LegEvents


def events(digits: str) -> list[LegEvent]:
    return [DigitPressed(digit) for digit in digits]


def test_an_event_that_a_listener_emits_waits_for_the_earlier_ones() -> None:
    leg_events = LegEvents()
    for event in events("123"):
        leg_events.emit(event)
    received: list[LegEvent] = []

    def receive(event: LegEvent) -> None:
        received.append(event)
        if event == DigitPressed("1"):
            leg_events.emit(DigitPressed("4"))
            # The listener has not finished with the first event yet.
            assert received == events("1")

    leg_events.listen(receive)
    assert received == events("1234")
    leg_events.emit(DigitPressed("5"))
    assert received == events("12345")


def test_a_listener_that_names_another_one_hands_the_rest_over_to_it() -> None:
    leg_events = LegEvents()
    for event in events("123"):
        leg_events.emit(event)
    first: list[LegEvent] = []
    second: list[LegEvent] = []

    def receive(event: LegEvent) -> None:
        first.append(event)
        leg_events.listen(second.append)

    leg_events.listen(receive)
    leg_events.emit(DigitPressed("4"))
    assert (first, second) == (events("1"), events("234"))
