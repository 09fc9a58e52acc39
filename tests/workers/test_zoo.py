"""Bad functions: each ends in its answer, an error or a cut, and the call goes on with what it knew before."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from callagent.errors import FunctionTimeout, WorkerDied
from callagent.workers.confinement import find_programs
from callagent.workers.kernel_limits import landlock_version
from tests.workers.support import SETTINGS, Messages, call, descendants, open_descriptors, processes, zoo_pool

ANSWERS = {
    "leaves_a_thread": "ok",
    "runs_asyncio": "nested",
    "is_async": "awaited",
    "returns_a_surrogate": "half a character: ?",
    "keeps_a_lambda": "kept",
    "keeps_a_trap": "kept",
    "keeps_too_much": "kept",
    "writes_odd_metrics": "written",
    "forks_and_returns": "twice",
    "prints_a_lot": "printed",
    "prints_bytes": "printed",
    "logs_a_lot": "logged",
    "closes_the_interpreter": "cleared",
}
ERRORS = {
    "recurses": "RecursionError",
    "exits_softly": "SystemExit",
    "returns_too_much": "TooLarge",
    "returns_beyond_memory": "MemoryError",
    "returns_itself_inside": "TooLarge",
    "eats_memory": "MemoryError",
    "eats_memory_slowly": "MemoryError",
    "opens_files": "OSError",
    "fills_the_disk": "OSError",
    "raises": "Unprintable",
    "lacks_its_function": "FunctionNotImported",
    "exits_at_import": "FunctionNotImported",
    "loops_at_import": "FunctionNotImported",
    "cannot_be_parsed": "FunctionNotImported",
    "there_is_no_such_function": "LookupError",
}
CUT = (
    "spins",
    "sleeps_for_ever",
    "backtracks",
    "computes_in_c",
    "waits_for_a_thread",
    "ignores_signals",
    "swallows_everything",
    "stops_itself",
    "blocks_on_a_socket",
)
DIED = {
    "exits_hard": "exited with status 3",
    "segfaults": "killed by SIGSEGV",
    "is_alarmed": "killed by SIGALRM",
    "bombs": "killed by SIGKILL",
    "writes_to_every_descriptor": "sent a frame that cannot be read",
    "closes_descriptors": "exited with status 1",
}
if landlock_version() >= 1:
    ERRORS["deletes_its_file"] = "PermissionError"
else:
    ANSWERS["deletes_its_file"] = "gone"
if landlock_version() >= 6:
    ERRORS["kills_its_parent"] = "PermissionError"
else:
    DIED["kills_its_parent"] = "killed by SIGKILL"
EITHER = ("recurses_without_limit", "bombs_out_of_its_group", "patches_everything")
"""How these end depends on the machine and on what Python needs next; that the call goes on does not."""


async def _outcome(lease: Any, name: str, messages: Messages) -> str:
    try:
        answer = await call(lease, name, timeout=0.4 if name in (*CUT, *EITHER) else 20.0, on_message=messages)
    except FunctionTimeout:
        return "cut"
    except WorkerDied as died:
        return f"died: {died}"
    error = answer["error"]
    return f"error: {error['type']}" if error else f"answer: {answer['returned']}"


def _expected(name: str) -> str:
    if name in ANSWERS:
        return f"answer: {ANSWERS[name]}"
    if name in ERRORS:
        return f"error: {ERRORS[name]}"
    return "cut" if name in CUT else f"died: the worker {DIED[name]}"


@pytest.mark.parametrize("name", [*ANSWERS, *ERRORS, *CUT, *DIED, *EITHER])
async def test_the_call_survives(name: str, tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease, other = await pool.lease({}), await pool.lease({})
    try:
        assert (await call(lease, "remember", {"value": "before"}))["error"] is None
        await call(other, "remember", {"value": "other"})
        outcome = await _outcome(lease, name, Messages())
        if name not in EITHER:
            assert outcome.startswith(_expected(name))
        answer = await call(lease, "recall")
        assert (answer["error"], answer["returned"]) == (None, "before")
        assert answer["state"]["list"] == ["before"]
        # Killing the zygote takes its other workers along; their calls, too, go on.
        assert (await call(other, "recall"))["returned"] == "other"
    finally:
        await pool.close()
    assert not descendants()


async def test_a_daemon_that_left_its_session_ends_with_the_call(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, programs=find_programs(("/bin/sh", "setsid", "sleep"), "programs"))
    pool = zoo_pool(tmp_path, settings)
    lease = await pool.lease({})
    daemon = int((await call(lease, "leaves_a_daemon"))["returned"])
    os.kill(daemon, 0)
    await lease.close()
    async with asyncio.timeout(60):
        while daemon in processes():
            await asyncio.sleep(0.01)
    await pool.close()
    assert not descendants()


async def test_many_kills_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    await (await pool.lease({})).close()
    processes, descriptors = descendants(), open_descriptors()
    for _ in range(10):
        lease = await pool.lease({})
        with pytest.raises(WorkerDied):
            await call(lease, "exits_hard")
        await call(lease, "recall")
        await lease.close()
    assert descendants() == processes
    assert open_descriptors() == descriptors
    await pool.close()
    assert not descendants()


async def test_the_environment_is_what_was_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLAGENT_SECRET", "not for you")
    pool = zoo_pool(tmp_path)
    lease = await pool.lease({})
    returned = (await call(lease, "shows_environment"))["returned"]
    await pool.close()
    assert returned["environment"]["DECLARED"] == "yes"
    assert "CALLAGENT_SECRET" not in returned["environment"]
    # 0, 1, 2, the socket to the core, and the listing's own.
    assert len(returned["descriptors"]) == 5


@pytest.mark.skipif(landlock_version() == 0, reason="the kernel has no Landlock")
async def test_no_environment_of_another_process_can_be_read(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease, other = await pool.lease({}), await pool.lease({})
    bystander = await asyncio.create_subprocess_exec("sleep", "60", env={"SECRET": "not for you"})
    try:
        await call(other, "recall")
        assert b"SECRET" in Path(f"/proc/{bystander.pid}/environ").read_bytes()
        assert (await call(lease, "reads_environments"))["returned"]["read"] == []
    finally:
        bystander.kill()
        await bystander.wait()
        await pool.close()


async def test_output_is_kept_up_to_a_cap(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease = await pool.lease({})
    messages = Messages()
    await call(lease, "prints_bytes", on_message=messages)
    assert [message["text"] for message in messages.of("output")] == ["\ufffd\ufffd no text", "no end of line"]
    messages.clear()
    await call(lease, "prints_a_lot", on_message=messages)
    await call(lease, "recall", on_message=messages)
    lines = [message["text"] for message in messages.of("output")]
    await pool.close()
    assert lines[-1] == "output is over 65536 bytes; the rest is dropped"
    assert sum(map(len, lines)) < 70_000


async def test_last_words_of_a_dying_process_are_heard(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease = await pool.lease({})
    messages = Messages()
    with pytest.raises(WorkerDied):
        await call(lease, "exits_hard", on_message=messages)
    await pool.close()
    assert messages.of("output") == [{"type": "output", "text": "last words"}]


async def test_logs_are_kept_up_to_a_cap(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease = await pool.lease({})
    answer = await call(lease, "logs_a_lot")
    await pool.close()
    assert len(answer["logs"]) < 100
    assert answer["logs"][-1]["content"] == "log is full: 65536 characters; the rest is dropped"


async def test_odd_metrics_arrive_tamed(tmp_path: Path) -> None:
    pool = zoo_pool(tmp_path)
    lease = await pool.lease({})
    messages = Messages()
    await call(lease, "writes_odd_metrics", on_message=messages)
    await pool.close()
    written = [(message["name"], message["value"]) for message in messages.of("metric")]
    assert written[:2] == [("NAN", None), ("N" * 128, 1)]
    assert written[2][0] == "7"
