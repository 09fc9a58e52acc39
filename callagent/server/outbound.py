"""Places calls: what the settings allow, through the trunk that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from callagent.agents import Handoff
from callagent.config import Config, Trunk
from callagent.legs.sip import SipLeg, SipLegs
from callagent.rtp import PortsExhausted
from callagent.server.targets import resolve_target
from callagent.web import Dial, DialRefused


async def place_call(asked: Dial, config: Config, legs: SipLegs) -> SipLeg:
    """A leg that rings there. Raises `TargetRefused`, `DialRefused`."""
    uri, caller = _way(asked, config)
    try:
        leg = await legs.dial(uri, caller=caller)
    except (ValueError, OSError, PortsExhausted) as error:
        raise DialRefused(f"the call cannot be placed: {error}", getattr(error, "limit", None)) from None
    leg.info = replace(leg.info, headers=MappingProxyType(dict(asked.metadata)))
    return leg


def _way(asked: Dial, config: Config) -> tuple[str, str | None]:
    """The URI to call and the one to call from; nothing in them but what the settings and the checked numbers say."""
    if bool(asked.target) == bool(asked.to_number):
        raise DialRefused("either target or to_number says who is called")
    wanted = Handoff(asked.target or asked.to_number, "outbound", "refer", asked.to_number or None)
    target = resolve_target(wanted, config.targets)
    if ":" in target.uri:
        caller = None if not asked.from_number else _user_at(asked.from_number, target.uri.rpartition("@")[2])
        return target.uri, caller
    host = _trunk(asked.trunk, config.sip.trunks).server.partition(":")[2]
    caller = _user_at(asked.from_number, host) if asked.from_number else None
    return _user_at(target.uri, host), caller


def _user_at(number: str, host: str) -> str:
    return f"sip:{number}@{host}"


def _trunk(name: str, trunks: Sequence[Trunk]) -> Trunk:
    for trunk in trunks:
        if trunk.server and name in ("", trunk.name):
            return trunk
    raise DialRefused("no trunk with a server can carry the call; add [[sip.trunks]] with a server to callagent.toml")
