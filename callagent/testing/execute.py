"""One project function, outside a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from callagent.agents.flows import FlowProject
from callagent.call_info import CallInfo
from callagent.errors import UserError


@dataclass(frozen=True, slots=True)
class Execution:
    name: str
    """`name`, or `flow/name` with the flow's folder or display name."""
    flow: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    """What `conv.state` holds before."""
    caller: str | None = None


async def execute(project: FlowProject, execution: Execution) -> dict[str, Any]:
    """`{"body", "error", "logs", "effects", "state", "runtime"}`; `runtime` in milliseconds.

    Raises `UserError` when the project has no such function.
    """
    info = CallInfo(
        call_id="execute",
        direction="inbound",
        caller=execution.caller,
        callee=None,
        wire="text",
        started=datetime.now(UTC),
    )
    flow, _, name = execution.name.rpartition("/")
    function = project.find_function(name, execution.flow or flow or None)
    if function is None:
        raise UserError(
            f"the project has no function '{execution.name}'; it has: {', '.join(project.function_names())}"
        )
    answer = await project.run_function(info, function, execution.arguments, execution.state)
    return {
        "body": answer.returned,
        "error": answer.error,
        "logs": [dict(entry) for entry in answer.logs],
        "effects": {name: value for name, value in answer.effects.items() if value},
        "state": answer.data.get("state") or {},
        "runtime": round(answer.duration_ms, 3),
    }
