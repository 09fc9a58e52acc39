from typing import Literal


def read_meter(number: str, kind: Literal["water", "power"] = "water", _note: str = "") -> dict:
    """Read a meter.

    Args:
        number: What stands on the meter.
        kind (str): What it counts,
            water or power.

    Returns:
        The reading.
    """
    if not number:
        return {"error": "number is required", "agent_action": "Ask for it."}
    context.state["meter"] = number
    return {"reading": {"value": 417, "unit": "m3"}, "kind": kind, "history": [401, 409, 417]}
