"""The tools of an agent on the telephone: hang up, hand the call over, collect key presses."""

from __future__ import annotations

from collections.abc import Mapping

from callagent.agents.actions import DigitSettings, Handoff, HangUp, Listen, ListenSettings
from callagent.agents.tree.events import JsonObject
from callagent.agents.tree.nodes import Tool, ToolKind

HANG_UP, HAND_OFF, COLLECT_DIGITS = "hang_up", "hand_off", "collect_digits"
_REASON = {"type": "object", "properties": {"reason": {"type": "string"}}}
_DESCRIPTIONS = {
    HANG_UP: "End the call. Say goodbye in the same answer, before this call.",
    HAND_OFF: "Give the call to a person. Tell the caller so in the same answer, before this call.",
    COLLECT_DIGITS: "Let the caller enter digits on the telephone's keys. Ask for them in the same answer.",
}
HANDOFF_METHODS = ("refer", "invite", "bye")
"""Ways to hand a call over: see the transfer methods in `ARCHITECTURE.md`."""
PHONE_TOOL_OPTIONS: Mapping[str, Mapping[str, type]] = {
    HANG_UP: {"description": str},
    HAND_OFF: {"description": str, "destination": str, "method": str, "number": str, "headers": dict},
    COLLECT_DIGITS: {
        "description": str,
        "max_digits": int,
        "end_key": str,
        "first_digit_timeout": float,
        "inter_digit_timeout": float,
        "while_speaking": bool,
        "is_pii": bool,
    },
}
"""The options of each tool that a project may set, and their types."""
_DIGIT_OPTIONS = ("max_digits", "end_key", "first_digit_timeout", "inter_digit_timeout", "while_speaking", "is_pii")


def phone_tool(name: str, options: JsonObject) -> Tool:
    """Make one of the three tools with a project's options."""
    parameters = _REASON if name == HAND_OFF else None
    description = str(options.get("description") or _DESCRIPTIONS[name])
    return Tool(name, ToolKind.PHONE, description, parameters, options=options)


def phone_ending(tool: Tool, arguments: JsonObject) -> Listen | Handoff | HangUp:
    """Return how the turn ends once the model has called a phone tool; the model is not asked again."""
    options = tool.options
    match tool.name:
        case "hang_up":
            return HangUp()
        case "hand_off":
            destination = str(options.get("destination") or "")
            return Handoff(
                destination=destination,
                reason=str(arguments.get("reason") or destination),
                method=str(options.get("method") or "refer"),
                number=options.get("number"),
                headers={str(name): str(value) for name, value in (options.get("headers") or {}).items()},
            )
    digits = DigitSettings(**{key: options[key] for key in _DIGIT_OPTIONS if key in options})
    return Listen(ListenSettings(digits=digits))
