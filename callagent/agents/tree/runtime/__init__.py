"""The worker's half of `tree.worker_protocol`: a session that runs callbacks and tools.

A format subclasses `TreeSession` and makes the objects that its project code expects.
"""

from __future__ import annotations

from callagent.agents.tree.runtime.live import LiveConversation, LiveState
from callagent.agents.tree.runtime.session import Subject, TreeSession, server_timeout

__all__ = ["LiveConversation", "LiveState", "Subject", "TreeSession", "server_timeout"]
