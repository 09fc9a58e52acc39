from __future__ import annotations

import base64
import json

import pytest

from callagent.carriers.browser.leg import BrowserDialect
from callagent.carriers.protocol import DialectError, DigitReceived, MarkReached, MediaReceived, ReplyDue, StreamStopped


def test_what_the_page_says_becomes_events() -> None:
    dialect = BrowserDialect()
    media = json.dumps({"event": "media", "payload": base64.b64encode(b"\xff" * 160).decode()})
    assert dialect.receive_message(media) == (MediaReceived(b"\xff" * 160),)
    assert dialect.receive_message('{"event":"mark","name":"m12"}') == (MarkReached("m12"),)
    assert dialect.receive_message('{"event":"digit","digit":"#"}') == (DigitReceived("#"),)
    assert dialect.receive_message('{"event":"stop"}') == (StreamStopped(),)


def test_a_ping_is_answered_once_with_its_own_time() -> None:
    dialect = BrowserDialect()
    (reply,) = dialect.receive_message('{"event":"ping","at":123.5}')
    assert isinstance(reply, ReplyDue)
    assert json.loads(reply.message) == {"event": "pong", "at": 123.5}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"event":"nothing"}', '{"event":"media"}', '{"event":"media","payload":"%%"}',
        '{"event":"media","payload":"' + "A" * 20_000 + '"}', '{"event":"digit","digit":"12"}', "x" * 70_000,
        '{"event":"digit","digit":"\\u0661"}', '{"event":"mark","name":"\\"}"}', '{"event":"ping","at":"x"}',
        '{"event":"ping","at":1e999}', "[" * 30_000,
    ],
)  # fmt: skip
def test_anything_else_is_a_dialect_error(text: str) -> None:
    with pytest.raises(DialectError):
        BrowserDialect().receive_message(text)


def test_what_is_sent_is_json() -> None:
    dialect = BrowserDialect()
    assert json.loads(*dialect.encode_media(b"\x7f\xff")) == {"event": "media", "payload": "f/8="}
    assert json.loads(*dialect.encode_mark("m1")) == {"event": "mark", "name": "m1"}
    assert json.loads(*dialect.encode_clear()) == {"event": "clear"}
    assert json.loads(dialect.encode_notice("ended", reason='"<b>')) == {"event": "ended", "reason": '"<b>'}
