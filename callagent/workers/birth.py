"""What a zygote, or a worker that cannot be forked, is told at its start."""

from __future__ import annotations

import msgspec

from callagent.workers.landlock import Grant
from callagent.workers.settings import WorkerSettings

PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from callagent.workers.zygote import main; main(sys.argv[2], sys.argv[3])"
)
"""`python -P -c PROGRAM <folder of callagent> zygote|worker <Birth as JSON>`"""


class Birth(msgspec.Struct, frozen=True):
    runtime: str
    project: str
    folder: str
    """What the project's code may read."""
    settings: WorkerSettings
    private: str
    """The folder that it may write to: a zygote's holds those of its calls."""
    grants: tuple[Grant, ...]
    """What a worker may read and start; empty in a zygote, which finds it out before it is confined."""
    parent: int
    control: int
    """The descriptor of the control socket; in a worker that is an interpreter of its own, the one to the core."""
