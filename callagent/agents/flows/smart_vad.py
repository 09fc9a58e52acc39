"""`smart_vad`: a function waits until it is sure that the caller has finished; who goes on speaking stops it."""

from __future__ import annotations

from typing import Any

from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.functions import ProjectFunction

DEFAULT_WAIT, GATED_WAIT = 0.8, 1.0
LONGEST_WAIT = 5.0
_LISTENS = ("voice",)


def function_wait(conversation: Conversation, function: ProjectFunction) -> float:
    """Seconds between the model's call and the function's start; 0 as text, where nobody goes on speaking."""
    experimental, flow = conversation.project.experimental, conversation.position.flow
    section = experimental.section("smart_vad")
    enabled = experimental.value("smart_vad", "is_enabled", flow) is True
    if not enabled or conversation.channel not in _LISTENS or conversation.info.wire == "text":
        return 0.0
    if _listed(section.get("nongated_functions"), flow, function.name):
        return 0.0
    if _listed(section.get("gated_functions"), flow, function.name):
        return _seconds(section.get("max_extension_duration"), GATED_WAIT)
    return _seconds(section.get("default_function_wait"), DEFAULT_WAIT)


def leaves_no_trace(conversation: Conversation, function: str) -> bool:
    """It ran at once; when the caller goes on speaking, the model is to know nothing of it. What it did stands."""
    table = conversation.project.experimental.section("smart_vad").get("nongated_functions")
    # The function may have led elsewhere: the flow it ran in is not where the call is now.
    flows = table if isinstance(table, dict) else ("",)
    return any(_listed(table, flow, function) for flow in flows)


def _listed(table: Any, flow: str | None, name: str) -> bool:
    """By flow, `""` outside of flows; a plain list holds everywhere."""
    if isinstance(table, dict):
        table = table.get(flow or "")
    return isinstance(table, list) and name in table


def _seconds(value: Any, default: float) -> float:
    """A number, or a text such as `0.8s`."""
    try:
        seconds = float(str(value).removesuffix("s"))
    except ValueError:
        return default
    return min(LONGEST_WAIT, seconds) if seconds >= 0 else default
