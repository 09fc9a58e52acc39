"""The child side of an agent-config project.

Runs in a worker as `ProjectRuntime("callagent.agents.adk.runtime:AdkRuntime", project)`. `WorkerPool.lease(context)`
takes `{"id", "user_id", "app_name"}`. `{"op": "describe"}` → `{"root": agent | None, "errors": [{"file", "line",
"message"}]}`; all else is the protocol of `callagent.agents.tree.worker_protocol`.
"""

from __future__ import annotations

from callagent.agents.adk.runtime.session import AdkRuntime

__all__ = ["AdkRuntime"]
