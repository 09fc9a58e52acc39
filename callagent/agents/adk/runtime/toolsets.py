"""Sets of tools of a project's own classes, which are known only when somebody asks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from callagent.agents.adk.runtime.tools import BaseTool, BaseToolset, as_tool

SECONDS = 60.0
"""For a set to say what is in it."""


def tools_of(toolset: BaseToolset) -> list[BaseTool]:
    """What is in a set now. Raises what the set raises."""
    found: list[list[BaseTool]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            found.append([as_tool(each) for each in asyncio.run(_asked(toolset))])
        except BaseException as error:  # raised where the answer is awaited
            errors.append(error)

    # A thread: whoever imports the project may run an event loop.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"{type(toolset).__name__} did not say within {SECONDS:g} s which tools it has")
    return found[0]


async def _asked(toolset: BaseToolset) -> list[Any]:
    return list(await toolset.get_tools(None))
