"""The torture messages of RFC 4475 and RFC 5118: what the parser says, and what the server answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from callagent.sip import MalformedMessage, Request, Response, UserAgent, parse_message
from tests.sip.pair import Pair, settings

CORPUS = Path(__file__).parents[1] / "captures" / "sip-torture"
MANIFEST = {entry["name"]: entry for entry in json.loads((CORPUS / "manifest.json").read_text())}

# What a server of ours answers. None: nothing, because it is a response, or nobody can be answered.
ANSWERS = {
    "wsinv": 481, "intmeth": 501, "esc01": 100, "escnull": 405, "esc02": 501, "lwsdisp": 200, "longreq": 100,
    "dblreq": 405, "semiuri": 200, "transports": 200, "mpart01": 200, "unreason": None, "noreason": None,
    "badinv01": 400, "clerr": 400, "ncl": 400, "scalar02": 400, "scalarlg": None, "quotbal": 400, "ltgtruri": 400,
    "lwsruri": 400, "lwsstart": 400, "trws": 400, "escruri": 400, "baddate": 100, "regbadct": 400, "badaspec": 400,
    "baddn": 400, "badvers": 505, "mismatch01": 400, "mismatch02": 400, "bigcode": None, "badbranch": 200,
    "insuf": 400, "unkscm": 416, "novelsc": 416, "unksm2": 405, "bext01": 420, "invut": 415, "regaut01": 405,
    "multi01": 400, "mcl01": 400, "bcast": None, "zeromf": 200, "cparam01": 405, "cparam02": 405, "regescrt": 405,
    "sdp01": 406, "inv2543": 100, "test": None,
    "ipv6-good": 405, "ipv6-bad": 400, "port-ambiguous": 405, "port-unambiguous": 405,
    "via-received-param-with-delim": 481, "via-received-param-no-delim": 200, "ipv6-in-sdp": 100,
    "mult-ip-in-header": 481, "mult-ip-in-sdp": 100, "ipv4-mapped-ipv6": 100, "ipv6-bug-abnf-3-colons": 200,
    "ipv6-correct-abnf-2-colons": 200,
}  # fmt: skip


def message(name: str) -> bytes:
    """The message as it would come over UDP; the archive of RFC 5118 has bare line feeds and counts them."""
    data = (CORPUS / MANIFEST[name]["file"]).read_bytes()
    if MANIFEST[name]["corpus"] == "rfc5118":
        data = data.replace(b"\r\n", b"\n").rstrip(b"\n").replace(b"\n", b"\r\n") + b"\r\n"
        head, separator, body = data.partition(b"\r\n\r\n")
        if not separator:
            return data + b"\r\n"
        return re.sub(rb"Content-Length: *\d+", b"Content-Length: %d" % len(body), head) + separator + body
    return data


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_the_parser_objects_where_the_rfc_says(name: str) -> None:
    objects = MANIFEST[name]["objects"]
    valid = objects in ("none", "header:Date(optional)")
    if objects == "-":
        return
    try:
        parse_message(message(name))
    except MalformedMessage:
        assert not valid
    else:
        assert valid


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_the_server_answers_as_the_rfc_says(name: str) -> None:
    agent = UserAgent(settings(), lambda peer: ("192.0.2.2", 5060))
    agent.receive_datagram(message(name), ("192.0.2.1", 5060), 0.0)
    statuses = [parsed.status for data, _ in agent.messages_to_send() if isinstance(parsed := _read(data), Response)]
    assert (statuses[-1] if statuses else None) == ANSWERS[name]


def _read(data: bytes) -> Request | Response:
    """The answers repeat fields that may be broken, so only their first line is read strictly."""
    return Response(status=int(data.split(b" ", 2)[1]))


@pytest.mark.parametrize("name", [name for name in sorted(MANIFEST) if MANIFEST[name]["objects"] == "none"])
def test_what_is_valid_is_written_as_it_is_read(name: str) -> None:
    first = parse_message(message(name))
    again = parse_message(bytes(first))
    assert list(again.headers)[:-1] == [item for item in first.headers if item[0].lower() != "content-length"]
    assert again.body == first.body
    assert again.start_line() == first.start_line()


def test_an_escaped_null_does_not_cut_the_user() -> None:
    assert parse_message(message("escnull")).recipient.uri.user_text == "null-\x00-null"


def test_semicolons_belong_to_the_user() -> None:
    parsed = parse_message(message("semiuri"))
    assert isinstance(parsed, Request)
    assert parsed.uri.user == "user;par=u%40example.net"


def test_a_port_without_brackets_is_part_of_the_address() -> None:
    ambiguous, plain = parse_message(message("port-ambiguous")), parse_message(message("port-unambiguous"))
    assert isinstance(ambiguous, Request)
    assert isinstance(plain, Request)
    assert (ambiguous.uri.host, ambiguous.uri.port) == ("[2001:db8::10:5070]", None)
    assert (plain.uri.host, plain.uri.port) == ("[2001:db8::10]", 5070)


def test_the_unsupported_extensions_are_named() -> None:
    pair = Pair()
    pair.send(message("bext01"))
    pair.server.core.receive_datagram(message("bext01"), ("192.0.2.1", 5060), 0.0)
    ((data, _),) = pair.server.core.messages_to_send()
    assert b"Unsupported: nothingSupportsThis, nothingSupportsThisEither" in data


def test_who_accepts_no_description_is_told_why() -> None:
    agent = UserAgent(settings(), lambda peer: ("192.0.2.2", 5060))
    agent.receive_datagram(message("sdp01"), ("192.0.2.1", 5060), 0.0)
    *_, (data, _) = agent.messages_to_send()
    assert data.startswith(b"SIP/2.0 406 ")
    assert b"\r\nWarning: 399 callagent " in data
