from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.model_server import EventParser, EventTooLong

STREAM = (
    b': hello\n\nevent: x\ndata: {"a": 1}\n\ndata:one\r\ndata: two\r\n\r\ndata: \xc3\xa9\r\rid: 4\n\ndata: [DONE]\n\n'
)
EVENTS = ['{"a": 1}', "one\ntwo", "é", "[DONE]"]


def test_data_of_events_comes_out() -> None:
    assert EventParser(1000).feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    parser, found = EventParser(1000), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        found += parser.feed(STREAM[start:end])
    assert found == EVENTS


def test_line_without_end_is_refused() -> None:
    parser = EventParser(100)
    with pytest.raises(EventTooLong):
        parser.feed(b"data: " + b"x" * 200)


def test_event_of_many_lines_is_refused() -> None:
    parser = EventParser(100)
    with pytest.raises(EventTooLong):
        parser.feed(b"data: xxxxxxxxxx\n" * 20)


@given(st.binary(max_size=200))
def test_garbage_is_an_event_or_a_value_error(data: bytes) -> None:
    try:
        EventParser(50).feed(data)
    except ValueError:
        pass
