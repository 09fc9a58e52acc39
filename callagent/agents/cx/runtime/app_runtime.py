"""The app in a worker's process, read and compiled once for all calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

from callagent.agents.cx.format import AppExport, Code, CxApp, read_export
from callagent.agents.cx.runtime.session import CxSession
from callagent.workers import Channel


@dataclass(frozen=True, slots=True)
class _Loaded:
    """All versions that one deployment serves, or the app as it is exported."""

    versions: Mapping[str, tuple[CxApp, Mapping[str, CodeType | SyntaxError]]]
    """By variant; the first one is used where none is named."""
    places: Mapping[str, str]
    """Their folders in the export, by variant."""

    @classmethod
    def of(cls, exported: AppExport) -> _Loaded:
        """Read and compile what an export serves. Raises `ProjectError`."""
        served = exported.load()
        versions = {each.variant: (each.app, _all_compiled(each.app)) for each in served}
        return cls(versions, {each.variant: each.reader.place for each in served})


class CxRuntime:
    """What a worker pool runs for an app."""

    def __init__(self, project: Path) -> None:
        self._exported = read_export(Path(project))
        self._loaded = {self._exported.deployment: _Loaded.of(self._exported)}

    def open(self, context: dict[str, Any], checkpoint: Mapping[str, bytes], channel: Channel) -> CxSession:
        """Open a call's session; with a checkpoint it continues where another worker stopped."""
        loaded = self._of(str(context.get("deployment") or self._exported.deployment))
        variant = str(context.get("variant") or next(iter(loaded.versions)))
        app, compiled = loaded.versions[variant]
        places = {variant: loaded.places[variant], **loaded.places}
        return CxSession(app, compiled, context, checkpoint, channel, places)

    def _of(self, deployment: str) -> _Loaded:
        """Return a deployment; those that the project does not serve are loaded when a session first names them."""
        if deployment not in self._loaded:
            self._loaded[deployment] = _Loaded.of(replace(self._exported, deployment=deployment))
        return self._loaded[deployment]


def all_code(app: CxApp) -> list[Code]:
    """Return all Python files of an app."""
    found = [code for tool in app.tools.values() for code in (tool.code, tool.fake) if code is not None]
    for agent in app.agents.values():
        found += [code for row in agent.callbacks.values() for code in row]
        found += agent.conditions.values()
    for guardrail in app.guardrails.values():
        found += guardrail.callbacks.values()
    return found


def _all_compiled(app: CxApp) -> dict[str, CodeType | SyntaxError]:
    return {code.file: _compiled(code) for code in all_code(app)}


def _compiled(code: Code) -> CodeType | SyntaxError:
    """Compile a file. A syntax error is kept and raised when the file is used or described."""
    try:
        return compile(code.source, code.file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return error if isinstance(error, SyntaxError) else SyntaxError(str(error))
