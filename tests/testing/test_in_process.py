from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from callagent.errors import FunctionTimeout, ProviderError, WorkerDied
from callagent.testing import virtual_time
from callagent.testing.in_process import InProcessPool
from callagent.workers.protocol import Lease, Plain, ProjectRuntime


def pool(name: str = "Echo") -> InProcessPool:
    return InProcessPool(ProjectRuntime(f"tests.workers.runtimes:{name}", Path("/")))


async def run(lease: Lease, op: str, *, timeout: float = 10.0, on_message: Any = None, **more: Any) -> Plain:
    return await lease.run({"op": op, **more}, timeout=timeout, on_message=on_message or (lambda message: None))


def test_a_sleep_takes_virtual_time() -> None:
    async def main() -> float:
        lease = await pool().lease({})
        await run(lease, "sleep", seconds=5)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 5
    started = time.monotonic()
    time.sleep(0.001)
    assert time.monotonic() - started >= 0.001


def test_two_calls_sleep_at_the_same_time() -> None:
    async def main() -> float:
        here = pool()
        leases = [await here.lease({}) for _ in range(3)]
        await asyncio.gather(*(run(lease, "sleep", seconds=5) for lease in leases))
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == 5


def test_a_function_past_its_deadline_is_abandoned_and_the_checkpoint_stands() -> None:
    async def main() -> None:
        lease = await pool().lease({})
        assert await run(lease, "keep", key="a", value="1") == {}
        with pytest.raises(FunctionTimeout):
            await run(lease, "sleep", seconds=60)
        assert asyncio.get_running_loop().time() == 10
        assert await run(lease, "kept") == {"kept": {"a": "1"}}

    virtual_time.run(main())


def test_asks_are_answered_in_virtual_time() -> None:
    async def main() -> None:
        lease = await pool().lease({})

        async def slow() -> str:
            await asyncio.sleep(2)
            return "because"

        answer = await run(lease, "ask", question="why", on_message=lambda m: slow() if m.get("ask") else None)
        assert answer == {"answers": ["because"]}
        assert asyncio.get_running_loop().time() == 2

    virtual_time.run(main())


def test_a_failed_ask_is_told_to_the_running_code() -> None:
    async def main() -> None:
        lease = await pool().lease({})

        def refuse(message: Plain) -> None:
            if message.get("ask"):
                raise ProviderError("down")

        assert await run(lease, "ask", question="why", on_message=refuse) == {"answers": ["failed: down"]}

    virtual_time.run(main())


def test_a_session_that_raises_is_replaced() -> None:
    async def main() -> None:
        lease = await pool().lease({})
        await run(lease, "keep", key="a", value="1")
        with pytest.raises(WorkerDied, match="ValueError: from the session"):
            await run(lease, "raise")
        assert await run(lease, "kept") == {"kept": {"a": "1"}}

    virtual_time.run(main())


def test_one_request_at_a_time() -> None:
    async def main() -> None:
        lease = await pool().lease({})
        running = asyncio.ensure_future(run(lease, "sleep", seconds=1))
        await asyncio.sleep(0.5)
        with pytest.raises(RuntimeError, match="one request at a time"):
            await run(lease, "echo", value=1)
        assert await running == {"slept": 1}
        await lease.close()
        with pytest.raises(WorkerDied):
            await run(lease, "echo", value=1)

    virtual_time.run(main())


def test_a_sleep_bound_at_import_takes_virtual_time(tmp_path: Path) -> None:
    project = tmp_path / "functions"
    project.mkdir()
    (project / "naps.py").write_text("from time import sleep\n\ndef naps(conv):\n    sleep(7)\n    return 'awake'\n")

    async def main() -> None:
        flows = InProcessPool(ProjectRuntime("callagent.agents.flows.runtime:FlowRuntime", tmp_path))
        lease = await flows.lease({})
        answer = await run(lease, "run", function={"kind": "global", "flow": None, "name": "naps"})
        assert answer["returned"] == "awake"
        assert asyncio.get_running_loop().time() == 7

    virtual_time.run(main())
