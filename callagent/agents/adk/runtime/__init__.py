"""An agent-config project in a worker: its Python is imported and called here.

A worker loads `ProjectRuntime("callagent.agents.adk.runtime:AdkRuntime", project)`; `WorkerPool.lease(context)` takes
`{"id", "user_id", "app_name"}`. The request `{"op": "describe"}` is answered by `{"root": agent | None, "errors":
[{"file", "line", "message"}], "unreachable": […]}`; all others are those of `callagent.agents.tree.worker_protocol`.
"""

from callagent.agents.adk.runtime.session import AdkRuntime

__all__ = ["AdkRuntime"]
