"""The limit of file descriptors: raised at start, and what becomes of callers when none is free."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from callagent.descriptors import OWN, PER_CALL, RESERVE
from tests.end_to_end.scripted import MILL, scripts, talker
from tests.end_to_end.server_process import serve

RAISE = """
import resource, sys
from callagent.descriptors import calls_that_fit
soft, hard, calls = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(calls_that_fit(calls), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
FEW = OWN + RESERVE + 10 * PER_CALL


@pytest.mark.parametrize(
    ("soft", "hard", "calls", "fit", "raised"),
    [(FEW, FEW, 10, 10, FEW), (64, FEW, 10, 10, FEW), (64, FEW, 200, 10, FEW), (64, 80, 200, 1, 80)],
)
def test_the_limit_is_raised_to_what_the_calls_need(soft: int, hard: int, calls: int, fit: int, raised: int) -> None:
    command = [sys.executable, "-c", RAISE, str(soft), str(hard), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [int(each) for each in done.stdout.split()] == [fit, raised]


@pytest.mark.end_to_end
async def test_callers_are_sent_elsewhere_while_no_descriptor_is_free(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, **scripts(tmp_path, [], [])) as server:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 2, hard))
        with pytest.raises(Exception, match="503"):
            async with talker(server.sip):
                pass
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        async with talker(server.sip) as caller:
            await caller.listen(1)
        await asyncio.to_thread(server.wait_for_records, 1)
        assert "no_free_file_descriptors" in server.errors.read_text()
