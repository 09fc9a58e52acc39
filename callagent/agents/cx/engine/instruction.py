"""Instructions with the call's variables and the app's names in them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from callagent.agents.cx.engine.conditions import choose
from callagent.agents.cx.format import CxApp, tool_name

_REFERENCE = re.compile(r"\{@\s*(TOOL|AGENT|WIDGET)\s*:\s*([^{}]+?)\s*\}", re.IGNORECASE)
_STATIC = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}")
_DYNAMIC = re.compile(r"(?<!\{)\{\s*([A-Za-z_][\w-]*)\s*\}(?!\})")

PERSONAS = {
    "CONCISE": "Keep every answer short and to the point.",
    "CHATTY": "Explain your answers, with context and details.",
}
"""What a channel's persona adds to the instruction."""


def render(app: CxApp, agent: str, variables: Mapping[str, Any]) -> str:
    """The global instruction and the agent's. `{{name}}` is the value; `{name}` stays: its value is told apart."""
    texts = [choose(text, variables).strip() for text in (app.global_instruction, app.agents[agent].instruction)]
    texts.append(PERSONAS.get(app.persona, ""))

    def static(found: re.Match[str]) -> str:
        return show(variables[found[1]]) if found[1] in variables else found[0]

    def reference(found: re.Match[str]) -> str:
        kind, name = found[1].upper(), found[2]
        if kind == "AGENT":
            return app.agent_named(name) or name
        tool = app.tool_named(name) if kind == "TOOL" else None
        return tool_name(app.tools[tool]) if tool else name

    whole = "\n\n".join(text for text in texts if text)
    return _STATIC.sub(static, _REFERENCE.sub(reference, whole))


def dynamic_names(app: CxApp, agent: str) -> list[str]:
    """The variables that the instruction refers to as `{name}`, each once."""
    text = f"{app.global_instruction}\n{app.agents[agent].instruction}"
    return list(dict.fromkeys(found[1] for found in _DYNAMIC.finditer(text)))


def state_update(name: str, value: Any) -> str:
    """How the model is told a variable's value."""
    return f"<state_update>{name}: {show(value)}</state_update>"


def show(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
