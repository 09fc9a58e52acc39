"""Where a call may be sent, which no other module decides, and the calls that the server places.

A project asks for a handoff by name; only targets and prefix rules of the settings turn that into a destination. Text
of a model never reaches a URI: what it can choose is the name of a handoff that the project has.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from callagent.agents import Handoff
from callagent.config import Config, Target, Trunk
from callagent.errors import CallagentError
from callagent.legs import TransferTarget
from callagent.legs.sip import SipLeg, SipLegFactory
from callagent.phone_numbers import comparable_number, e164, surcharge_of
from callagent.rtp import PortsExhausted
from callagent.sip import full_name
from callagent.web import DialRefused, DialRequest

_HEADER_NAME = re.compile(r"[A-Za-z0-9!%*_+`'~.-]{1,64}", re.ASCII)
_TRANSFER_HEADERS = ("User-to-User", "Reason", "Diversion")
"""Headers that a project may send besides `X-…` and the names in `sip.transfer_headers`."""
_UNSENDABLE = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories: control characters, surrogates, separators of lines and paragraphs."""
METHODS = ("refer", "invite", "attended")


class TargetRefused(CallagentError):
    """The settings do not let a call go there. The text is for the record and for the agent."""


def resolve_target(handoff: Handoff, targets: Sequence[Target], transfer_headers: Sequence[str] = ()) -> TransferTarget:
    """Return the place that a handoff leads to. Raises `TargetRefused`.

    `transfer_headers` are further header names that a project may send. Others are left out of the target's `headers`
    and named in its `left_out`: a transfer without a header is better than a lost caller.
    """
    headers, left_out = _checked_headers(handoff.headers, transfer_headers)
    if handoff.method == "bye":
        return TransferTarget(handoff.destination, "", "bye", headers, left_out=left_out)
    if handoff.method not in METHODS:
        methods = ", ".join((*METHODS, "bye"))
        raise TargetRefused(f"handoff '{handoff.destination}': there is no method '{handoff.method}', only {methods}")
    target, name, uri = _destination(handoff, targets)
    return TransferTarget(
        name,
        uri,
        target.method or handoff.method,
        _merged(target.headers, headers),
        left_out,
        trunk=target.trunk,
        caller=target.caller,
        ring_seconds=target.ring_seconds,
        early_media=target.early_media,
        whisper=target.whisper,
        confirm=target.confirm,
    )


def _destination(handoff: Handoff, targets: Sequence[Target]) -> tuple[Target, str, str]:
    """Return the target, the name of the place and its URI or number. Raises `TargetRefused`."""
    # The names of targets are tried first, then the targets' own numbers, then the rules for prefixes.
    for target in targets:
        if target.name and target.name.casefold() == handoff.destination.casefold():
            return target, target.name, target.uri
    number = comparable_number(handoff.number or "")
    for target in targets:
        if number and target.uri and comparable_number(target.uri) == number:
            return target, target.name, target.uri
    e164_number = e164(handoff.number or "")
    rules = [target for target in targets if e164_number and target.prefix and e164_number.startswith(target.prefix)]
    if e164_number is None or not rules:
        raise TargetRefused(
            f"handoff '{handoff.destination}' is not a configured target; "
            f'add [[targets]] name = "{handoff.destination}" with its uri to callagent.toml'
        )
    # A prefix opens a whole range of numbers. Those in it that cost the operator money with each call, such as premium
    # ones, have to be named one by one.
    exact = next((target for target in rules if target.prefix == e164_number), None)
    if exact is None and (surcharge := surcharge_of(e164_number)) is not None:
        raise TargetRefused(
            f"handoff '{handoff.destination}': {e164_number} {surcharge}; "
            "it is called only if a target names exactly this number: "
            f'add [[targets]] name = "…", uri = "{e164_number}" to callagent.toml'
        )
    return exact or rules[0], handoff.destination, e164_number


def _checked_headers(headers: Mapping[str, str], allowed: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the headers that may be sent, by their full names, and the names of the others. Raises `TargetRefused`."""
    known = {name.lower(): name for name in (*_TRANSFER_HEADERS, *allowed)}
    checked: dict[str, str] = {}
    left_out = []
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise TargetRefused(f"header {name[:64]!r} has a name that cannot be sent; use letters, digits and hyphens")
        _check_value(name, value)
        full = full_name(name)
        if full.lower() in known or full.lower().startswith("x-"):
            checked = _merged(checked, {known.get(full.lower(), full): value})
        else:
            left_out.append(name)
    return checked, tuple(left_out)


def _check_value(name: str, value: str) -> None:
    # A line break in a value would begin a header of the project's own choice (RFC 3261 §7.3.1).
    if len(value) > 1024 or any(unicodedata.category(character) in _UNSENDABLE for character in value):
        raise TargetRefused(f"header '{name}' has a value that cannot be sent: it is too long or not one line of text")


def _merged(headers: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of both; `more` replaces headers of the same name, whatever their case (RFC 3261 §7.3.1)."""
    replaced = {name.lower() for name in more}
    return {**{name: value for name, value in headers.items() if name.lower() not in replaced}, **more}


async def place_call(request: DialRequest, config: Config, legs: SipLegFactory) -> SipLeg:
    """Dial, and return the leg of the call that rings. Raises `TargetRefused` and `DialRefused`."""
    uri, caller = _dial_uris(request, config)
    try:
        leg = await legs.dial(uri, caller=caller)
    except (ValueError, OSError, PortsExhausted) as error:
        raise DialRefused(f"the call cannot be placed: {error}", getattr(error, "limit", None)) from None
    leg.info = replace(leg.info, headers=MappingProxyType(dict(request.metadata)))
    return leg


def _dial_uris(request: DialRequest, config: Config) -> tuple[str, str | None]:
    """Return the URI to call and the one to call from. They consist of settings and of checked numbers only."""
    # The request is checked like a handoff of an agent: whoever may place calls reaches only what the settings allow.
    if bool(request.target) == bool(request.to_number):
        raise DialRefused("either target or to_number has to say who is called, and not both")
    handoff = Handoff(request.target or request.to_number, "outbound", "refer", request.to_number or None)
    target = resolve_target(handoff, config.targets)
    if ":" in target.uri:
        caller = None if not request.from_number else _user_at(request.from_number, target.uri.rpartition("@")[2])
        return target.uri, caller
    host = _trunk(request.trunk, config.sip.trunks).server.partition(":")[2]
    caller = _user_at(request.from_number, host) if request.from_number else None
    return _user_at(target.uri, host), caller


def _user_at(number: str, host: str) -> str:
    return f"sip:{number}@{host}"


def _trunk(name: str, trunks: Sequence[Trunk]) -> Trunk:
    for trunk in trunks:
        if trunk.server and name in ("", trunk.name):
            return trunk
    raise DialRefused("no trunk with a server can carry the call; add [[sip.trunks]] with a server to callagent.toml")
