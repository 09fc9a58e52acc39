"""The worker's half of `tree.worker_client`: a session that runs callbacks and tools; formats bring the objects."""

from __future__ import annotations

from callagent.agents.tree.runtime.live import LiveConversation, LiveState
from callagent.agents.tree.runtime.session import Subject, TreeSession, patience

__all__ = ["LiveConversation", "LiveState", "Subject", "TreeSession", "patience"]
