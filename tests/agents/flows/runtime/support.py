"""A project from a few texts, and one call's session on it, in this process and thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from callagent.agents.flows.runtime import FlowRuntime
from callagent.agents.flows.runtime.session import FlowSession
from callagent.workers.protocol import AskFailed

IMPORT = "from _gen import *  # <AUTO GENERATED>\n"


class Core:
    """The other end of the channel: records messages, answers asks from a list of answers."""

    def __init__(self, *answers: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self.answers = list(answers)
        self.secrets: dict[str, str] = {}

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def ask(self, message: dict[str, Any]) -> Any:
        self.messages.append(message)
        if message["type"] == "metric":
            return None
        if message["type"] == "secret":
            return self.secrets.get(message["name"])
        answer = self.answers.pop(0)
        if isinstance(answer, AskFailed):
            raise answer
        return answer


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(IMPORT + dedent(text))
    return root


class Call:
    """One call on a project."""

    def __init__(self, root: Path, core: Core | None = None, **context: Any) -> None:
        self.core = core or Core()
        self.checkpoint: dict[str, bytes] = {}
        self._context = context
        self._runtime = FlowRuntime(root)
        self.session: FlowSession = self._runtime.open(context, {}, self.core)

    def run(self, name: str, *, kind: str = "global", flow: str | None = None, arguments: Any = None,
            **conv: Any) -> dict[str, Any]:  # fmt: skip
        function = {"kind": kind, "flow": flow, "name": name}
        return self.handle({"op": "run", "function": function, "arguments": arguments or {}, "conv": conv})

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.session.handle(request)
        for key, value in answer.get("checkpoint", {}).items():
            if value is None:
                self.checkpoint.pop(key)
            else:
                self.checkpoint[key] = value
        return answer

    def replace(self) -> None:
        """Go on in a new session from the checkpoint."""
        self.session = self._runtime.open(self._context, self.checkpoint, self.core)


def call_of(root: Path) -> Callable[..., Call]:
    """`make(body)`: a call on a project whose only function `f(conv)` has this body."""

    def make(body: str, core: Core | None = None, **context: Any) -> Call:
        indented = "".join(f"    {line}\n" for line in dedent(body).strip().splitlines())
        write(root, {"functions/f.py": f"\ndef f(conv: Conversation):\n{indented}"})
        return Call(root, core, **context)

    return make
