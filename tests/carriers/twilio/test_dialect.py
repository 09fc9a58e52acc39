"""The dialect: text in, events out."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.carriers.protocol import (
    DialectError,
    DigitReceived,
    MarkReached,
    MediaReceived,
    StreamConnected,
    StreamStarted,
    StreamStopped,
)
from callagent.carriers.twilio.dialect import TRANSITIONS, StreamState, TwilioDialect

CONNECTED = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
START: dict[str, Any] = {
    "event": "start",
    "sequenceNumber": "1",
    "streamSid": "MZ1",
    "start": {
        "accountSid": "AC1",
        "streamSid": "MZ1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "customParameters": {"token": "t"},
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    },
}
STOP = {"event": "stop", "streamSid": "MZ1", "stop": {"accountSid": "AC1", "callSid": "CA1"}}
MESSAGES = {
    "connected": CONNECTED,
    "start": START,
    "media": {
        "event": "media",
        "streamSid": "MZ1",
        "media": {"track": "inbound", "chunk": "1", "timestamp": "5", "payload": "/38="},
    },
    "mark": {"event": "mark", "streamSid": "MZ1", "mark": {"name": "m1"}},
    "dtmf": {"event": "dtmf", "streamSid": "MZ1", "dtmf": {"track": "inbound_track", "digit": "#"}},
    "stop": STOP,
}


def in_state(state: StreamState) -> TwilioDialect:
    dialect = TwilioDialect()
    for after, message in (
        (StreamState.CONNECTED, CONNECTED),
        (StreamState.STREAMING, START),
        (StreamState.STOPPED, STOP),
    ):
        if dialect.state is not state:
            dialect.receive_message(json.dumps(message))
            assert dialect.state is after
    return dialect


def changed(message: dict[str, Any], **changes: Any) -> str:
    name = message["event"]
    inner = {**message[name], **changes}
    return json.dumps({**message, name: {k: v for k, v in inner.items() if v is not None}})


def test_a_stream_from_beginning_to_end() -> None:
    dialect = TwilioDialect()
    events = [event for message in MESSAGES.values() for event in dialect.receive_message(json.dumps(message))]
    assert events == [
        StreamConnected("Call"),
        StreamStarted("MZ1", "CA1", "AC1", {"token": "t"}),
        MediaReceived(b"\xff\x7f"),
        MarkReached("m1"),
        DigitReceived("#"),
        StreamStopped(),
    ]


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("event", MESSAGES)
def test_every_message_in_every_state(state: StreamState, event: str) -> None:
    dialect = in_state(state)
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(DialectError, match=event):
            dialect.receive_message(json.dumps(MESSAGES[event]))
        assert dialect.state is state
    else:
        dialect.receive_message(json.dumps(MESSAGES[event]))
        assert dialect.state is after


def test_every_state_is_reachable() -> None:
    assert {StreamState.OPENED, *TRANSITIONS.values()} == set(StreamState)


def test_verbs_are_messages_of_the_stream() -> None:
    dialect = in_state(StreamState.STREAMING)
    media = json.loads(*dialect.encode_media(b"\xff" * 160))
    assert media == {
        "event": "media",
        "streamSid": "MZ1",
        "media": {"payload": base64.b64encode(b"\xff" * 160).decode()},
    }
    assert json.loads(*dialect.encode_mark("m7")) == {"event": "mark", "streamSid": "MZ1", "mark": {"name": "m7"}}
    assert json.loads(*dialect.encode_clear()) == {"event": "clear", "streamSid": "MZ1"}


def test_unknown_events_and_the_other_track_say_nothing() -> None:
    dialect = in_state(StreamState.STREAMING)
    assert dialect.receive_message('{"event":"heartbeat","x":[[[]]]}') == ()
    assert dialect.receive_message(changed(MESSAGES["media"], track="outbound")) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"event":1}',
        '{"event":"media"}',
        '{"event":"mark"}',
        '{"event":"dtmf"}',
        '{"event":"media","media":{"payload":"@@"}}',
        '{"event":"media","media":{"payload":5}}',
        '{"event":"media","streamSid":"MZ2","media":{"payload":""}}',
        '{"event":"dtmf","dtmf":{"digit":"12"}}',
        '{"event":"dtmf","dtmf":{"digit":""}}',
        '{"event":"dtmf","dtmf":{"digit":"x"}}',
        '{"event":"x","y":' + "[" * 30000 + "]" * 30000 + "}",
        '{"event":"x","y":' + '{"a":' * 10000,
        "x" * 65537,
        "\ud800",
    ],
)
def test_what_is_no_message_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(DialectError):
        in_state(StreamState.STREAMING).receive_message(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"mediaFormat": {"encoding": "audio/x-l16", "sampleRate": 8000, "channels": 1}},
        {"mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 16000, "channels": 1}},
        {"callSid": None},
        {"callSid": "CA1/.."},
        {"streamSid": 'MZ"'},
        {"customParameters": {"token": 1}},
    ],
)
def test_a_start_that_cannot_be_served_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DialectError):
        in_state(StreamState.CONNECTED).receive_message(changed(START, **changes))


def test_a_start_without_contents_is_refused() -> None:
    with pytest.raises(DialectError):
        in_state(StreamState.CONNECTED).receive_message('{"event":"start","streamSid":"MZ1"}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(StreamState), st.text() | st.binary())
def test_garbage_is_an_event_nothing_or_a_dialect_error(state: StreamState, text: str | bytes) -> None:
    try:
        in_state(state).receive_message(text)
    except DialectError:
        pass


@given(st.sampled_from(StreamState), st.sampled_from(sorted(MESSAGES)), json_values, json_values)
def test_known_events_with_any_contents(state: StreamState, event: str, inner: Any, stream_sid: Any) -> None:
    try:
        in_state(state).receive_message(json.dumps({"event": event, "streamSid": stream_sid, event: inner}))
    except DialectError:
        pass
