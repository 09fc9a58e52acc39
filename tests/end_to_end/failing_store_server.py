"""`python -m tests.end_to_end.failing_store_server METHOD FAULT FILE ARGUMENT…`: callagent with a store that fails.

While FILE exists, that method of the store meets the fault (`ENOSPC`, `EROFS`, `EIO`, `locked`, `slow`); so does the
store's own check of whether it works again.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import sqlite3
import sys
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


if __name__ == "__main__":
    from callagent.cli import main

    decorate(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
