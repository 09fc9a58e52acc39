"""What an app's code may import: the standard library without sockets and processes, and three libraries.

This keeps authors to what runs everywhere; harm is contained by the worker process, not here.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

_LIBRARIES = frozenset({"pydantic", "pydantic_core", "numpy", "google"})
_CLOSED = frozenset(
    {
        "_ctypes", "_posixsubprocess", "_socket", "_ssl", "_winapi", "ctypes", "ftplib", "gc", "imaplib", "importlib",
        "multiprocessing", "nntplib", "pip", "poplib", "pty", "runpy", "smtplib", "socket", "socketserver", "ssl",
        "subprocess", "telnetlib", "webbrowser", "xmlrpc",
    }
)  # fmt: skip
_CLOSED_MODULES = ("http.client", "http.server", "urllib.request", "concurrent.futures.process")
_GOOGLE = ("google.protobuf",)


def may_import(name: str) -> bool:
    """Whether an app's code may import a dotted name."""
    top = name.partition(".")[0]
    if top == "google":
        return any(f"{name}.".startswith(f"{each}.") for each in _GOOGLE)
    if top in _CLOSED or any(f"{name}.".startswith(f"{each}.") for each in _CLOSED_MODULES):
        return False
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if level:
        raise ImportError("an app's code has no package: relative imports lead nowhere")
    wanted = [name, *(f"{name}.{each}" for each in fromlist or ())]
    is_google = name == "google" and fromlist
    for each in wanted[1:] if is_google else wanted:
        if not may_import(each):
            raise ImportError(f"'{each}' may not be imported: the standard library, pydantic, numpy and protobuf may")
    return builtins.__import__(name, globals, locals, fromlist, level)


def code_builtins() -> dict[str, Any]:
    """Return the builtins of an app's code, whose imports are checked."""
    return {**vars(builtins), "__import__": _import}
