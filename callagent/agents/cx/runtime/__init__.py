"""The child side of an app.

Runs in a worker as `ProjectRuntime("callagent.agents.cx.runtime:CxRuntime", app)`. `WorkerPool.lease(context)` takes
`{"session_id", "app_id", "language_code"}`. `{"op": "describe"}` → `{"tools": {name: {"description", "parameters"}},
"errors": [{"file", "line", "message"}]}`; `{"op": "condition", "file", …}` → a transfer rule's Python; all else is the
protocol of `callagent.agents.tree.worker_code`.
"""

from __future__ import annotations

from callagent.agents.cx.runtime.cx_runtime import CxRuntime

__all__ = ["CxRuntime"]
