"""What a zygote, or a worker that cannot be forked, is told at its start."""

from __future__ import annotations

import msgspec

from callagent.workers.settings import WorkerSettings

PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from callagent.workers.zygote import main; main(sys.argv[2], sys.argv[3])"
)
"""`python -P -c PROGRAM <folder of callagent> zygote|worker <Birth as JSON>`"""


class Birth(msgspec.Struct, frozen=True):
    runtime: str
    project: str
    settings: WorkerSettings
    parent: int
    control: int
    """The descriptor of the control socket; in a worker that is an interpreter of its own, the one to the core."""
