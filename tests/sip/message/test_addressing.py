"""URIs, addresses, Vias: read, written, refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callagent.sip import Address, Uri, escape_user
from callagent.sip.message.addressing import Via
from callagent.sip.message.headers import Parameters, split_list, unescape


@pytest.mark.parametrize(
    "text",
    [
        "sip:example.com",
        "sip:a@example.com:5070;transport=tcp;lr?Subject=x&Priority=urgent",
        "sips:a:secret@[2001:db8::1]:5061",
        "tel:+1-555-0100;phone-context=example.com",
        "sip:%2B1555;npdi@192.0.2.1;user=phone",
        "http://example.com/x?y",
        "urn:service:sos",
    ],
)
def test_a_uri_is_written_as_it_is_read(text: str) -> None:
    assert str(Uri.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "sip:", "sip:@a", "sip:a@b@c", "sip:a b@c", "sip:a@b:0", "sip:a@b:99999", "sip:a@[::g]", "tel:", "no-scheme",
     "sip:a@b;x=1;X=2", "sip:a@<b>", "sip:a%zz@b"],
)  # fmt: skip
def test_what_is_no_uri_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not valid|twice|permitted|Only|range"):
        Uri.parse(text)


def test_escapes_in_the_user_are_text() -> None:
    assert Uri.parse("sip:%2B1%20x@a").user_text == "+1 x"
    assert Uri.parse(f"sip:{escape_user('a@b c')}@d").user_text == "a@b c"
    assert unescape("%zz%4") == "%zz%4"


@pytest.mark.parametrize(
    ("text", "name", "uri", "tag"),
    [
        ('"A \\"B\\" C" <sip:a@b;lr>;tag=1', 'A "B" C', "sip:a@b;lr", "1"),
        ("Two Words<sip:a@b>", "Two Words", "sip:a@b", None),
        ("sip:a@b;tag=1", "", "sip:a@b", "1"),
        ("Zoë <sip:a@b> ; TAG = x", "Zoë", "sip:a@b", "x"),
    ],
)
def test_addresses(text: str, name: str, uri: str, tag: str | None) -> None:
    address = Address.parse(text)
    assert (address.display_name, str(address.uri), address.tag) == (name, uri, tag)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ['"A <sip:a@b>', "<sip:a@b", "A, B <sip:a@b>", "sip:a@b?x=y", "< sip:a@b>", "", "<>"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not valid"):
        Address.parse(text)


def test_lists_are_split_outside_quotes_and_brackets() -> None:
    assert split_list('"a, b" <sip:x,y@z>, <sip:c@d>;e="f,g"') == ['"a, b" <sip:x,y@z>', '<sip:c@d>;e="f,g"']


def test_a_via_notes_where_a_request_came_from() -> None:
    via = Via.parse("SIP / 2.0 / UDP  pc.example.com : 5070 ;branch=z9hG4bKx;rport")
    received = via.received_from("192.0.2.7", 4444)
    assert str(received) == "SIP/2.0/UDP pc.example.com:5070;branch=z9hG4bKx;rport=4444;received=192.0.2.7"
    assert received.response_port(4444) == 4444
    assert Via.parse("SIP/2.0/UDP 192.0.2.7:5070").response_port(4444) == 5070
    assert str(Via.parse("SIP/2.0/UDP 192.0.2.7").received_from("192.0.2.7", 5060)) == "SIP/2.0/UDP 192.0.2.7"


def test_parameters_have_names_without_case() -> None:
    parameters = Parameters.parse(';A=1;flag;b="q;x"')
    assert parameters.get("a") == "1"
    assert parameters.get("b") == "q;x"
    assert "flag" in parameters
    assert parameters.get("flag") is None
    assert str(parameters.replace("a", "2")) == ';A=2;flag;b="q;x"'


@given(st.text(max_size=200))
@settings(max_examples=400)
def test_any_text_parses_or_is_refused_as_a_value(text: str) -> None:
    for parse in (Uri.parse, Address.parse, Address.parse_list, Via.parse_list, Parameters.parse, split_list):
        try:
            parse(text)
        except ValueError:
            pass
