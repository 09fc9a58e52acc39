from __future__ import annotations

import json
import random
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

from callagent.records import CallRecord, FunctionRecord, Redaction, RequestRecord, Spoken, Store, TurnEntry, read_call
from callagent.records.call_record import PRIVACY
from callagent.records.notifications import WebhookReceiver
from callagent.records.privacy import has_card_check_digit
from tests.processor_time import processor_seconds

REDACTION = Redaction(("card", "email", "phone"))
CARDS = ("4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005", "6011000990139424")
WORDS = dict(
    zip("0123456789", ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], strict=True)
)


@pytest.mark.parametrize("card", CARDS)
def test_card_numbers_are_taken_out_however_they_are_said(card: str) -> None:
    digits = "".join(digit for digit in card if digit.isdigit())
    spoken = " ".join(WORDS[digit] for digit in digits)
    for said in (card, digits, spoken, ", ".join(digits), " ".join(digits), spoken.replace("zero", "oh")):
        assert REDACTION.text(f"my card is {said} thanks") == "my card is [card number] thanks"


@pytest.mark.parametrize(
    "phone",
    [
        "+1 555 010 0199", "(555) 010-0199", "555-0100", "+44 20 7946 0958", "5550100199", "555.010.0199",
        "five five five oh one oh oh one nine nine", "double five five zero one double zero",
    ],
)  # fmt: skip
def test_phone_numbers_are_taken_out(phone: str) -> None:
    redacted = REDACTION.text(f"call me at {phone} please")
    assert "[phone number]" in redacted
    assert "55" not in redacted
    assert "five" not in redacted


@pytest.mark.parametrize(
    "email", ["ann.lee@example.com", "ANN+x@mail.example.co.uk", "ann dot lee at example dot com", "ann at example.com"]
)
def test_e_mail_addresses_are_taken_out(email: str) -> None:
    redacted = REDACTION.text(f"it is {email} okay")
    assert "[email]" in redacted
    assert "ann" not in redacted.lower()
    assert "example" not in redacted.lower()


@pytest.mark.parametrize(
    "text",
    [
        "My tracking number is 84276", "order 5550100 please", "on 2026-01-02 at 10:30", "12/24/2026",
        "I have two of them",
        "one or two days", "it costs 19.99", "2026-01-02T03:04:05.678Z", "one", "meet me at noon", "room 12, floor 3",
    ],
)  # fmt: skip
def test_other_words_stay(text: str) -> None:
    assert REDACTION.text(text) == text


def test_only_what_is_asked_for_is_taken_out() -> None:
    assert Redaction(("email",)).text("4111111111111111 ann@example.com") == "4111111111111111 [email]"


def test_sip_uris_are_no_e_mail_addresses() -> None:
    assert REDACTION.text("sent to sip:line.two@pbx.example.com") == "sent to sip:line.two@pbx.example.com"
    assert REDACTION.text("sips:a*b@pbx.example.com, ann@example.com") == "sips:a*b@pbx.example.com, [email]"


INVITE = (
    "INVITE sip:+15550100200@192.168.100.201:5060;transport=udp SIP/2.0\r\n"
    "Via: SIP/2.0/UDP 192.168.100.200:5060;branch=z9hG4bK-1234567890123;rport\r\n"
    'From: "Line" <sip:+15550100199@pbx.example.com>;tag=4111111111111111\r\n'
    "To: <sip:agent@callagent.example.com>\r\n"
    "Contact: <sip:line.two@192.168.100.200:5060>\r\n"
    "Call-ID: 5550100199-5550100200@pbx.example.com\r\n"
    "Content-Type: application/sdp\r\n"
    "\r\n"
    "o=- 5550100199 5550100200 IN IP4 192.168.100.200\r\n"
)


def _traced(text: str, entities: dict[str, str] | None = None) -> dict[str, str]:
    record = CallRecord(id="c1")
    record.signalling = [{"at": "", "sent": False, "peer": "udp 192.168.100.200:5060",
                          "line": text.partition("\r\n")[0], "text": text}]  # fmt: skip
    record.entities = dict(entities or {})
    redaction = Redaction(("card", "email", "phone"), tuple(entities or ()))
    traced: dict[str, str] = redaction.record(record.to_json())["signalling"][0]
    return traced


def test_the_signalling_trace_keeps_its_routing() -> None:
    traced = _traced(INVITE)
    assert traced["text"] == INVITE
    assert traced["line"] == INVITE.partition("\r\n")[0]
    assert traced["peer"] == "udp 192.168.100.200:5060"


def test_other_headers_of_the_trace_are_redacted_around_their_uris() -> None:
    uri = "<sip:5550100199@pbx.example.com>"
    more = f"X-Note: ann@example.com 4111 1111 1111 1111\r\n  +1 555 010 0199\r\nX-From: {uri}\r\n"
    text = _traced(INVITE.replace("Call-ID", more + "Call-ID"))["text"]
    redacted = f"X-Note: [email] [card number]\r\n  [phone number]\r\nX-From: {uri}\r\n"
    assert text == INVITE.replace("Call-ID", redacted + "Call-ID")


def test_values_of_entities_are_taken_out_of_the_trace_as_well() -> None:
    assert '"[name]" <sip:' in _traced(INVITE.replace('"Line"', '"Ann Lee"'), {"name": "Ann Lee"})["text"]


def test_data_of_projects_is_redacted_with_its_names() -> None:
    data = {"number": 4111111111111111, "at": "4111111111111111", "ann@example.com": [5550100199.0, True, None, 84276]}
    redacted = REDACTION.value(data)
    assert redacted == {"number": "[card number]", "at": "[card number]", "[email]": [5550100199.0, True, None, 84276]}


async def test_nothing_of_it_is_in_the_files_of_the_store(tmp_path: Path) -> None:
    chance = random.Random(3)
    secrets = []
    store = Store(tmp_path / "c.db", redaction=REDACTION)
    for number in range(40):
        card = _card(chance)
        phone = f"+1{chance.randrange(2 * 10**9, 10**10)}"
        email = f"user{chance.randrange(10**6)}@mail{number}.example.com"
        secrets += [card, phone, email]
        said = f"card {card} phone {phone} mail {email}"
        record = CallRecord(id=f"c{number}", wire="sip", started_at="2026-01-02T03:04:05.678Z", in_progress=False)
        record.turns = [
            TurnEntry(
                number=1,
                user_input=said,
                user_input_dtmf=card,
                agent_response=said,
                functions=[
                    FunctionRecord(1, "pay", {"card": int(card), "to": [email]}, said, said, logs=[{"m": said}])
                ],
                spoken=[Spoken(said, "speech", 1.0, 2.0, said)],
            )
        ]  # fmt: skip
        record.digits = [{"digit": digit, "at": 1.0} for digit in card]
        record.state = {"card": card, "nested": {"phone": phone}}
        record.metrics = [{"name": "MAIL", "value": email}]
        record.errors = [{"what": "model", "detail": said, "at": 2.0}]
        record.handoff_reason = said
        await store.opened(record)
        await store.metric(record.id, 1, "CARD", card)
        await store.metric(record.id, 2, "MAIL", {"x": email})
        await store.ended(record)
    await store.close()
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"[card number]" in written
    assert [secret for secret in secrets if secret.encode() in written] == []


def test_a_long_text_is_redacted_in_time() -> None:
    for text in ("1 " * 50_000, "a." * 50_000, "one " * 50_000, "x at " * 20_000, "a dot " * 10_000, "4" * 100_000):
        assert processor_seconds(partial(REDACTION.text, text), 5) < 5


def test_the_check_digit() -> None:
    assert has_card_check_digit("4111111111111111")
    assert not has_card_check_digit("4111111111111112")


def test_a_receivers_secret_is_not_in_its_text() -> None:
    assert "hush" not in repr(WebhookReceiver("http://127.0.0.1", "hush"))


def _card(chance: random.Random) -> str:
    digits = "4" + "".join(str(chance.randrange(10)) for _ in range(14))
    return next(digits + str(check) for check in range(10) if has_card_check_digit(digits + str(check)))


def test_a_record_keeps_its_structure() -> None:
    record = CallRecord(id="c1", from_number="+15550100199", started_at="2026-01-02T03:04:05.678Z").to_json()
    assert json.loads(json.dumps(REDACTION.record(record))) == record


async def test_values_of_named_entities_are_nowhere_in_the_store(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    store = Store(path, redaction=Redaction((), ("customer_name", "town")))
    record = CallRecord("c1", entities={"customer_name": "Ann Lee", "town": "York", "size": "large"})
    await store.opened(CallRecord("c1"))
    await store.metric("c1", 1, "GREETED", {"who": "ANN LEE", "size": "large"})
    turn = TurnEntry(1, user_input="I am ann lee from New York", agent_response="Hello Ann Lee, Yorkshire pudding?")
    turn.functions.append(FunctionRecord(1, "greet", {"name": "Ann Lee"}, result={"content": "Ann Lee: large"}))
    record.turns.append(turn)
    record.state = {"name": "Ann Lee"}
    await store.ended(record)
    await store.close()
    found = read_call(path, "c1")
    assert found is not None
    assert found["metrics"] == [{"name": "GREETED", "value": {"who": "[customer_name]", "size": "large"}}]
    assert found["entities"] == {"customer_name": "[customer_name]", "town": "[town]", "size": "large"}
    assert found["turns"][0]["user_input"] == "I am [customer_name] from New [town]"
    assert found["turns"][0]["agent_response"] == "Hello [customer_name], Yorkshire pudding?"
    assert "ann lee" not in json.dumps(found).lower()


def test_a_field_of_one_name_is_declared_alike_in_every_type() -> None:
    kinds = (CallRecord, TurnEntry, FunctionRecord, RequestRecord, Spoken)
    for one in (each for kind in kinds for each in fields(kind)):
        declared = PRIVACY.get(one.name)
        assert one.metadata.get("privacy", declared) is declared, one.name
