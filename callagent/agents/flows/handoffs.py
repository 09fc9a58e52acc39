"""`config/handoffs.yaml`: where a call may be handed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callagent.agents.kernel import Reader

METHODS = ("bye", "invite", "refer")


@dataclass(frozen=True, slots=True)
class HandoffTarget:
    name: str
    description: str = ""
    is_default: bool = False
    method: str = "bye"
    number: str | None = None
    """As the file has it: E.164 or a SIP name-addr."""
    headers: tuple[tuple[str, str], ...] = ()
    """Values may hold `$var`."""


def load_handoffs(root: Reader) -> dict[str, HandoffTarget]:
    targets: dict[str, HandoffTarget] = {}
    readers = root.maps("handoffs")
    for reader in readers:
        sip = reader.map("sip_config")
        method = sip.text("method", "bye") or "bye"
        if method not in METHODS:
            sip.error(f"Unknown handoff method '{method}'. Use invite, refer or bye.", "method")
            method = "bye"
        number = _number(sip)
        if method != "bye" and not number:
            message = f"A handoff by {method} without 'phone_number' goes to the target of its name in callagent.toml."
            sip.warning(message, "method")
        name = reader.required_text("name")
        headers = tuple((each.text("key"), each.text("value")) for each in reader.maps("sip_headers"))
        targets[name] = HandoffTarget(
            name, reader.text("description"), reader.flag("is_default"), method, number, headers
        )
    defaults = [target.name for target in targets.values() if target.is_default]
    if readers and len(defaults) != 1:
        root.error(f"Multiple or zero default handoffs detected: {defaults}", "handoffs")
    return targets


def _number(sip: Reader) -> str | None:
    value = sip.raw("phone_number")
    if isinstance(value, int | float):
        sip.error("'phone_number' should be str but got int. Put it in quotes.", "phone_number")
        return None
    return sip.text("phone_number") or None


def find_handoff(targets: Mapping[str, HandoffTarget], destination: str | None) -> HandoffTarget | None:
    """By exact name, then ignoring case; `default` (or nothing) is the default handoff."""
    if destination in targets:
        return targets[str(destination)]
    wanted = (destination or "default").lower()
    for target in targets.values():
        if target.name.lower() == wanted:
            return target
    return next((t for t in targets.values() if t.is_default), None) if wanted == "default" else None
