from __future__ import annotations

from tests.agents.flows.example_projects.support import chat

__all__ = ["chat"]
