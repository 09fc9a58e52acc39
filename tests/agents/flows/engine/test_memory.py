"""What a call leaves for the caller's next one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import FileMemory, FlowSettings
from callagent.agents.flows.engine import agent as engine_module
from callagent.agents.flows.engine import memory as memory_module
from callagent.agents.flows.engine.memory import MAX_BYTES
from callagent.call_info import CallInfo, EndReason
from tests.agents.flows.support import call_info, driven, function, words, write_project

START = """
    line = conv.memory.line_memory
    seen = (conv.memory.get("town"), len(conv.memory), line.returning, line.contact_count, line.handoff_count)
    conv.state.town = "Oslo"
    conv.state.secret = "s"
    return {"utterance": repr(seen)}
"""


def project(root: Path, **memory: Any) -> Path:
    settings = {"repeat_caller": {"analytics_enabled": True, "state_keys": ["town", "gone"]}, **memory}
    return write_project(
        root,
        {
            "functions/start_function.py": function("start_function", START),
            "agent_settings/experimental_config.json": json.dumps({"memory": settings}),
        },
    )


async def called(root: Path, memory: FileMemory | None, info: CallInfo | None = None) -> str:
    """One whole call; what the start function saw."""
    async with driven(root, settings=FlowSettings(memory=memory), info=info) as agent:
        (seen,) = words(await agent.start())
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 1)
    return seen


NEW = "(None, 0, False, 0, 0)"
KNOWN = "('Oslo', 1, True, 1, 0)"


async def test_the_next_call_of_the_same_caller_finds_the_named_state_keys(tmp_path: Path):
    root, memory = project(tmp_path / "p"), FileMemory(tmp_path / "m")
    assert await called(root, memory) == NEW
    assert await called(root, memory) == KNOWN
    assert await called(root, memory) == "('Oslo', 1, True, 2, 0)"
    (file,) = (tmp_path / "m").iterdir()
    assert "+4930555" not in file.name
    assert "secret" not in file.read_text()


async def test_another_caller_and_a_withheld_number_are_nobody(tmp_path: Path):
    root, memory = project(tmp_path / "p"), FileMemory(tmp_path / "m")
    await called(root, memory)
    assert await called(root, memory, call_info(caller="+1")) == NEW
    assert await called(root, memory, call_info(caller=None)) == NEW
    assert await called(root, memory, call_info(caller=None)) == NEW


async def test_a_header_or_a_state_key_may_tell_who_the_caller_is(tmp_path: Path):
    root, memory = project(tmp_path / "p", identifier_source="sip_headers:X-Customer"), FileMemory(tmp_path / "m")
    known = call_info(headers={"X-Customer": "7"})
    assert await called(root, memory, known) == NEW
    assert await called(root, memory, known) == KNOWN
    assert await called(root, memory) == NEW
    root = project(tmp_path / "q", identifier_source="state:town")
    await called(root, FileMemory(tmp_path / "n"))
    assert len(list((tmp_path / "n").iterdir())) == 1


async def test_numbers_on_the_blacklist_are_not_remembered(tmp_path: Path):
    repeat = {"identifier_blacklist": ["+4930555"], "state_keys": ["town"]}
    root, memory = project(tmp_path / "p", repeat_caller=repeat), FileMemory(tmp_path / "m")
    await called(root, memory)
    assert await called(root, memory) == NEW


async def test_without_a_store_or_without_the_projects_wish_nothing_is_kept(tmp_path: Path):
    root = project(tmp_path / "p")
    assert [await called(root, None) for _ in range(2)] == [NEW, NEW]
    plain = write_project(tmp_path / "q", {"functions/start_function.py": function("start_function", START)})
    assert [await called(plain, FileMemory(tmp_path / "m")) for _ in range(2)] == [NEW, NEW]
    assert not (tmp_path / "m").exists()


async def test_a_damaged_or_absurd_memory_is_none(tmp_path: Path):
    memory = FileMemory(tmp_path)
    await memory.write("a", {"x": 1})
    assert await memory.read("a") == {"x": 1}
    await memory.write("a", {"x": "y" * MAX_BYTES})
    assert await memory.read("a") == {"x": 1}
    next(tmp_path.iterdir()).write_text("{")
    assert await memory.read("a") == {}


async def test_a_disk_that_stalls_costs_the_memory_and_not_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Stalled(FileMemory):
        async def read(self, owner: str) -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("never reached")

    monkeypatch.setattr(memory_module, "READ_SECONDS", 0.05)
    monkeypatch.setattr(engine_module, "WRITE_SECONDS", 0.05)
    assert await called(project(tmp_path / "p"), Stalled(tmp_path / "m")) == NEW
