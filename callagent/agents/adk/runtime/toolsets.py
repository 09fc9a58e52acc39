"""Sets of tools of a project's own classes, which are known only when somebody asks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from callagent.agents.adk.runtime.tools import BaseTool, BaseToolset, as_tool
from callagent.agents.kernel.runtime import error_message

SECONDS = 60.0
"""For a set to say what is in it."""


class SetFailed(Exception):
    """A set did not say what is in it."""

    def __init__(self, toolset: BaseToolset, text: str) -> None:
        super().__init__(f"'{type(toolset).__name__}': its tools are not known: {text}")
        self.place = toolset.place


def tools_of(toolset: BaseToolset) -> list[BaseTool]:
    """What is in a set now. Raises `SetFailed`."""
    found: list[list[BaseTool]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            found.append([as_tool(each) for each in asyncio.run(_asked(toolset))])
        except BaseException as error:  # the project's own sets run here
            errors.append(error)

    # A thread: whoever imports the project may run an event loop.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if errors:
        raise SetFailed(toolset, f"{type(errors[0]).__name__}: {error_message(errors[0])}") from errors[0]
    if not found:
        raise SetFailed(toolset, f"it did not say within {SECONDS:g} s")
    return found[0]


async def _asked(toolset: BaseToolset) -> list[Any]:
    return list(await toolset.get_tools(None))
