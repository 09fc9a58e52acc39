from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.workers.protocol import MAX_FRAME_BYTES, FrameError, FrameReader, encode_frame

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(PLAIN, max_size=5), st.integers(1, 40))
def test_frames_survive_any_cutting(payloads: list[object], size: int) -> None:
    stream = b"".join(encode_frame("message", number, payload) for number, payload in enumerate(payloads))
    reader = FrameReader()
    frames = [frame for at in range(0, len(stream), size) for frame in reader.feed(stream[at : at + size])]
    assert frames == [("message", number, payload) for number, payload in enumerate(payloads)]


@given(st.binary(max_size=200))
def test_rubbish_is_a_frame_error_or_waits_for_more(data: bytes) -> None:
    try:
        list(FrameReader().feed(data))
    except FrameError:
        pass


def test_a_frame_over_the_limit_is_refused_at_its_header() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_too_much_cannot_be_sent() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        encode_frame("answer", 1, b"x" * MAX_FRAME_BYTES)


def test_what_is_not_plain_is_sent_as_text() -> None:
    (frame,) = FrameReader().feed(encode_frame("answer", 1, {"a": ValueError("x")}))
    assert frame == ("answer", 1, {"a": "x"})


def test_an_integer_that_msgpack_cannot_carry_is_an_error() -> None:
    with pytest.raises(FrameError):
        encode_frame("answer", 1, 2**64)
