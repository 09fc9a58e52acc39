"""What the platform's telephony means on our lines: `end_session`, transfers and their headers, the caller's variables.

Transfers are asked for by variables or parameters of the session: `PHONE_GATEWAY_TRANSFER` (a number),
`LIVE_AGENT_HANDOFF` (headers, REFER or INVITE, a partner's address) and `ESCALATION_MESSAGE` (the last words).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from callagent.agents.actions import Handoff, HangUp
from callagent.call_info import CallInfo

LIVE_AGENT = "live_agent"
"""The destination of an escalation that names no number: the peer takes the call back by our BYE and its headers."""
_UUI_PARAMETERS = ";encoding=hex;purpose=Goog-Session-Param"


def read_session_end(arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> tuple[str, HangUp | Handoff]:
    """Return the last words and how the call ends: hanging up or a transfer.

    `arguments`: those of `end_session`. Its `params` win over session variables of the same names, which count only
    where the session is escalated.
    """
    params = as_map(arguments.get("params"))
    escalated = as_bool(arguments.get("session_escalated"))

    def session_parameter(key: str) -> Any:
        return params.get(key) if key in params else variables.get(key) if escalated else None

    gateway, handoff = (
        as_map(session_parameter("PHONE_GATEWAY_TRANSFER")),
        as_map(session_parameter("LIVE_AGENT_HANDOFF")),
    )
    message = str(session_parameter("ESCALATION_MESSAGE") or "")
    reason = str(arguments.get("reason") or "")
    headers = transfer_headers(handoff)
    partner = as_map(handoff.get("PARTNER"))
    number = str(gateway.get("phone_number") or gateway.get("phoneNumber") or partner.get("sip_uri") or "")
    refer = as_bool(_either(handoff, "sip-refer", "sipRefer")) or as_bool(partner.get("sip_refer"))
    if number:
        headers |= {str(name): str(value) for name, value in as_map(partner.get("sip_parameters")).items()}
        return message, Handoff(number, reason or number, "refer" if refer else "invite", number, headers)
    if escalated or handoff:
        return message, Handoff(LIVE_AGENT, reason or LIVE_AGENT, "bye", None, headers)
    return message, HangUp()


def transfer_headers(handoff: Mapping[str, Any]) -> dict[str, str]:
    """Return the SIP headers of a transfer: `x-headers` as they are, `uui-headers` as one User-to-User (RFC 7433)."""
    x_headers = as_map(_either(handoff, "x-headers", "xHeaders"))
    headers = {str(name): str(value) for name, value in x_headers.items()}
    pairs = list(_pairs(_either(handoff, "uui-headers", "uuiHeaders")))
    if pairs:
        text = ";".join(f"{key}={value}" for key, value in pairs)
        headers["User-to-User"] = text.encode().hex() + _UUI_PARAMETERS
    return headers


def read_uui(value: str) -> list[dict[str, str]]:
    """Return the `uui-headers` variable of a User-to-User header; empty when it is not in the form that we send."""
    data = value.partition(";")[0].strip()
    try:
        text = bytes.fromhex(data).decode("utf-8")
    except ValueError:
        return []
    return [{key: item} for pair in text.split(";") for key, found, item in (pair.partition("="),) if found]


def telephony_variables(info: CallInfo) -> dict[str, Any]:
    """Return the session variables that the platform fills in from the telephone call."""
    x_headers = {name: value for name, value in info.headers.items() if name.lower().startswith("x-")}
    uui = next((value for name, value in info.headers.items() if name.lower() == "user-to-user"), "")
    return {"telephony-caller-id": info.caller or "", "x-headers": x_headers, "uui-headers": read_uui(uui)}


def as_map(value: Any) -> dict[str, Any]:
    """Return an object, also one that a variable holds as JSON text; anything else is empty."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def as_bool(value: Any) -> bool:
    """Return a truth value, also one that a variable holds as the text `true`."""
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)


def _either(data: Mapping[str, Any], *keys: str) -> Any:
    return next((data[key] for key in keys if key in data), None)


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Return the pairs of one map, or of a list of `{"key", "value"}` or `{name: value}`."""
    rows = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    pairs: list[tuple[str, str]] = []
    for row in rows:
        if not isinstance(row, Mapping):
            continue
        if row.keys() == {"key", "value"}:
            pairs.append((str(row["key"]), str(row["value"])))
        else:
            pairs += [(str(key), str(item)) for key, item in row.items()]
    return pairs
