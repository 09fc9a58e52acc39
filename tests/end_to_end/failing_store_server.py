"""`python -m tests.end_to_end.failing_store_server METHOD FAULT FILE ARGUMENT…`: callagent with a store that fails.

While FILE exists, that method of the store meets the fault (`ENOSPC`, `EROFS`, `EIO`, `locked`, `slow`); so does the
store's own check of whether it works again. FILE.ask is answered by FILE.objects: how many tasks, legs and calls
are alive in the process.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import json
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from callagent.records import Store

METHODS = ("opened", "metric", "end_attempted", "ended")
FAULTS = ("ENOSPC", "EROFS", "EIO", "locked", "slow")
LOCKED_SECONDS = 14.0
SLOW_SECONDS = 5.0


async def meet(fault: str) -> None:
    if fault == "slow":
        await asyncio.sleep(SLOW_SECONDS)
    elif fault == "locked":
        await asyncio.sleep(LOCKED_SECONDS)
        raise sqlite3.OperationalError("database is locked")
    else:
        number = getattr(errno, fault)
        raise OSError(number, os.strerror(number))


def decorate(method: str, fault: str, file: Path) -> None:
    """Let `method` and the check fail while there is `file`."""
    for name in (method, "probe"):
        original = getattr(Store, name)

        @functools.wraps(original)
        async def failing(self: Store, *args: Any, original: Any = original, **more: Any) -> None:
            if file.exists():
                await meet(fault)
            await original(self, *args, **more)

        setattr(Store, name, failing)


def answer(file: Path) -> None:
    """Count what is alive whenever it is asked for."""
    from callagent.call import Call
    from callagent.legs.sip import SipLeg

    ask, objects = file.with_suffix(".ask"), file.with_suffix(".objects")
    while True:
        if ask.exists():
            alive = gc.get_objects()
            tasks = sum(isinstance(one, asyncio.Task) and not one.done() for one in alive)
            counts = [tasks, *(sum(isinstance(one, kind) for one in alive) for kind in (SipLeg, Call))]
            del alive
            ask.unlink()
            objects.with_suffix(".new").write_text(json.dumps(counts))
            objects.with_suffix(".new").rename(objects)
        time.sleep(0.05)


if __name__ == "__main__":
    from callagent.commands import main

    threading.Thread(target=answer, args=(Path(sys.argv[3]),), daemon=True).start()
    decorate(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
