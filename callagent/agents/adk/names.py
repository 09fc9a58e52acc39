"""What a dotted path in YAML may lead to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from callagent.agents.tree.phone import HAND_OFF, METHODS, OPTIONS

BUILT_IN = "google.adk"
PHONE = "callagent"
MCP_TOOLSETS = ("McpToolset", "MCPToolset")
ALLOW_PROGRAMS = "ADK_ALLOW_CONFIG_STDIO_MCP_SERVERS"
"""The variable that lets YAML name programs to be started; the format's own."""
MCP_WITHOUT_EFFECT = ("credential_key", "tool_list_cache_ttl_seconds", "use_mcp_resources")
"""Arguments of such a set that do nothing here."""
_REFUSED = {"yaml", "ruamel", "distutils", "pip", "setuptools", "pkg_resources"}


def reference_problem(path: str, package: str) -> str:
    """Why a path may not be used; empty: it may. Only the project's own package and built-in names may be."""
    parts = path.removeprefix(".").split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and not path.startswith(".")):
        return f"'{path}' is no dotted path such as {package}.module.name"
    head = parts[0]
    if path.startswith((".", f"{BUILT_IN}.")) or head == package:
        return ""
    if head == PHONE and len(parts) == 2:
        return ""
    if head in sys.stdlib_module_names or head in _REFUSED:
        return f"'{path}' is not in the project: agents may not refer to Python's own modules"
    return f"'{path}' is not in the project: a path that begins with '{package}.' is needed"


def phone_problems(name: str, options: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong with a `callagent.…` tool, with the keys that lead there."""
    known = OPTIONS.get(name)
    if known is None:
        yield ("name",), f"there is no tool '{PHONE}.{name}'; {', '.join(f'{PHONE}.{each}' for each in OPTIONS)} are"
        return
    for key, value in options.items():
        if key not in known:
            yield ("args", str(key)), f"there is no such key; {', '.join(known)} are"
        elif not isinstance(value, (int, float) if known[key] is float else known[key]):
            yield ("args", str(key)), f"{known[key].__name__} is needed but got {type(value).__name__}"
    if name == HAND_OFF and options.get("method", "refer") not in METHODS:
        yield ("args", "method"), f"one of {', '.join(METHODS)} is needed"
    if name == HAND_OFF and not options.get("destination"):
        yield ("args",), "the key 'destination' is missing"


def absolute(path: str, package: str) -> str:
    """With the package in front where the path begins with a dot."""
    return f"{package}{path}" if path.startswith(".") else path
