"""Artifacts and memories: what a call keeps, for whom, and how much of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.adk import adk_runtime, check_adk_project, load_adk_project
from callagent.agents.tree.call_storage import (
    MAX_BYTES,
    MAX_CALLERS,
    MAX_CALLS,
    MAX_VERSIONS,
    ArtifactRefused,
    Artifacts,
    Memory,
    artifact_text,
    entries_of,
)
from callagent.agents.tree.events import Event
from callagent.call_info import EndReason
from callagent.workers import ProcessPool
from tests.agents.adk.support import PROJECTS, driven, write_project
from tests.agents.driving import DrivenAgent, results, words
from tests.agents.flows.support import call_info, scripted

ARCHIVE = PROJECTS / "adk_archive"


def call(function: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": function, "arguments": arguments}]}


def test_check_has_nothing_against_them() -> None:
    assert check_adk_project(ARCHIVE).warnings == ()


async def test_files_outlive_the_worker_that_kept_them() -> None:
    entries = [
        call("keep", name="note.txt", text="Tea at five"),
        {"text": "Kept."},
        call("look", name="note.txt", version=0),
        {"text": "Tea."},
    ]
    async with driven(ARCHIVE, *entries, make_pool=ProcessPool) as agent:
        await agent.says("Keep it.")
        agent.agent._code._worker.lease._end_worker()  # type: ignore[attr-defined]
        found = results(await agent.says("What is in it?"))
        assert found["look"]["text"] == "Tea at five"
        assert found["look"]["names"] == ["note.txt", "picture.bin", "user:note.txt.csv"]


async def one_call(project: Any, caller: str | None, *said: str) -> list[Any]:
    info = dataclasses.replace(call_info(), caller=caller)

    async def write_metric(name: str, value: Any) -> None:
        raise AssertionError(name)

    agent = await project.open(info, write_metric)
    actions = [action for words_ in said for action in await DrivenAgent(agent, scripted()).says(words_)]
    await agent.end(EndReason.CALLER_HANGUP, 1)
    await agent.close()
    return actions


async def test_a_caller_is_remembered_and_nobody_else() -> None:
    entries = [
        call("keep", name="note.txt", text="Tea at five"),
        *({"text": text} for text in ("A blue paper it is.", "None.", "Yours is blue.", "I do not know.")),
    ]
    model = scripted(*entries)
    project = load_adk_project(ARCHIVE, model, ProcessPool(adk_runtime(ARCHIVE)))
    try:
        await one_call(project, "+4930123", "My paper is blue")
        await one_call(project, "+4930999", "Which colour has my paper?")
        await one_call(project, "+4930123", "Which colour has my paper?")
        await one_call(project, None, "Which colour has my paper?")
        heard = [str(model.messages(number)) for number in range(len(model.requests))]
        assert ["PAST_CONVERSATIONS" in each for each in heard[-3:]] == [False, True, False]
        assert "My paper is blue" in heard[-2]
        systems = [model.system(number) for number in range(len(model.requests))]
        assert ["user:note.txt.csv" in each for each in systems[-3:]] == [False, True, False]
        assert '"note.txt"' not in systems[-2]
    finally:
        await project.close()


async def test_secret_digits_are_in_no_file(tmp_path: Path) -> None:
    entries = [call("keep", name="pin.txt", text="[secure digits 1]"), {"text": "Kept."}]
    entries += [call("load_artifacts", artifact_names=["pin.txt", "pin.txt.csv"]), {"text": "So."}]
    async with driven(ARCHIVE, *entries) as agent:
        await agent.says("", digits="482913", secure=True)
        await agent.says("What is in it?")
        shown = str(agent.model.messages())
        assert "Artifact pin.txt.csv is:" in shown
        assert "482913" not in shown


async def test_a_file_that_is_too_large_is_the_tools_failure(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "tools.py": """
            from google.genai import types

            async def fill(tool_context) -> str:
                try:
                    part = types.Part.from_bytes(data=bytes(2 ** 20), mime_type="a/b")
                    for _ in range(9):
                        await tool_context.save_artifact("big", part)
                except Exception as error:
                    return f"{type(error).__name__}: {error}"
                return "all"
        """,
        "root_agent.yaml": "name: a\ninstruction: x\ntools: [{name: agency.tools.fill}]\n",
    }
    project = write_project(tmp_path, files)
    async with driven(project, call("fill"), {"text": "Full."}, make_pool=ProcessPool) as agent:
        actions = await agent.says("Fill it.")
        assert words(actions) == ["Full."]
        refusal = "artifact 'big' is refused: at most 200 versions and 8 MiB of artifacts are kept"
        assert results(actions)["fill"] == f"AskFailed: {refusal}"


def test_files_are_bounded_and_their_versions_counted() -> None:
    artifacts = Artifacts()
    assert [artifacts.save("a", {"text": "x"}) for _ in range(3)] == [0, 1, 2]
    assert artifacts.load("a", 5) is None
    assert artifacts.load("b") is None
    for part in ({}, {"text": 5}, {"text": "x" * (MAX_BYTES + 1)}):
        with pytest.raises(ArtifactRefused):
            artifacts.save("c", part)
    for _ in range(MAX_VERSIONS - 3):
        artifacts.save("d", {"text": ""})
    with pytest.raises(ArtifactRefused):
        artifacts.save("e", {"text": ""})


@pytest.mark.parametrize(
    ("part", "name", "text"),
    [
        ({"text": "a"}, "n", "a"),
        ({"inline_data": {"mime_type": "text/plain; charset=utf-8", "data": "ü".encode()}}, "n", "ü"),
        ({"inline_data": {"mime_type": "a/b", "data": b"1,2"}}, "n.csv", "1,2"),
        ({"inline_data": {"data": b"\x00" * 512}}, "n", "[Binary artifact: n, type: application/octet-stream, "
         "size: 0.5 KB. Content cannot be displayed inline.]"),
    ],
)  # fmt: skip
def test_files_are_shown_as_text_where_they_are_text(part: Any, name: str, text: str) -> None:
    assert artifact_text(part, name) == text


def said(*texts: str) -> list[Any]:
    events = [Event("user", {"role": "user", "parts": [{"text": text}]}) for text in texts]
    return entries_of(events, "2026-01-01T00:00:00")


def found(memory: Memory, query: str, caller: str = "a") -> list[str]:
    return [entry["content"]["parts"][0]["text"] for entry in memory.search(caller, query)]


def test_memories_that_share_more_words_come_first() -> None:
    memory = Memory()
    memory.keep_call("a", 1, said("The sky is grey", "My blue sky", "Zoë sagt 私はPythonを使う"))
    assert found(memory, "blue SKY!") == ["My blue sky", "The sky is grey"]
    assert found(memory, "python") == ["Zoë sagt 私はPythonを使う"]
    assert found(memory, "使う") == ["Zoë sagt 私はPythonを使う"]
    assert found(memory, "ytho") == found(memory, "", "b") == found(memory, "sky", "b") == []
    memory.keep_call("a", 1, said("Nothing"))
    assert found(memory, "sky") == []
    memory.keep_call("a", 2, said(*(f"tea {number}" for number in range(30))))
    assert len(found(memory, "tea")) == 10


def test_memories_are_bounded() -> None:
    memory = Memory()
    for number in range(MAX_CALLS + 1):
        memory.keep_call("a", number, said(f"word{number}"))
    assert (found(memory, "word0"), found(memory, "word1")) == ([], ["word1"])
    for number in range(MAX_CALLERS):
        memory.keep_call(f"b{number}", 1, said("word1"))
    assert found(memory, "word1") == []
