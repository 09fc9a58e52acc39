"""The child side of an app.

Runs in a worker as `ProjectRuntime("callagent.agents.cx.runtime:CxRuntime", app)`. `WorkerPool.lease(context)` takes
`{"session_id", "app_id", "language_code", "use_tool_fakes", "mocks": {tool: [answer]}}`. `{"op": "describe"}` →
`{"tools": {name: {"description", "parameters"}}, "errors": [{"file", "line", "message"}], "unreachable"}`; all else is
the protocol of `callagent.agents.tree.worker_code`.
"""

from __future__ import annotations

from callagent.agents.cx.runtime.cx_runtime import CxRuntime

__all__ = ["CxRuntime"]
