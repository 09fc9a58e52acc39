"""SIP messages and their parts: the grammar layer (RFC 3261 §7, §19, §20, §25)."""

from callagent.sip.message.addressing import BRANCH_COOKIE, Address, Uri, Via, escape_user, host_reference
from callagent.sip.message.digest import (
    ALGORITHMS,
    MAX_PROOFS,
    Credentials,
    Proof,
    authorized,
    parse_digest,
    repeated,
    write_digest,
)
from callagent.sip.message.grammar import Parameters, escape, parse_integer
from callagent.sip.message.headers import Headers, Reason, full_name, parse_reasons
from callagent.sip.message.message import (
    KNOWN_METHODS,
    MAX_DATAGRAM,
    METHODS,
    CSeq,
    MalformedMessage,
    Message,
    Request,
    Response,
    copy_headers,
    parse_message,
    reason_phrase,
    respond_to,
    unwrap_description,
)
from callagent.sip.message.passport import Passport

__all__ = [
    "ALGORITHMS",
    "BRANCH_COOKIE",
    "KNOWN_METHODS",
    "MAX_DATAGRAM",
    "MAX_PROOFS",
    "METHODS",
    "Address",
    "CSeq",
    "Credentials",
    "Headers",
    "MalformedMessage",
    "Message",
    "Parameters",
    "Passport",
    "Proof",
    "Reason",
    "Request",
    "Response",
    "Uri",
    "Via",
    "authorized",
    "copy_headers",
    "escape",
    "escape_user",
    "full_name",
    "host_reference",
    "parse_digest",
    "parse_integer",
    "parse_message",
    "parse_reasons",
    "reason_phrase",
    "repeated",
    "respond_to",
    "unwrap_description",
    "write_digest",
]
