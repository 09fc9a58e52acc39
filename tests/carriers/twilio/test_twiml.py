"""TwiML documents."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from callagent.carriers.twilio.twiml import (
    HANG_UP,
    NOTHING,
    REJECT,
    DialTarget,
    conference,
    connect,
    dial,
    greet,
    refer,
)

REPORT = "https://phone.example.com/twilio/transfer-status?a=1&b=2"


def test_connect_carries_url_parameters_and_the_way_back() -> None:
    nasty = '"/><Dial>+1</Dial>&\n'
    root = ElementTree.fromstring(connect("wss://x/media", {"token": "t", nasty: nasty}, "https://x/voice?a=1&b=2"))
    stream = root.find("Connect/Stream")
    assert stream is not None
    assert stream.get("url") == "wss://x/media"
    assert {p.get("name"): p.get("value") for p in stream}.keys() == {"token", nasty}
    assert root.find(".//Dial") is None
    assert root.findtext("Redirect") == "https://x/voice?a=1&b=2"


def test_dial_a_number() -> None:
    root = ElementTree.fromstring(dial(DialTarget("+442071838750", {"X-A": "1"}), REPORT, 30))
    number = root.find("Dial/Number")
    assert number is not None
    assert number.text == "+442071838750"
    assert number.attrib == {"statusCallback": REPORT, "statusCallbackEvent": "answered"}
    assert root.find("Dial").attrib["action"] == REPORT  # type: ignore[union-attr]


def test_dial_a_sip_uri_with_headers() -> None:
    headers = {"X-Reason": "a b&c=d?<>", "User-to-User": "00", "Diversion": "not carried"}
    root = ElementTree.fromstring(dial(DialTarget("sip:desk@pbx.example.com:5061;transport=tls", headers), REPORT, 20))
    assert root.findtext("Dial/Sip") == (
        "sip:desk@pbx.example.com:5061;transport=tls?X-Reason=a%20b%26c%3Dd%3F%3C%3E&User-to-User=00"
    )


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "442071838750",
        "+0123456789",
        "+44 20 7183 8750",
        "+4420718387５0",
        "+442071838750\n",
        "tel:+442071838750",
        "sip:",
        "sip:a@b?Replaces=1",
        "sip:a@b</Sip><Dial>+1900</Dial>",
        "sip:a b@c",
        "https://example.com",
    ],
)
def test_what_is_no_destination_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="neither a number"):
        dial(DialTarget(uri, {}), REPORT, 30)


def test_headers_are_bounded() -> None:
    with pytest.raises(ValueError, match="longer"):
        dial(DialTarget("sip:a@b", {"X-A": "ü" * 400}), REPORT, 30)


def test_the_short_documents_are_xml() -> None:
    assert [ElementTree.fromstring(d)[:][0].tag for d in (HANG_UP, REJECT)] == ["Hangup", "Reject"]
    assert len(ElementTree.fromstring(NOTHING)) == 0


def test_dial_shows_the_caller_and_asks_what_to_say() -> None:
    target = DialTarget("+442071838750", {}, caller="+15550199", greeting="https://x/greeting", confirmed=True)
    root = ElementTree.fromstring(dial(target, REPORT, 30))
    assert root.find("Dial").attrib["callerId"] == "+15550199"  # type: ignore[union-attr]
    # The answer alone is not success: nobody is told of it.
    assert root.find("Dial/Number").attrib == {"url": "https://x/greeting"}  # type: ignore[union-attr]


def test_refer_takes_sip_uris_only() -> None:
    root = ElementTree.fromstring(refer(DialTarget("sip:desk@pbx.example.com", {"X-A": "1"}), REPORT))
    assert root.findtext("Refer/Sip") == "sip:desk@pbx.example.com?X-A=1"
    with pytest.raises(ValueError, match="neither a number"):
        refer(DialTarget("+442071838750", {}), REPORT)


def test_who_waits_in_a_conference_does_not_begin_it() -> None:
    room = ElementTree.fromstring(conference("callagent-1", REPORT)).find("Dial/Conference")
    assert room is not None
    assert (room.text, room.get("startConferenceOnEnter")) == ("callagent-1", "false")


@pytest.mark.parametrize(("confirm", "path"), [("", "Say"), ("1", "Gather/Say")])
def test_greeting_words_are_escaped(confirm: str, path: str) -> None:
    root = ElementTree.fromstring(greet("A <Dial> & more", confirm, "https://x/?a=1&b=2"))
    assert root.findtext(path) == "A <Dial> & more"
    assert (root.find("Hangup") is not None) == bool(confirm)
