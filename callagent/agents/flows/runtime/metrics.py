"""`conv.write_metric`: each metric is acknowledged by the core before the function goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from callagent.agents.flows.runtime.effects import Effects
from callagent.agents.flows.runtime.logs import ConversationLogger
from callagent.agents.flows.runtime.messages import MetricEvent
from callagent.agents.kernel.runtime import project_or_note
from callagent.workers.runtime import AskFailed, Channel

NAME_LIMIT = 128
VALUE_LIMIT = 8 * 1024


class Metrics:
    def __init__(self, channel: Channel, log: ConversationLogger) -> None:
        self._channel = channel
        self._log = log
        self.events: list[MetricEvent] = []
        """All that were written in this call, this run's included."""

    def begin(self, written: Iterable[Mapping[str, Any]]) -> None:
        self.events = [MetricEvent(str(entry.get("name")), entry.get("value")) for entry in written]

    def write(self, name: Any, value: Any, write_once: bool, effects: Effects) -> None:
        name = str(name)
        if len(name) > NAME_LIMIT:
            self._log.error(f"metric name of {len(name)} characters cut to {NAME_LIMIT}")
            name = name[:NAME_LIMIT]
        if write_once and any(event.name == name for event in self.events):
            return
        value = project_or_note(value, VALUE_LIMIT)
        message = {"type": "metric", "name": name, "value": value, "write_once": bool(write_once), "ask": True}
        try:
            self._channel.ask(message)
        except AskFailed as error:
            self._log.error(f"metric '{name}' was not written: {error}")
            return
        self.events.append(MetricEvent(name, value))
        effects.metrics.append({"name": name, "value": value})
