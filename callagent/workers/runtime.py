"""What runs inside a worker: the child's half of the contract in `protocol.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from callagent.errors import WorkerError
from callagent.workers.protocol import Plain, ProjectRuntime


class AskFailed(WorkerError):
    """The core could not answer what the running code asked; the text is the core's."""


class Channel(Protocol):
    """The running code's way to the core. Both may be called from any thread of the worker."""

    def send(self, message: Plain) -> None:
        """Hand a message over; order is kept, no answer is awaited."""

    def ask(self, message: Plain) -> Any:
        """Hand a message with `"ask": True` over and wait for the answer. Raises `AskFailed`."""


class Session(Protocol):
    """One call's live objects."""

    def handle(self, request: Plain) -> Plain: ...


class Runtime(Protocol):
    """A project, imported once per process; `Runtime(project)` does it."""

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> Session: ...


def find_runtime(runtime: ProjectRuntime) -> Callable[[], Runtime]:
    """Import the runtime's class. Calling what is returned imports the project."""
    module, _, name = runtime.runtime.partition(":")
    return partial(getattr(importlib.import_module(module), name), runtime.project)


def merge_checkpoint(checkpoint: dict[str, bytes], changes: Mapping[str, bytes | None]) -> None:
    """Apply an answer's changes: bytes replace a key, None deletes it."""
    for key, value in changes.items():
        if value is None:
            checkpoint.pop(key, None)
        else:
            checkpoint[key] = value
