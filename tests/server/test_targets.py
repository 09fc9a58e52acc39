from __future__ import annotations

import pytest

from callagent.agents import Handoff
from callagent.config import SipSettings, Target
from callagent.phone_numbers import e164
from callagent.server.outbound import TargetRefused, resolve_target

TARGETS = (
    Target(name="support", uri="sip:support@192.0.2.1", headers={"X-Queue": "one"}),
    Target(prefix="+4420"),
    Target(prefix="+1"),
)


def test_a_named_target_gives_the_uri_of_the_settings_not_of_the_project() -> None:
    target = resolve_target(
        Handoff("Support", "asked", "refer", "sip:evil@203.0.113.1", {"X-Reason": "asked"}), TARGETS
    )
    assert target.uri == "sip:support@192.0.2.1"
    assert dict(target.headers) == {"X-Queue": "one", "X-Reason": "asked"}


def test_a_number_under_a_prefix_rule_may_be_called() -> None:
    assert resolve_target(Handoff("desk", "", "refer", "+44 20 7946-0000"), TARGETS).uri == "+442079460000"


def test_bye_with_headers_needs_no_destination() -> None:
    target = resolve_target(Handoff("queue", "", "bye", None, {"X-Route": "7"}), ())
    assert (target.method, target.uri) == ("bye", "")


@pytest.mark.parametrize(
    "number",
    [
        None,
        "",
        "sip:someone@203.0.113.1",
        "+19005551234",
        "+881612345678",
        "+4430000000",
        "02079460000",
        "+44 (0)9",
        "\uff0b442079460000",
        "tel:+442079460000",
        "+442079460000;phone-context=x",
        "+442079460000?Replaces=1",
        "+44207946%0d%0aX: y",
    ],
)
def test_anything_else_is_refused(number: str | None) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("elsewhere", "", "refer", number), TARGETS)


PROTOCOL = ("Via", "v", "V", "Refer-To", "r", "i", "Call-ID", "b", "f", "t", "m", "c", "l", "k", "o", "e", "x", "y")


@pytest.mark.parametrize("method", ["refer", "invite", "attended", "bye"])
@pytest.mark.parametrize(
    "name", [*PROTOCOL, "Privacy", "P-Asserted-Identity", "Replaces", "Alert-Info", "Subject", "s"]
)
def test_headers_that_the_settings_do_not_name_are_left_out_and_told(name: str, method: str) -> None:
    target = resolve_target(Handoff("support", "", method, None, {name: "x", "X-Topic": "bill"}), TARGETS)
    assert target.headers["X-Topic"] == "bill"
    assert set(target.headers) <= {"X-Topic", "X-Queue"}
    assert target.left_out == (name,)


@pytest.mark.parametrize("name", ["bad name", "X\r\nY", "", "X-\u00e4", "X-A:"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("support", "", "refer", None, {name: "x"}), TARGETS)


def test_headers_of_the_settings_are_compared_by_their_full_names() -> None:
    reason = {"reason": "Q.850;cause=16", "user-to-user": "00", "diversion": "d"}
    headers = {"s": "bill", "P-Charge-Info": "<sip:1>", **reason}
    target = resolve_target(Handoff("queue", "", "bye", None, headers), (), ("Subject", "p-charge-info"))
    assert dict(target.headers) == {
        "Subject": "bill",
        "p-charge-info": "<sip:1>",
        "Reason": "Q.850;cause=16",
        "User-to-User": "00",
        "Diversion": "d",
    }


def test_a_header_is_on_the_wire_once_however_it_is_spelt() -> None:
    target = resolve_target(Handoff("support", "", "refer", None, {"x-queue": "two", "X-QUEUE": "three"}), TARGETS)
    assert dict(target.headers) == {"X-QUEUE": "three"}


@pytest.mark.parametrize("name", ["Via", "r", "Refer-To", "Replaces", "X A", ""])
def test_the_protocols_own_headers_cannot_be_set_by_settings_either(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be set on a transfer"):
        Target(name="support", uri="sip:support@192.0.2.1", headers={name: "x"})
    with pytest.raises(ValueError, match="cannot be set on a transfer"):
        SipSettings(transfer_headers=(name,))


@pytest.mark.parametrize("value", ["1\r\nX-B: 2", "\n", "\x00", "\x7f", "\x85", "\u2028", "\ud800", "x" * 1025])
def test_header_values_cannot_break_the_line(value: str) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("queue", "", "bye", None, {"X-A": value}), ())


EVERYWHERE = tuple(Target(prefix=f"+{digit}") for digit in range(1, 10))


@pytest.mark.parametrize("number", ["+442079460000", "+14155550100", "+16135550100", "+18005550100", "+80012345678"])
def test_ordinary_numbers_may_be_called(number: str) -> None:
    assert resolve_target(Handoff("desk", "", "refer", number), EVERYWHERE).uri == number


def test_a_national_prefix_in_a_number_is_not_dialled() -> None:
    assert resolve_target(Handoff("desk", "", "refer", "+44 (0)20 7946 0000"), EVERYWHERE).uri == "+442079460000"


@pytest.mark.parametrize(
    "number",
    [
        *("+449098790000", "+44 (0)909 879 0000", "+33899123456", "+48701234567", "+39899123456", "+34806123456"),
        *("+41900123456", "+43900123456", "+3290012345", "+31900123456", "+46900123456", "+81990123456"),
        *("+611900123456", "+19005550123", "+1 1 900 555 0123", "+12129765555", "+1-212-976-5555", "+19765550123"),
        *("+491805123456", "+447012345678", "+15005550123", "+447640123456", "+443001234567", "+445511234567"),
        *("+8816123456789", "+870773123456", "+88299123456", "+883510012345678", "+878101234567890", "+979123456789"),
        *("+18765550123", "+18095550123", "+14735550123", "+12685550123", "+16495550123", "+12845550123"),
        *("+15550100", "+15551230000", "+4412345", "+441632960001"),
    ],
)
def test_what_costs_more_or_is_unknown_is_called_only_where_a_target_names_it(number: str) -> None:
    handoff = Handoff("elsewhere", "", "refer", number)
    with pytest.raises(TargetRefused):
        resolve_target(handoff, EVERYWHERE)
    written = e164(number)
    assert written is not None
    assert resolve_target(handoff, (*EVERYWHERE, Target(name="named", uri=written))).uri == written
    assert resolve_target(handoff, (*EVERYWHERE, Target(prefix=written))).uri == written


@pytest.mark.parametrize(
    "written",
    [
        *("+19005550123", "+1 (900) 555-0123", "tel:+1-900-555-0123", "tel:+19005550123;ext=7", "\uff0b19005550123"),
        *("tel:900-555-0123;phone-context=+1", "sip:+19005550123@carrier.example;user=phone", "+1\uff19005550123"),
    ],
)
def test_a_number_is_the_same_however_it_is_written(written: str) -> None:
    named = Target(name="contest", uri="tel:+1-900-555-0123")
    assert resolve_target(Handoff("elsewhere", "", "refer", written), (*EVERYWHERE, named)).uri == named.uri
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("elsewhere", "", "refer", written), EVERYWHERE)


@pytest.mark.parametrize(
    "number", ["911", "112", "999", "611", "0900123456", "tel:911", "sip:112@pbx;user=phone", "*72", "+999123456789"]
)
def test_national_and_short_numbers_are_called_only_where_a_target_names_them(number: str) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("elsewhere", "", "refer", number), EVERYWHERE)
