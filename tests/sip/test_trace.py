from __future__ import annotations

from callagent.sip import Hop, Trace
from callagent.sip.trace import MAX_BYTES, MAX_ENDED, MAX_MESSAGES

PEER = Hop("192.0.2.1", 5060)
INVITE = (
    b"INVITE sip:agent@192.0.2.9 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1\r\nCall-ID: abc@peer\r\n"
    b'Authorization: Digest username="u", response="5ec2e7"\r\nContent-Type: application/sdp\r\n\r\n'
    b"v=0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:S3CRETKEY\r\n"
)


def test_a_call_has_its_messages_in_order() -> None:
    trace = Trace(lambda call_id: True)
    trace.add(INVITE, PEER, 1.0, sent=False)
    trace.add(b"SIP/2.0 100 Trying\r\nCall-ID: abc@peer\r\n\r\n", PEER, 1.1, sent=True)
    trace.add(b"SIP/2.0 100 Trying\r\ni: other\r\n\r\n", PEER, 1.2, sent=True)
    found = trace.take("abc@peer")
    assert [(one.at, one.sent, one.line) for one in found] == [
        (1.0, False, "INVITE sip:agent@192.0.2.9 SIP/2.0"),
        (1.1, True, "SIP/2.0 100 Trying"),
    ]
    assert found[0].peer == "udp 192.0.2.1:5060"
    assert trace.take("abc@peer") == []
    assert len(trace.take("other")) == 1


def test_no_password_no_key_no_pressed_digit_is_shown() -> None:
    trace = Trace(lambda call_id: True)
    trace.add(INVITE, PEER, 1.0, sent=False)
    info = b"INFO sip:a SIP/2.0\r\nCall-ID: abc@peer\r\nContent-Type: application/dtmf-relay\r\n\r\nSignal=7\r\n"
    trace.add(info, PEER, 2.0, sent=False)
    text = "".join(one.text for one in trace.take("abc@peer"))
    assert "a=crypto:1 AES_CM_128_HMAC_SHA1_80 [hidden]" in text
    for secret in ("5ec2e7", "S3CRETKEY", "Signal=7"):
        assert secret not in text


def test_terminal_escapes_do_not_come_through() -> None:
    trace = Trace(lambda call_id: True)
    trace.add(b"INVITE sip:\x1b[31m SIP/2.0\r\nCall-ID: x\r\n\r\n", PEER, 1.0, sent=False)
    assert trace.take("x")[0].line == "INVITE sip:[31m SIP/2.0"


def test_what_it_keeps_is_bounded() -> None:
    trace = Trace(lambda call_id: True)
    for number in range(MAX_MESSAGES + 50):
        trace.add(b"BYE %d SIP/2.0\r\nCall-ID: long\r\n\r\n" % number, PEER, float(number), sent=True)
    kept = [one.at for one in trace.take("long")]
    assert len(kept) == MAX_MESSAGES
    assert (kept[0], kept[-1]) == (0.0, MAX_MESSAGES + 49.0)
    filling = b"x" * 3900
    calls = MAX_BYTES // 3900 + 100
    for number in range(calls):
        trace.add(b"INVITE a SIP/2.0\r\nCall-ID: c%d\r\n\r\n" % number + filling, PEER, 1.0, sent=True)
    assert trace.take("c0") == []
    assert len(trace.take(f"c{calls - 1}")) == 1


def test_what_belongs_to_no_call_is_dropped() -> None:
    trace = Trace(lambda call_id: True)
    for data in (b"", b"\x00\xff", b"OPTIONS sip:a SIP/2.0\r\nCall-ID: o\r\n\r\n", b"INVITE sip:a SIP/2.0\r\n\r\n"):
        trace.add(data, PEER, 1.0, sent=False)
    assert trace.take("o") == []


def test_messages_of_no_call_are_not_kept_and_those_of_ended_calls_not_for_ever() -> None:
    calls = {"first"}
    trace = Trace(calls.__contains__)
    trace.add(b"BYE sip:a SIP/2.0\r\nCall-ID: stranger\r\n\r\n", PEER, 1.0, sent=False)
    assert trace.take("stranger") == []
    trace.add(b"INVITE sip:a SIP/2.0\r\nCall-ID: first\r\n\r\n", PEER, 1.0, sent=False)
    trace.end("first")
    calls.clear()
    # The answer to the BYE that ended it goes out when it is no call any more.
    trace.add(b"SIP/2.0 200 OK\r\nCall-ID: first\r\n\r\n", PEER, 1.0, sent=True)
    for number in range(MAX_ENDED - 1):
        calls.add(f"c{number}")
        trace.add(b"INVITE sip:a SIP/2.0\r\nCall-ID: c%d\r\n\r\n" % number, PEER, 1.0, sent=False)
        trace.end(f"c{number}")
    assert len(trace.take("first")) == 2
    for call in ("late", "later"):
        trace.add(b"INVITE sip:a SIP/2.0\r\nCall-ID: %s\r\n\r\n" % call.encode(), PEER, 1.0, sent=False)
        calls.add(call)
        trace.add(b"INVITE sip:a SIP/2.0\r\nCall-ID: %s\r\n\r\n" % call.encode(), PEER, 1.0, sent=False)
        trace.end(call)
    assert trace.take("c0") == []
    assert len(trace.take("later")) == 1
