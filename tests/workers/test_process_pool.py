from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from callagent.errors import FunctionTimeout, ProviderError, WorkerDied
from callagent.workers.lease import WORKER_FIGURES
from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import MAX_FRAME_BYTES, MIB, Lease, Plain, ProjectRuntime, WorkerSettings
from tests.workers import runtimes
from tests.workers.support import Messages, descendants, open_descriptors

MakePool = Callable[..., ProcessPool]


@pytest.fixture
async def make_pool(tmp_path: Path) -> AsyncIterator[MakePool]:
    pools: list[ProcessPool] = []

    def make(
        name: str = "Echo", settings: WorkerSettings | None = None, module: str = runtimes.__name__
    ) -> ProcessPool:
        pools.append(ProcessPool(ProjectRuntime(f"{module}:{name}", tmp_path), settings))
        return pools[-1]

    before = open_descriptors()
    yield make
    for pool in pools:
        await pool.close()
    assert not descendants()
    assert open_descriptors() == before


async def run(lease: Lease, op: str, *, timeout: float = 10.0, on_message: Any = None, **more: Any) -> Plain:
    return await lease.run(
        {"op": op, **more}, timeout=timeout, on_message=Messages() if on_message is None else on_message
    )


async def test_a_lease_answers_with_its_context(make_pool: MakePool) -> None:
    lease = await make_pool().lease({"call": "c1"})
    answer = await run(lease, "echo", value=[1, "two", None, {"three": 3.0}])
    assert answer["value"] == [1, "two", None, {"three": 3.0}]
    assert answer["context"] == {"call": "c1"}


async def test_each_call_has_a_process_of_its_own(make_pool: MakePool) -> None:
    pool = make_pool()
    pids = {(await run(await pool.lease({}), "echo", value=0))["pid"] for _ in range(3)}
    assert len(pids) == 3
    assert os.getpid() not in pids


async def test_a_worker_is_nice_limited_and_leads_its_group(make_pool: MakePool) -> None:
    lease = await make_pool(settings=WorkerSettings(memory=200 * MIB, nice=7)).lease({})
    answer = await run(lease, "limits")
    assert answer == {"data": 200 * MIB, "nice": os.nice(0) + 7, "group": lease.pid}


async def test_messages_come_in_order_and_asks_are_answered(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    seen: list[Plain] = []

    async def answer(message: Plain) -> str:
        await asyncio.sleep(0)
        return f"{message['question']}!"

    def on_message(message: Plain) -> Any:
        seen.append(message)
        return answer(message) if message["type"] == "ask" else None

    result = await run(lease, "ask", question="why", times=3, on_message=on_message)
    assert result["answers"] == ["why!"] * 3
    assert [message["type"] for message in seen] == ["note", "ask"] * 3


async def test_a_failed_ask_is_told_to_the_running_code(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})

    async def refuse() -> None:
        raise ProviderError("the model is down")

    result = await run(lease, "ask", question="why", on_message=lambda m: refuse() if m.get("ask") else None)
    assert result["answers"] == ["failed: the model is down"]


async def test_threads_may_ask_at_the_same_time(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})

    async def answer(question: str) -> str:
        return question

    result = await run(lease, "ask_from_threads", count=8, on_message=lambda message: answer(message["question"]))
    assert result["answers"] == {str(number): str(number) for number in range(8)}


async def test_a_replacement_starts_from_the_merged_checkpoint(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    assert await run(lease, "keep", key="a", value="1") == {}
    await run(lease, "keep", key="b", value="2")
    await run(lease, "keep", key="c", value="3")
    await run(lease, "keep", key="b", value=None)
    with pytest.raises(WorkerDied, match="exited with status 7"):
        await run(lease, "exit")
    assert (await run(lease, "kept"))["kept"] == {"a": "1", "c": "3"}


async def test_a_function_past_its_deadline_is_killed(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    pid = (await run(lease, "echo", value=0))["pid"]
    with pytest.raises(FunctionTimeout):
        await run(lease, "sleep", seconds=600, timeout=0.1)
    assert (await run(lease, "echo", value=1))["pid"] != pid


async def test_workers_are_counted(make_pool: MakePool) -> None:
    before = replace(WORKER_FIGURES)
    lease = await make_pool().lease({})
    with pytest.raises(FunctionTimeout):
        await run(lease, "sleep", seconds=600, timeout=0.1)
    assert WORKER_FIGURES.live == before.live
    with pytest.raises(WorkerDied):
        await run(lease, "exit")
    await run(lease, "echo", value=1)
    assert WORKER_FIGURES.live == before.live + 1
    await lease.close()
    changes = {name: getattr(WORKER_FIGURES, name) - getattr(before, name) for name in asdict(before)}
    assert changes == {"live": 0, "started": 3, "killed": 1, "died": 1, "replaced": 2}


async def test_the_deadline_holds_while_the_core_answers(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})

    def never(message: Plain) -> Any:
        return asyncio.sleep(600) if message.get("ask") else None

    with pytest.raises(FunctionTimeout):
        await run(lease, "ask", question="?", timeout=0.1, on_message=never)
    assert (await run(lease, "echo", value=1))["value"] == 1


async def test_a_session_that_raises_is_replaced(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    with pytest.raises(WorkerDied, match="ValueError: from the session"):
        await run(lease, "raise")
    assert (await run(lease, "echo", value=1))["value"] == 1


async def test_a_session_that_cannot_be_opened_is_an_error_each_time(make_pool: MakePool) -> None:
    lease = await make_pool("Unopenable").lease({})
    messages = Messages()
    for _ in range(2):
        with pytest.raises(WorkerDied, match="exited with status 1"):
            await run(lease, "echo", value=1, on_message=messages)
    assert messages[-1]["text"] == "ValueError: no session"


async def test_a_worker_that_dies_between_functions_is_replaced(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    await run(lease, "keep", key="a", value="1")
    assert lease.pid is not None
    os.kill(lease.pid, signal.SIGKILL)
    while not lease._link.ended:  # type: ignore[union-attr]
        await asyncio.sleep(0.001)
    assert (await run(lease, "kept"))["kept"] == {"a": "1"}


async def test_an_answer_over_the_frame_limit_is_an_error(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    assert len((await run(lease, "large", size=MAX_FRAME_BYTES - 100))["value"]) == MAX_FRAME_BYTES - 100
    with pytest.raises(WorkerDied, match="over the limit"):
        await run(lease, "large", size=MAX_FRAME_BYTES)
    assert (await run(lease, "echo", value=1))["value"] == 1


async def test_a_request_over_the_frame_limit_is_an_error(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    with pytest.raises(WorkerDied, match="over the limit"):
        await run(lease, "echo", value=b"x" * MAX_FRAME_BYTES)
    assert (await run(lease, "echo", value=1))["value"] == 1


async def test_a_cancelled_run_leaves_a_usable_lease(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    running = asyncio.ensure_future(run(lease, "sleep", seconds=600))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await run(lease, "echo", value=1))["value"] == 1


async def test_one_request_at_a_time(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    running = asyncio.ensure_future(run(lease, "sleep", seconds=600))
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="one request at a time"):
        await run(lease, "echo", value=1)
    running.cancel()
    await asyncio.wait([running])


async def test_a_closed_lease_runs_nothing(make_pool: MakePool) -> None:
    lease = await make_pool().lease({})
    await lease.close()
    await lease.close()
    with pytest.raises(WorkerDied, match="closed"):
        await run(lease, "echo", value=1)


async def test_calls_keep_the_version_they_began_with(make_pool: MakePool, tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text("one")
    pool = make_pool()
    old = await pool.lease({})
    version.write_text("two")
    await pool.reload()
    new = await pool.lease({})
    with pytest.raises(WorkerDied):
        await run(old, "exit")
    assert (await run(old, "echo", value=0))["version"] == "one"
    assert (await run(new, "echo", value=0))["version"] == "two"
    zygotes = len(descendants())
    await old.close()
    # The last call of the old version takes its zygote along.
    assert len(descendants()) == zygotes - 2


async def test_a_broken_version_changes_nothing(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool()
    await pool.start()
    (tmp_path / "version").write_text("broken")
    with pytest.raises(WorkerDied, match="this version is broken"):
        await pool.reload()
    assert (await run(await pool.lease({}), "echo", value=1))["version"] == ""


async def test_a_dead_zygote_is_replaced(make_pool: MakePool) -> None:
    pool = make_pool()
    lease = await pool.lease({})
    await run(lease, "keep", key="a", value="1")
    assert pool._zygote is not None
    pool._zygote._process.kill()
    while pool._zygote.alive:
        await asyncio.sleep(0.001)
    assert (await run(await pool.lease({}), "echo", value=1))["value"] == 1
    try:
        kept = await run(lease, "kept")
    except WorkerDied:
        kept = await run(lease, "kept")
    assert kept["kept"] == {"a": "1"}


async def test_a_project_that_starts_threads_gets_interpreters_instead_of_forks(
    make_pool: MakePool, tmp_path: Path
) -> None:
    # Such an interpreter imports the runtime within the domain, in which the tests' folder is closed.
    library = tmp_path / "library"
    library.mkdir()
    shutil.copy(runtimes.__file__, library / "copied_runtimes.py")
    settings = WorkerSettings(environment={"PYTHONPATH": str(library)})
    lease = await make_pool("Threaded", settings, "copied_runtimes").lease({"call": "c1"})
    await run(lease, "keep", key="a", value="1")
    with pytest.raises(FunctionTimeout):
        await run(lease, "sleep", seconds=600, timeout=0.05)
    assert (await run(lease, "kept"))["kept"] == {"a": "1"}
    assert (await run(lease, "limits"))["group"] == lease.pid


async def test_a_project_that_never_finishes_importing_is_given_up(make_pool: MakePool) -> None:
    with pytest.raises(WorkerDied, match=r"took more than 0\.5 s"):
        await make_pool("Endless", WorkerSettings(import_timeout=0.5)).start()


async def test_a_project_that_exits_while_importing_is_an_error(make_pool: MakePool) -> None:
    with pytest.raises(WorkerDied, match="exited with status 9"):
        await make_pool("Exiting").lease({})


async def test_a_closed_pool_leases_nothing(make_pool: MakePool) -> None:
    pool = make_pool()
    lease = await pool.lease({})
    await pool.close()
    await pool.close()
    with pytest.raises(WorkerDied):
        await run(lease, "echo", value=1)
    with pytest.raises(WorkerDied, match="the pool is closed"):
        await pool.lease({})


async def test_workers_end_with_the_core(tmp_path: Path) -> None:
    program = f"""
import asyncio, os
from pathlib import Path
from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import ProjectRuntime
async def main():
    pool = ProcessPool(ProjectRuntime("tests.workers.runtimes:Echo", Path({str(tmp_path)!r})))
    lease = await pool.lease({{}})
    answer = await lease.run({{"op": "echo", "value": 1}}, timeout=10, on_message=print)
    print(answer["pid"], pool._zygote._process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    import sys

    core = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert core.stdout is not None
    pids = [int(pid) for pid in (await core.stdout.readline()).split()]
    assert len(pids) == 2
    core.kill()
    await core.wait()
    async with asyncio.timeout(60):
        while any(_runs(pid) for pid in pids):
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    """An ended process whose new parent does not reap is as good as gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
