"""Where a call may be sent: the one choke point for transfers.

A project asks for a handoff by name; only targets and prefix rules of the settings turn that into a destination. Text
of a model never reaches a URI: what it can choose is the name of a handoff that the project has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from callagent.agents.action import Handoff
from callagent.config import Target
from callagent.errors import CallagentError
from callagent.legs.leg import TransferTarget

_E164 = re.compile(r"\+[1-9][0-9]{6,14}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!%*_+`'~.-]{1,64}")
_RESERVED = frozenset(
    {
        "authorization",
        "call-id",
        "contact",
        "content-length",
        "content-type",
        "cseq",
        "from",
        "max-forwards",
        "proxy-authorization",
        "proxy-require",
        "record-route",
        "refer-to",
        "referred-by",
        "require",
        "route",
        "supported",
        "to",
        "via",
    }
)
# Satellite, premium and shared-cost ranges: never by prefix, whatever the settings say.
_NEVER = ("+881", "+882", "+883", "+979", "+878", "+1900", "+1976")


METHODS = ("refer", "invite", "attended")


class TargetRefused(CallagentError):
    """The settings do not let a call go there. The text is for the record and for the agent."""


def resolve_target(handoff: Handoff, targets: Sequence[Target]) -> TransferTarget:
    """The place a handoff leads to. Raises `TargetRefused`."""
    headers = _checked_headers(handoff.headers)
    if handoff.method == "bye":
        return TransferTarget(handoff.destination, "", "bye", headers)
    if handoff.method not in METHODS:
        raise TargetRefused(f"handoff '{handoff.destination}': there is no method '{handoff.method}'")
    for target in targets:
        if target.name and target.name.casefold() == handoff.destination.casefold():
            return _at(target, target.name, target.uri, handoff.method, headers)
    number = re.sub(r"[\s().-]", "", handoff.number or "")
    if _E164.fullmatch(number) and not number.startswith(_NEVER):
        for target in targets:
            if target.prefix and number.startswith(target.prefix):
                return _at(target, handoff.destination, number, handoff.method, headers)
    raise TargetRefused(
        f"handoff '{handoff.destination}' is not a configured target; "
        f'add [[targets]] name = "{handoff.destination}" with its uri to callagent.toml'
    )


def _at(target: Target, name: str, uri: str, method: str, headers: Mapping[str, str]) -> TransferTarget:
    return TransferTarget(
        name,
        uri,
        target.method or method,
        {**_checked_headers(target.headers), **headers},
        trunk=target.trunk,
        caller=target.caller,
        ring_seconds=target.ring_seconds,
        early_media=target.early_media,
        whisper=target.whisper,
        confirm=target.confirm,
    )


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked = {}
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise TargetRefused(f"header '{name}' may not be set on a transfer")
        if any(ord(character) < 32 or ord(character) == 127 for character in value) or len(value) > 1024:
            raise TargetRefused(f"header '{name}' has a value that cannot be sent")
        checked[name] = value
    return checked
