"""Signs of life: a file beside the store whose time says when its server was alive last.

A server that is killed cannot write how long its calls lasted. The next one knows by this file.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

BEAT_SECONDS: Final = 1.0
_MARK: Final = "-alive-"


def leave_heartbeat(store: Path, owner: str) -> None:
    """Leave a sign of life of the process `owner`. Blocks. Raises `OSError`."""
    _file(store, owner).touch(mode=0o600)


def last_heartbeat(store: Path, owner: str) -> datetime | None:
    """When that process was alive for certain; None: it has left no sign. Blocks."""
    try:
        return datetime.fromtimestamp(_file(store, owner).stat().st_mtime, UTC)
    except OSError:
        return None


def remove_heartbeat(store: Path, owner: str) -> None:
    """Remove the signs of a process that has ended its calls. Blocks. Raises `OSError`."""
    _file(store, owner).unlink(missing_ok=True)


def heartbeat_owners(store: Path) -> list[str]:
    """The processes that have left signs. Blocks."""
    names = (path.name.rpartition(_MARK)[2] for path in store.parent.glob(f"{store.name}{_MARK}*"))
    return [":".join(name.split("-", 1)) for name in names if name.partition("-")[0].isdigit()]


def _file(store: Path, owner: str) -> Path:
    return store.with_name(f"{store.name}{_MARK}{owner.replace(':', '-')}")
