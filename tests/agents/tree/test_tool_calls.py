from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded
from callagent.agents.tree.tool_calls import as_result, parse_arguments
from callagent.testing.virtual_time import run
from tests.agents.cx.support import driven as driven_app
from tests.agents.cx.support import write_app
from tests.agents.driving import words
from tests.agents.flows.support import of
from tests.agents.tree.support import Functions, code_tool, driven, llm


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {"invalid_arguments": [1]}),
        ("{a", {"invalid_arguments": "{a"}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_wrote(text: str, expected: dict[str, Any]) -> None:
    assert parse_arguments(text) == expected


@pytest.mark.parametrize(("returned", "expected"), [({"a": 1}, {"a": 1}), ({}, {}), (None, {"result": None})])
def test_a_result_that_is_no_map_is_put_into_one(returned: Any, expected: dict[str, Any]) -> None:
    assert as_result(returned) == expected


def test_the_model_goes_on_while_an_asynchronous_tool_runs_and_learns_the_result_later() -> None:
    async def search(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(30)
        return "found"

    async def invocation() -> None:
        root = llm("root", tools=(code_tool("search", asynchronous=True),))
        code = Functions(named={"search": search})
        entries = ({"calls": [{"name": "search"}]}, {"text": "I am searching."}, {"text": "Wait."}, {"text": "Here."})
        async with driven(root, *entries, code=code) as tree:
            actions = await tree.says("find it")
            assert words(actions) == ["I am searching."]
            assert of(FunctionEnded, actions) == []
            assert "running" in str(tree.model.messages())

            assert words(await tree.says("and?")) == ["Wait."]
            await asyncio.sleep(31)
            actions = await tree.says("and now?")

            assert of(FunctionEnded, actions)[0].result == "found"
            assert "running" not in str(tree.model.messages())
            assert "found" in str(tree.model.messages())

    run(invocation())


async def test_a_key_that_a_tool_removed_is_told_where_it_changed_nothing_else(tmp_path: Path) -> None:
    tools = {
        "keep": "def keep() -> str:\n    context.state['kept'] = 1\n    return 'kept'\n",
        "forget": "def forget() -> str:\n    del context.state['kept']\n    return 'gone'\n",
    }
    entries = ({"calls": [{"name": name}]} for name in tools)
    async with driven_app(write_app(tmp_path, tools=tools), *entries, {"text": "Done."}) as agent:
        kept, forgotten = of(FunctionEnded, await agent.says("Keep it, then forget it."))
    assert kept.state_changes["updated"] == {"kept": 1}
    assert forgotten.state_changes == {"added": {}, "updated": {}, "removed": ["kept"]}


async def test_an_asynchronous_tool_ends_with_the_call() -> None:
    async def search(arguments: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    root = llm("root", tools=(code_tool("search", asynchronous=True),))
    code = Functions(named={"search": search})
    async with driven(root, {"calls": [{"name": "search"}]}, {"text": "Searching."}, code=code) as tree:
        await tree.says("find it")
    assert code.seen == ["search", "closed"]
