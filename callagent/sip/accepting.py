"""Accept TCP connections, also when the process has run out of descriptors for a while."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

from callagent.log import get_logger

log = get_logger(__name__)

_PAUSE_SECONDS = 0.1
"""Between attempts while none succeeds: the loop does not spin, and the kernel keeps the connections waiting."""


async def accept_connections(listener: socket.socket, failure: str) -> AsyncIterator[tuple[socket.socket, Any]]:
    """Yield the socket and the peer's address of each connection, until cancelled. `failure` is the event logged."""
    loop = asyncio.get_running_loop()
    failing = False
    while True:
        try:
            accepted = await loop.sock_accept(listener)
        except OSError as error:
            # Out of descriptors, or the peer has left already. One line until a connection is accepted again.
            if not failing:
                log.warning(failure, error=str(error))
            failing = True
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        failing = False
        yield accepted
