"""What an agent leaves in the state under its `output_key`."""

from __future__ import annotations

from callagent.agents.tree.content import parts
from callagent.agents.tree.event import Event
from callagent.agents.tree.node import LlmNode
from callagent.agents.tree.schema import parse_output


class SavedOutput:
    """Of one run of an agent. Without a schema all that it says counts, also the words before a call of a tool."""

    def __init__(self, node: LlmNode) -> None:
        self._node = node
        self._said = ""

    def save(self, event: Event) -> None:
        """Before the event is in the history. Raises `RunFailed` when the text is not what was agreed."""
        found = [part["text"] for part in parts(event.content) if "text" in part and not part.get("thought")]
        said = "".join(found)
        if not self._node.output_key or not found or not (said or event.is_final):
            return
        if self._node.output_schema is None:
            self._said += said
            event.actions.state_delta[self._node.output_key] = self._said if said else ""
        elif event.is_final and said.strip():
            event.actions.state_delta[self._node.output_key] = parse_output(said, self._node.output_schema)
