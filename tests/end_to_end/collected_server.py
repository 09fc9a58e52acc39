"""`python -m tests.end_to_end.collected_server FILE ARGUMENT…`: callagent, its garbage collector watched.

FILE gets a line for every collection: its generation, what it found unreachable, and the processor time that it took
of its thread. SIGUSR1 runs a full collection, whose line counts the unreachable objects by type as well.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Note:
    """One collection."""

    unreachable: int
    seconds: float
    """Of processor time of its thread."""
    generation: int = 2
    asked: bool = False
    """By SIGUSR1, not by the interpreter."""
    types: tuple[tuple[str, int], ...] = ()
    """What was unreachable, by type, the most frequent first; only of one that was asked for."""


def read_notes(file: Path) -> list[Note]:
    """Every collection noted so far; a line that is being written does not count yet."""
    lines = file.read_text().splitlines(keepends=True)
    return [Note(**json.loads(line)) for line in lines if line.endswith("\n")]


def watch(notes: TextIO) -> None:
    """Note every collection of this process from now on."""
    began = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.thread_time()
            return
        seconds = time.thread_time() - began
        _write(notes, Note(info["collected"], seconds, info["generation"]))

    gc.callbacks.append(note)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: collect(notes))


def collect(notes: TextIO) -> None:
    """Collect everything once, keeping what was unreachable until its types are counted."""
    callbacks, gc.callbacks[:] = list(gc.callbacks), []
    gc.set_debug(gc.DEBUG_SAVEALL)
    began = time.thread_time()
    gc.collect()
    seconds = time.thread_time() - began
    types = Counter(_name(thing) for thing in gc.garbage)
    found = len(gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    gc.callbacks[:] = callbacks
    _write(notes, Note(found, seconds, asked=True, types=tuple(types.most_common(40))))


def _name(thing: object) -> str:
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} {getattr(thing, '__qualname__', '')}".strip() if callable(thing) else name


def _write(notes: TextIO, note: Note) -> None:
    notes.write(json.dumps(asdict(note)) + "\n")
    notes.flush()


if __name__ == "__main__":
    from callagent.commands import main

    with Path(sys.argv[1]).open("w") as notes:
        watch(notes)
        sys.exit(main(sys.argv[2:]))
