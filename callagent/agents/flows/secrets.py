"""Secrets of the folder that the settings name: read by the core, so that the folder stays closed to project code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from callagent.workers.protocol import Plain

SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_CHARACTERS = 1024 * 1024


async def read_secret(folder: str | None, name: str) -> str | None:
    """The text of the file `name` in `folder`; None where there is none."""
    if folder is None or not SECRET_NAME.fullmatch(name):
        return None
    return await asyncio.to_thread(_read, Path(folder, name))


def answer_secrets(folder: str | None) -> Callable[[Plain], Awaitable[Any] | None]:
    """Answers the requests for secrets of a worker that runs no function of a call."""

    def on_message(message: Plain) -> Awaitable[Any] | None:
        return read_secret(folder, str(message.get("name"))) if message.get("type") == "secret" else None

    return on_message


def _read(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return file.read(_MAX_CHARACTERS).strip()
