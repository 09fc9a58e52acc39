"""One app, read and compiled once per process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from callagent.agents.cx.app import Code, CxApp
from callagent.agents.cx.deployments import load_served
from callagent.agents.cx.runtime.session import CxSession
from callagent.workers.runtime import Channel


class CxRuntime:
    def __init__(self, project: Path) -> None:
        served = load_served(Path(project))
        self._first = served[0].variant
        self._served = {each.variant: (each.app, _all_compiled(each.app)) for each in served}
        self._places = {each.variant: each.reader.place for each in served}

    def open(self, context: dict[str, Any], checkpoint: Mapping[str, bytes], channel: Channel) -> CxSession:
        """A call's session; with a checkpoint it goes on where another worker stopped."""
        variant = str(context.get("variant") or self._first)
        app, compiled = self._served[variant]
        places = {variant: self._places[variant], **self._places}
        return CxSession(app, compiled, context, checkpoint, channel, places)


def codes_of(app: CxApp) -> list[Code]:
    """All Python of an app."""
    found = [code for tool in app.tools.values() for code in (tool.code, tool.fake) if code is not None]
    for agent in app.agents.values():
        found += [code for row in agent.callbacks.values() for code in row]
        found += agent.conditions.values()
    for guardrail in app.guardrails.values():
        found += guardrail.callbacks.values()
    return found


def _all_compiled(app: CxApp) -> dict[str, CodeType | SyntaxError]:
    return {code.file: _compiled(code) for code in codes_of(app)}


def _compiled(code: Code) -> CodeType | SyntaxError:
    """What is wrong with a file shows when it is used, and in `describe`."""
    try:
        return compile(code.source, code.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return error if isinstance(error, SyntaxError) else SyntaxError(str(error))
