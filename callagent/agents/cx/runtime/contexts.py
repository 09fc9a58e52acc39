"""What an app's code learns of the call: `callback_context` and the global `context`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callagent.agents.cx.runtime.classes import Content, Event, EventActions, Part


class CallbackContext:
    def __init__(
        self,
        *,
        state: dict[str, Any] | None = None,
        events: list[Event] | None = None,
        user_content: Content | None = None,
        **more: Any,
    ) -> None:
        self.state: dict[str, Any] = {} if state is None else state
        """The call's variables; a change inside a value counts too."""
        self.events: list[Event] = [] if events is None else events
        self.user_content = user_content
        self.invocation_id: str = more.get("invocation_id", "")
        self.agent_name: str = more.get("agent_name", "")
        self.session_id: str = more.get("session_id", "")
        self.language_code: str = more.get("language_code", "")
        self.app_id: str = more.get("app_id", "")
        self.project_id: str = more.get("project_id", "")
        self.project_number: int = more.get("project_number", 0)
        self.location: str = more.get("location", "")
        self.turn_index: int = more.get("turn_index", 0)
        self.streaming_stage: str | None = more.get("streaming_stage")
        self.actions = EventActions()

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
    def __init__(self, *, function_call_id: str = "", **more: Any) -> None:
        super().__init__(**more)
        self.function_call_id = function_call_id
