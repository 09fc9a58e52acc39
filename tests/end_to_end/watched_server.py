"""`python -m tests.end_to_end.watched_server FILE ARGUMENT…`: callagent, each step of its event loop timed.

FILE gets a line for every step that worked longer than `NOTED` seconds: processor time of the loop's own thread, so
that neither what other programs do on the machine counts nor what else the server does between two steps.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

NOTED = 0.01


def watch(file: Path) -> None:
    """From now on, for every loop of this process."""
    notes = file.open("w", buffering=1)
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began, before = time.monotonic(), time.thread_time()
        run(handle)
        seconds = time.thread_time() - before
        if seconds > NOTED:
            what = getattr(handle, "_callback", None)
            notes.write(json.dumps({"at": began, "seconds": seconds, "what": _name(what)}) + "\n")

    # The loop written in C has no handles of Python's to time.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]


def longest_step(file: Path, since: float) -> tuple[float, str]:
    """Seconds and callback of the longest step that began after `since`, on the monotonic clock."""
    notes = [json.loads(line) for line in file.read_text().splitlines()]
    return max(((note["seconds"], note["what"]) for note in notes if note["at"] >= since), default=(NOTED, ""))


def _name(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    return repr(task.get_coro() if isinstance(task, asyncio.Task) else callback)[:200]


if __name__ == "__main__":
    from callagent.commands import main

    watch(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
