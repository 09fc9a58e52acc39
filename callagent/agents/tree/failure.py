"""What ends a run of the tree before its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callagent.agents.tree.node import Node


class RunFailed(Exception):
    """The turn is over; the call is not. `kind` is the name of the error as project authors know it."""

    agent: Node | None = None
    """Who had the turn."""
    author: str = ""
    """Whose event it is in the history."""

    def __init__(self, kind: str, text: str, *, told: bool = False) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.told = told
        """The failure is in the history already."""
