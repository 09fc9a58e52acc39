"""Project code that does harm, in real processes: it is contained, and the call goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded
from callagent.agents.tree import TreeSettings
from callagent.workers import ProcessPool
from tests.agents.adk.support import Driven, driven, write_project
from tests.agents.driving import words
from tests.agents.flows.support import of

FILES = {
    "__init__.py": "",
    "tools.py": """
        import datetime
        import os
        import sys

        from google.adk.tools import ToolContext

        def keep(tool_context: ToolContext):
            tool_context.state["day"] = datetime.date(2026, 3, 1)
            tool_context.state["seen"] = ["keep"]

        def spin():
            while True:
                pass

        def exits():
            sys.exit(3)

        def dies():
            os._exit(3)

        def too_much():
            return "x" * 1_000_000_000

        def forks():
            if os.fork() == 0:
                while True:
                    pass
            return "forked"

        def spies():
            found = []
            for entry in os.listdir("/proc"):
                if entry.isdigit() and int(entry) != os.getpid():
                    try:
                        found += [entry] if open(f"/proc/{entry}/environ", "rb").read() else []
                    except OSError:
                        pass
            return {"found": found}

        def recall(tool_context: ToolContext):
            return [tool_context.state["day"].year, tool_context.state["seen"], len(tool_context.session.events)]
    """,
}
NAMES = ("keep", "spin", "exits", "dies", "too_much", "forks", "spies", "recall")


@pytest.fixture
async def agent(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Driven]:
    tools = "".join(f"  - name: agency.tools.{name}\n" for name in NAMES)
    project = write_project(tmp_path, {**FILES, "root_agent.yaml": f"name: a\ninstruction: x\ntools:\n{tools}"})
    calls: Any = [[{"name": name}] for name in ("keep", request.param, "recall")]
    entries = [{"calls": calls[0]}, {"text": "Kept."}, {"calls": calls[1]}, {"text": "Still here."}]
    entries += [{"calls": calls[2]}, {"text": "Known."}]
    if request.param in ("spin", "exits", "dies", "too_much"):
        del entries[3]
    settings = TreeSettings(function_timeout=2.0)
    async with driven(project, *entries, settings=settings, make_pool=ProcessPool) as driven_agent:
        yield driven_agent


@pytest.mark.parametrize("agent", ["spin", "exits", "dies", "too_much", "forks", "spies"], indirect=True)
async def test_harm_is_contained_and_state_survives(agent: Driven) -> None:
    assert words(await agent.says("keep")) == ["Kept."]
    harmed = of(FunctionEnded, await agent.says("harm"))[0]
    assert harmed.error is not None or harmed.result in ("forked", {"found": []})

    recalled = await agent.says("recall")

    assert words(recalled) == ["Known."]
    (ended,) = of(FunctionEnded, recalled)
    assert ended.result[:2] == [date(2026, 3, 1).year, ["keep"]]
    assert ended.result[2] > 5
