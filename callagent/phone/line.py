"""What both wires give the test phone once the server has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from callagent.legs import Media


class Line(Protocol):
    """An answered call, from the caller's side."""

    ended: asyncio.Future[str]
    """Done when the server ended the call; the result says how."""
    on_transfer: Callable[[str], None]
    """Called when the server asks us to go elsewhere, with the target."""

    @property
    def media(self) -> Media: ...

    async def send_digits(self, digits: str) -> None: ...

    def lose(self, share: float) -> None:
        """Lose so many of the packets that we send, 0 to 1. Raises `UserError` where the wire loses none."""

    async def hang_up(self) -> None:
        """Idempotent; bounded in time."""
