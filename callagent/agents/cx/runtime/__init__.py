"""The part of an app that runs in a worker, loaded as `ProjectRuntime("callagent.agents.cx.runtime:CxRuntime", app)`.

`WorkerPool.lease(context)` takes `{"variant", "deployment", "session_id", "app_id", "language_code", "use_tool_fakes",
"mocks": {tool: [answer]}}`. The request `{"op": "describe"}` is answered by `{"tools": {name: {"description",
"parameters"}}, "errors": [{"file", "line", "message"}], "unreachable": [as errors], "places": {variant: folder}}`. All
other messages follow `callagent.agents.tree.worker_protocol`.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.cx.runtime.app_code import may_import
    from callagent.agents.cx.runtime.session import CxRuntime

_MODULES = {
    "CxRuntime": "session",
    "may_import": "app_code",
}

__all__ = [
    "CxRuntime",
    "may_import",
]

__getattr__ = lazy_exports(__name__, _MODULES)
