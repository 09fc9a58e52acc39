"""`{name}` in instructions: values of the state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from callagent.agents.tree.artifacts import Artifacts, readable
from callagent.agents.tree.failure import RunFailed

_VARIABLE = re.compile(r"(?<![$\{\\])\{+[^{}]*\}+")
_SCOPES = ("app", "user", "temp")


def fill_in(template: str, state: Mapping[str, Any], agent: str, artifacts: Artifacts | None = None) -> str:
    """The template with its values. `{name?}` may be missing; raises `RunFailed` when `{name}` is.

    What is no name is left as it stands, and so are `${name}` and `\\{name}`.
    """

    def value(found: re.Match[str]) -> str:
        name = found.group().strip("{}").strip()
        optional, name = name.endswith("?"), name.removesuffix("?")
        if name.startswith("artifact."):
            return _artifact(artifacts or Artifacts(), name.removeprefix("artifact."), optional, agent)
        if not is_state_name(name):
            return found.group()
        if name in state:
            return "" if state[name] is None else str(state[name])
        if optional:
            return ""
        raise RunFailed("KeyError", repr(f"Context variable not found: `{name}` in agent '{agent}'."))

    return _VARIABLE.sub(value, template)


def is_state_name(name: str) -> bool:
    scope, colon, rest = name.partition(":")
    return rest.isidentifier() and scope in _SCOPES if colon else name.isidentifier()


def _artifact(artifacts: Artifacts, name: str, optional: bool, agent: str) -> str:
    found = artifacts.load(name)
    if found is not None:
        return readable(found, name)
    if optional:
        return ""
    raise RunFailed("KeyError", repr(f"Artifact '{name}' not found in agent '{agent}'."))
