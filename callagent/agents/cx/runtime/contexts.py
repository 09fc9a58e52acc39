"""What an app's code learns of the call: `callback_context` and the global `context`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from callagent.agents.cx.runtime.classes import CesModel, Content, Event, EventActions, Part


class CallbackContext(CesModel):
    user_content: Content | None = None
    invocation_id: str = ""
    agent_name: str = ""
    session_id: str = ""
    state: dict[str, Any] = Field(default_factory=dict)
    """The call's variables; a change inside a value counts too."""
    actions: EventActions = Field(default_factory=EventActions)
    events: list[Event] = Field(default_factory=list)
    streaming_stage: str | None = None
    language_code: str = ""
    project_id: str = ""
    project_number: int = 0
    location: str = ""
    app_id: str = ""
    turn_index: int = 0

    @property
    def variables(self) -> dict[str, Any]:
        """The same as `state`."""
        return self.state

    @variables.setter
    def variables(self, value: dict[str, Any]) -> None:
        self.state = value

    def get_variable(self, key: str, default: Any = None) -> Any:
        return self.state.get(key, default)

    def set_variable(self, key: str, value: Any) -> None:
        self.state[key] = value

    def remove_variable(self, key: str) -> None:
        """Raises KeyError when there is none."""
        del self.state[key]

    def get_last_user_input(self) -> list[Part]:
        """The parts of the newest row of the caller's events, oldest first."""
        if not self.events and self.user_content is not None:
            return list(self.user_content.parts or ())
        return self._last_row(Event.is_user)

    def get_last_agent_output(self) -> list[Part]:
        return self._last_row(Event.is_agent)

    def parts(self) -> list[Part]:
        """Of the whole call."""
        return [part for event in self.events for part in event.parts()]

    def _last_row(self, belongs: Callable[[Event], bool]) -> list[Part]:
        row: list[Event] = []
        for event in reversed(self.events):
            if belongs(event):
                row.append(event)
            elif row:
                break
        return [part for event in reversed(row) for part in event.parts()]


class ToolContext(CallbackContext):
    function_call_id: str | None = None


def live_context(state: dict[str, Any], events: list[Event], call_id: str | None, **more: Any) -> CallbackContext:
    """A context of a running call: it holds these very objects, so that what code changes in them is kept."""
    known = {"state": state, "events": events, **more}
    if call_id is None:
        return CallbackContext.model_construct(**known)
    return ToolContext.model_construct(function_call_id=call_id, **known)


def as_tool_context(context: CallbackContext) -> ToolContext:
    """As a tool sees it that a callback calls."""
    if isinstance(context, ToolContext):
        return context
    return ToolContext.model_construct(**{name: getattr(context, name) for name in CallbackContext.model_fields})
